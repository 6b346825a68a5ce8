"""`workspacefs checkpoint`: name this moment of a session, so that one can go back to it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from shlex import quote

from workspacefs.cli.commit_text import time_text
from workspacefs.cli.context import Context, short_id
from workspacefs.client.locate import session_of
from workspacefs.errors import UsageError

EXAMPLE = """\
  workspacefs checkpoint --name before-refactoring
  workspacefs checkpoint list
  workspacefs fork /tmp/w /tmp/back --at before-refactoring
  workspacefs checkpoint delete before-refactoring"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "words",
        metavar="[list|delete] [PATH|NAME]",
        nargs="*",
        help="without list or delete: make one, of the session at PATH (default: here)",
    )
    parser.add_argument("--path", metavar="PATH", help="the session, for list and delete")
    parser.add_argument("--name", metavar="NAME", help="of the checkpoint (default: cp1, cp2 …)")
    parser.add_argument("-m", "--message", default="", help="what it is for")


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Make, list or delete."""
    words = list(options.words)
    action = words.pop(0) if words and words[0] in ("list", "delete") else "create"
    if len(words) > 1 or (action == "delete" and not words):
        raise UsageError(
            "it is: checkpoint [PATH], checkpoint list [PATH], checkpoint delete NAME",
            kind="usage.arguments",
        )
    path, name = options.path, options.name
    if action == "delete":
        name = words[0]
    elif words:
        path = words[0]
    address = session_of(path or ".", context.state)
    args = {"action": action, "name": name, "message": options.message}
    with address.connect() as session:
        answer = session.call("checkpoint", args)
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
            out.line(f"{row['checkpoint']}  {when}, base {short_id(row['base'])}{note}")
        if not rows:
            out.line("no checkpoints; workspacefs checkpoint makes one")
        return
    name = answer["checkpoint"]
    if action == "delete":
        out.line(f"deleted checkpoint {name}")
        return
    out.line(f"checkpoint {name} of session {answer['session']}")
    out.note(
        f"to go on from it: workspacefs fork {quote(mountpoint)} DIR --at {quote(str(name))}. "
        "It is on this machine alone"
    )
