"""`workspacefs pause`: put a session away, to go on with it later or on another machine."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from shlex import quote

from workspacefs.cli.context import Context
from workspacefs.cli.parser import add_progress_flag
from workspacefs.cli.progress import Bar, show_files
from workspacefs.client.ending import find_registered, wait_until_gone
from workspacefs.client.locate import session_of

EXAMPLE = """\
  workspacefs pause /tmp/w
  workspacefs resume s3://bucket/shop fix-login /tmp/w     # anywhere"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "path", metavar="PATH", nargs="?", help="a mountpoint, or anything inside (default: here)"
    )
    parser.add_argument(
        "--drop-checkpoints",
        action="store_true",
        help="pause though the session has checkpoints, which are lost with this machine's copy",
    )
    add_progress_flag(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Store all that is not committed, unmount, and free what the session took here."""
    address = session_of(options.path or ".", context.state)
    # We may have been started inside the mount, and must not be what keeps it busy.
    os.chdir("/")
    registered = find_registered(address.mountpoint, context.state)
    with (
        Bar("pause", unit="files", is_shown=options.progress) as bar,
        address.connect() as connection,
    ):
        args = {"drops_checkpoints": options.drop_checkpoints}
        answer = connection.call("pause", args, on_progress=lambda facts: show_files(bar, facts))
    wait_until_gone(address, registered, is_lazy=False)
    what = "with its uncommitted work" if answer.get("saved") else "all of it committed"
    context.out.line(f"paused session {address.session}, {what}; nothing of it is left here")
    context.out.note(
        f"to go on, on any machine: workspacefs resume {quote(address.store_url)} "
        f"{address.session} DIR"
    )
    return {"mountpoint": address.mountpoint, **answer}
