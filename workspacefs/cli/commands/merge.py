"""`workspacefs merge`: a session's commits land on a branch, or those of others come into it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from workspacefs.cli.context import Context, short_id
from workspacefs.cli.landing_text import exit_code_of, tell_landing
from workspacefs.cli.main import EXIT_MEMBER
from workspacefs.cli.merge_text import tell_merge
from workspacefs.cli.parser import add_provenance_flags, given_provenance
from workspacefs.client.locate import session_of
from workspacefs.errors import UsageError

EXAMPLE = """\
  workspacefs merge --into main                 # land what this session has committed
  workspacefs merge --from other-session        # bring what that one has committed in here
  workspacefs merge --from main ./w --json"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "path", metavar="PATH", nargs="?", help="a mountpoint, or anything inside (default: here)"
    )
    direction = parser.add_mutually_exclusive_group(required=True)
    direction.add_argument(
        "--into",
        metavar="BRANCH",
        help="land what this session has committed on this branch, merged with what it has moved "
        "to; with conflicts nothing lands, and the exit code is 5",
    )
    direction.add_argument(
        "--from",
        metavar="REV",
        dest="source",
        help="bring what a branch, session, tag or commit has into this session, uncommitted work "
        "or not, while programs go on; conflicts are kept to be settled, and the exit code is 5",
    )
    parser.add_argument("-m", "--message", help="of the commit that --from makes")
    add_provenance_flags(parser, meta=False)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Ask the session, and tell what came of it."""
    if options.source is not None:
        return bring_in(options, options.source, context)
    if options.message is not None:
        raise UsageError("-m goes with --from: a landing has the message of its commit")
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


def bring_in(options: argparse.Namespace, source: str, context: Context) -> Mapping[str, object]:
    """Bring commits into the session that `options` name; "": those of its own branch."""
    address = session_of(options.path or ".", context.state)
    args = {
        "from": source,
        "message": options.message or "",
        **given_provenance(options, context.environ),
    }
    with address.connect() as connection:
        answer = connection.call("merge_from", args)
    tell_merge(answer, str(answer["from"]), context.out)
    return {"mountpoint": address.mountpoint, **answer, EXIT_MEMBER: exit_code_of(answer)}
