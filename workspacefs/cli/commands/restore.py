"""`workspacefs restore`: have a mount show an earlier state, and keep what it showed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from shlex import quote

from workspacefs.cli.context import Context, count_text, size_text
from workspacefs.cli.parser import add_progress_flag
from workspacefs.cli.progress import Bar, show_files
from workspacefs.client.locate import session_of
from workspacefs.errors import UsageError

EXAMPLE = """\
  workspacefs restore before-refactoring       # a checkpoint of the session that one is in
  workspacefs restore HEAD                     # its last commit: all that is not committed goes
  workspacefs restore /tmp/w main~3
  workspacefs undo                             # takes the restore back"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "words",
        metavar="[PATH] CHECKPOINT|REV",
        nargs="+",
        help="session (default: the working directory), and what to go back to: a checkpoint, a "
        "revision, or HEAD",
    )
    add_progress_flag(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Restore, and return when every path was looked at."""
    if len(options.words) > 2:
        raise UsageError("it is: restore [PATH] CHECKPOINT|REV", kind="usage.arguments")
    *path, target = options.words
    address = session_of(path[0] if path else ".", context.state)
    with (
        Bar("verify", unit="files", is_shown=options.progress) as bar,
        address.connect() as session,
    ):
        answer = session.call(
            "restore", {"target": target}, on_progress=lambda facts: show_files(bar, facts)
        )
    tell_restored(answer, address.mountpoint, context)
    return {"mountpoint": address.mountpoint, **answer}


def tell_restored(answer: Mapping[str, object], mountpoint: str, context: Context) -> None:
    """Print the receipt."""
    out, receipt = context.out, answer["receipt"]
    assert isinstance(receipt, dict)
    out.line(f"session {answer['session']} is at {answer['restored']}")
    out.line(
        f"  verified: {count_text(receipt['files'], 'file')} of {size_text(receipt['bytes'])}, "
        f"{count_text(receipt['directories'], 'directory', 'directories')}, "
        f"{count_text(receipt['symlinks'], 'symbolic link')}; {receipt['removed']} removed"
    )
    if receipt["kept_open"]:
        out.line(
            f"  {count_text(receipt['kept_open'], 'file')} had other content and are open: who has "
            "them open goes on with what was there"
        )
    out.note(
        f"what was here until now is checkpoint {answer['safety']}; to take this back: "
        f"workspacefs undo {quote(mountpoint)}"
    )
