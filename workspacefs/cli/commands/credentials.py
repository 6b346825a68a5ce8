"""`workspacefs credentials`: a mount goes on with new keys, without being mounted again."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from workspacefs.cli.context import Context
from workspacefs.client.locate import session_of
from workspacefs.config import store_environment

EXAMPLE = """\
  export AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… AWS_SESSION_TOKEN=…
  workspacefs credentials         # of the mount we are in"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = (
        "Give a mount the keys, profile and proxies that this environment names (AWS_*). For keys "
        "that expire; those of profiles and roles are renewed by themselves."
    )
    parser.add_argument(
        "path", metavar="PATH", nargs="?", help="a mountpoint, or anything inside (default: here)"
    )


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Hand them over; return when the store has answered to them."""
    address = session_of(options.path or ".", context.state)
    with address.connect() as connection:
        connection.call("credentials", {"environ": store_environment(context.environ)})
    context.out.line(f"the store answers to the new keys; {address.mountpoint} goes on with them")
    return {"session": address.session, "mountpoint": address.mountpoint}
