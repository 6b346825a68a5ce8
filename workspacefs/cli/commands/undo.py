"""`workspacefs undo`: take back a restore of the session that one is in, or any move of a ref."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping

from workspacefs.cli.commands.restore import tell_restored
from workspacefs.cli.context import Context, short_id
from workspacefs.cli.parser import add_progress_flag, add_store_flags
from workspacefs.cli.progress import Bar, show_files
from workspacefs.client.locate import session_of
from workspacefs.errors import UsageError

EXAMPLE = """\
  workspacefs undo                     # the last restore in this session; again: redo
  workspacefs undo /tmp/w 2            # back to before the last two
  workspacefs oplog; workspacefs undo --op 5f2c1a90    # one move of a branch or session"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "words",
        metavar="[PATH|URL] [N]",
        nargs="*",
        help="session, or with --op a store (default: the working directory); how many restores",
    )
    parser.add_argument(
        "--op",
        metavar="ID",
        help="move a branch, tag or session back to before this operation of the oplog",
    )
    add_progress_flag(parser)
    add_store_flags(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Undo."""
    words = list(options.words)
    steps = int(words.pop()) if words and words[-1].isdecimal() else 1
    if len(words) > 1 or steps < 1 or (options.op and steps > 1):
        raise UsageError("it is: undo [PATH] [N], or undo [URL|PATH] --op ID", kind="usage.undo")
    where = words[0] if words else None
    if options.op:
        return _undo_operation(where, options, context)
    address = session_of(where or ".", context.state)
    with (
        Bar("verify", unit="files", is_shown=options.progress) as bar,
        address.connect() as session,
    ):
        answer = session.call(
            "undo", {"steps": steps}, on_progress=lambda facts: show_files(bar, facts)
        )
    tell_restored(answer, address.mountpoint, context)
    return {"mountpoint": address.mountpoint, **answer}


def _undo_operation(
    where: str | None, options: argparse.Namespace, context: Context
) -> Mapping[str, object]:
    # By name: they load the whole library, and undoing a restore needs none of it.
    revision = importlib.import_module("workspacefs.cli.revision")
    operations = importlib.import_module("workspacefs.workspace.operations")
    who = importlib.import_module("workspacefs.cli.provenance").own_name()
    workspace = revision.open_place(where, None, options, context).workspace
    operation = operations.find_operation(workspace, options.op)
    record = operations.undo_operation(workspace, context.state, operation, moved_by=who)
    head = None if record.commit_id is None else record.commit_id.hex()
    kind = operation.kind.value
    name = operation.name
    if operation.other_name:
        name = operation.name if operation.new is None else operation.other_name
    if head is None and kind != "session":
        context.out.line(f"undid {operation.action}: there is no {kind} {name} any more")
    else:
        context.out.line(f"undid {operation.action}: {kind} {name} is at {short_id(head)}")
    if kind == "session" and operation.action != "delete":
        context.out.note("what that commit had is uncommitted work of the session again")
    return {"operation": operation.id, "kind": kind, "name": name, "head": head}
