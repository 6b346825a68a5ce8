"""`workspacefs merge`: a session's commits land on a branch, whatever landed there meanwhile."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from workspacefs.cli.context import Context, short_id
from workspacefs.cli.landing_text import exit_code_of, tell_landing
from workspacefs.cli.main import EXIT_MEMBER
from workspacefs.cli.parser import add_provenance_flags, given_provenance
from workspacefs.client.locate import session_of

EXAMPLE = """\
  workspacefs merge --into main
  workspacefs merge --into main ./w --agent coder-1 --json"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "path", metavar="PATH", nargs="?", help="a mountpoint, or anything inside (default: here)"
    )
    parser.add_argument(
        "--into",
        metavar="BRANCH",
        required=True,
        help="land what this session has committed on this branch, merged with what it has moved "
        "to; with conflicts nothing lands, and the exit code is 5",
    )
    add_provenance_flags(parser, meta=False)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Ask the session to land, and tell what came of it."""
    address = session_of(options.path or ".", context.state)
    args = {"into": options.into, **given_provenance(options, context.environ)}
    with address.connect() as connection:
        answer = connection.call("land", args)
    out = context.out
    if answer["landed_on"] and not answer["is_moved"]:
        out.line(f"{options.into} is at {short_id(answer['branch_commit'])} already")
    else:
        tell_landing(answer, address.session, options.into, out)
    if answer["has_changes"]:
        out.note(
            "what is not committed yet stays in the session; workspacefs commit -m WHY --into "
            f"{options.into} lands it too"
        )
    return {
        "session": address.session,
        "mountpoint": address.mountpoint,
        **answer,
        EXIT_MEMBER: exit_code_of(answer),
    }
