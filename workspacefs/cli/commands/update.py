"""`workspacefs update`: what landed on a session's branch comes into the session."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from workspacefs.cli.commands.merge import bring_in
from workspacefs.cli.context import Context
from workspacefs.cli.parser import add_provenance_flags

EXAMPLE = """\
  workspacefs update
  workspacefs update ./w --json"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "path", metavar="PATH", nargs="?", help="a mountpoint, or anything inside (default: here)"
    )
    parser.add_argument("-m", "--message", help="of the commit, if one is made")
    add_provenance_flags(parser, meta=False)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Do what `merge --from` does with the session's own branch."""
    return bring_in(options, "", context)
