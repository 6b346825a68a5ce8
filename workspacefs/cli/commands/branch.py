"""`workspacefs branch`: which branches there are; make, delete and rename one."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Final

from workspacefs.cli.context import Context, short_id
from workspacefs.cli.named_refs import (
    Request,
    create,
    delete,
    list_all,
    parse_words,
    reject_force,
    row_of,
)
from workspacefs.cli.parser import add_store_flags
from workspacefs.cli.provenance import own_name
from workspacefs.cli.revision import open_place
from workspacefs.refs import RefKind
from workspacefs.workspace.branch_renaming import rename_branch

EXAMPLE = """\
  workspacefs branch                            # of the workspace that one is in
  workspacefs branch create ./store release main~2
  workspacefs branch create try-2               # at the newest commit of the session
  workspacefs branch rename ./store try-2 parser
  workspacefs branch delete ./store parser      # oplog names it, undo --op brings it back"""

_WORDS: Final = {
    "list": (),
    "create": ("NAME", "[REV]"),
    "delete": ("NAME",),
    "rename": ("NAME", "NEW"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "words",
        metavar="[list|create|delete|rename] [URL|PATH] [NAME] [REV|NEW]",
        nargs="*",
        help="what to do (default: list); store, or something in a mount (default: the working "
        "directory); name of the branch; where it shall begin, or its new name",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="delete it though no other branch, tag or session has its newest commits",
    )
    add_store_flags(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Do it."""
    request = parse_words(options.words, _WORDS, command="branch")
    reject_force(request, options, ["delete"])
    match request.action:
        case "create":
            return create(request, RefKind.BRANCH, options, context)
        case "delete":
            return delete(request, RefKind.BRANCH, options, context)
        case "rename":
            return _rename(request, options, context)
    rows = list_all(request, RefKind.BRANCH, options, context)
    if not rows:
        context.out.line("no branches yet; import or commit --into begins one")
    return {"branches": rows}


def _rename(
    request: Request, options: argparse.Namespace, context: Context
) -> Mapping[str, object]:
    name, new_name = request.names
    workspace = open_place(request.where, None, options, context).workspace
    record = rename_branch(workspace, name, new_name, renamed_by=own_name())
    row = row_of(RefKind.BRANCH, new_name, record)
    context.out.line(f"branch {name} is called {new_name} now, at {short_id(row['commit'])}")
    return {"url": workspace.url, "renamed_from": name, **row}
