"""`workspacefs tag`: names of commits that never move; list, make and delete them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Final

from workspacefs.cli.context import Context
from workspacefs.cli.named_refs import create, delete, list_all, parse_words, reject_force
from workspacefs.cli.parser import add_store_flags
from workspacefs.refs import RefKind

EXAMPLE = """\
  workspacefs tag create ./store v1.0           # where main is
  workspacefs tag create before-cleanup main~3  # in a mount
  workspacefs tag ./store
  workspacefs tag delete ./store v1.0           # oplog names it, undo --op brings it back"""

_WORDS: Final = {"list": (), "create": ("NAME", "[REV]"), "delete": ("NAME",)}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "words",
        metavar="[list|create|delete] [URL|PATH] [NAME] [REV]",
        nargs="*",
        help="what to do (default: list); store, or something in a mount (default: the working "
        "directory); name of the tag; the commit that it shall name (default: the newest)",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="delete it though no branch, session or other tag has its newest commits",
    )
    add_store_flags(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Do it."""
    request = parse_words(options.words, _WORDS, command="tag")
    reject_force(request, options, ["delete"])
    if request.action == "create":
        return create(request, RefKind.TAG, options, context)
    if request.action == "delete":
        return delete(request, RefKind.TAG, options, context)
    rows = list_all(request, RefKind.TAG, options, context)
    if not rows:
        context.out.line("no tags yet; workspacefs tag create makes one")
    return {"tags": rows}
