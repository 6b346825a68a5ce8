"""`workspacefs checkpoint`: name this moment of a session, so that one can go back to it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from shlex import quote
from typing import Final

from workspacefs.cli.commit_text import time_text
from workspacefs.cli.context import Context
from workspacefs.cli.parser import add_progress_flag
from workspacefs.cli.progress import Bar, show_files
from workspacefs.client.locate import session_of
from workspacefs.errors import UsageError

EXAMPLE = """\
  workspacefs checkpoint --name before-refactoring
  workspacefs checkpoint --durable -m "tests pass"
  workspacefs checkpoint list
  workspacefs checkpoint show before-refactoring   # and what has changed since
  workspacefs checkpoint diff before-refactoring
  workspacefs restore before-refactoring
  workspacefs fork /tmp/w /tmp/back --at before-refactoring
  workspacefs checkpoint delete before-refactoring"""

_ACTIONS: Final = ("list", "show", "diff", "delete")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "words",
        metavar="[list|show|diff|delete] [PATH|NAME]",
        nargs="*",
        help="without a word: make one, of the session at PATH (default: here); show: what has "
        "changed since; diff: the same as a patch",
    )
    parser.add_argument("--path", metavar="PATH", help="the session, with a NAME")
    parser.add_argument("--name", metavar="NAME", help="of the checkpoint (default: cp1, cp2 …)")
    parser.add_argument(
        "--durable",
        action="store_true",
        help="store it as well, so that it outlives this machine and pauses",
    )
    add_progress_flag(parser)
    parser.add_argument("-m", "--message", default="", help="what it is for")


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Make, list or delete."""
    words = list(options.words)
    action = words.pop(0) if words and words[0] in _ACTIONS else "create"
    is_named = action in ("delete", "show", "diff")
    if len(words) > 1 or (is_named and not words):
        raise UsageError(
            "it is: checkpoint [PATH], checkpoint list [PATH], checkpoint show|diff|delete NAME",
            kind="usage.arguments",
        )
    path, name = options.path, options.name
    if is_named:
        name = words[0]
    elif words:
        path = words[0]
    address = session_of(path or ".", context.state)
    args = {
        "action": action,
        "name": name,
        "message": options.message,
        "durable": options.durable,
    }
    with (
        Bar("checkpoint", unit="files", is_shown=options.progress) as bar,
        address.connect() as session,
    ):
        answer = session.call("checkpoint", args, on_progress=lambda facts: show_files(bar, facts))
    _tell(action, answer, address.mountpoint, context)
    return {"mountpoint": address.mountpoint, **answer}


def _tell(action: str, answer: Mapping[str, object], mountpoint: str, context: Context) -> None:
    out = context.out
    if action == "list":
        rows = answer["checkpoints"]
        assert isinstance(rows, list)
        for row in rows:
            note = f": {row['message']}" if row["message"] else ""
            when = time_text(row["created_ns"])
            kept = "durable" if row["is_durable"] else "here alone"
            out.line(f"{row['checkpoint']}  {when}, {kept}{note}")
        if not rows:
            out.line("no checkpoints; workspacefs checkpoint makes one")
        return
    name = answer["checkpoint"]
    if action == "diff":
        if not out.as_json:
            out.write(os.fsencode(str(answer["patch"])))
        return
    if action == "show":
        note = f": {answer['message']}" if answer["message"] else ""
        created_ns = answer["created_ns"]
        assert isinstance(created_ns, int)
        out.line(f"checkpoint {name}, {time_text(created_ns)}{note}")
        changes = answer["changes"]
        assert isinstance(changes, list)
        for change in changes:
            came = f" (was {change['from']})" if change["from"] else ""
            out.line(f"  {change['kind']:<10} {change['path']}{came}")
        if not changes:
            out.line("  nothing has changed since")
        return
    if action == "delete":
        out.line(f"deleted checkpoint {name}")
        return
    out.line(f"checkpoint {name} of session {answer['session']}")
    out.note(
        f"to go back to it: workspacefs restore {quote(mountpoint)} {quote(str(name))}. "
        + ("It is in the store too" if answer["is_durable"] else "It is on this machine alone")
    )
