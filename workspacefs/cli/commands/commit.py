"""`workspacefs commit`: a session's changes become a commit, with who made them and why."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from workspacefs.cli.context import Context, Output, short_id
from workspacefs.cli.landing_text import exit_code_of, tell_landing
from workspacefs.cli.main import EXIT_MEMBER
from workspacefs.cli.parser import add_progress_flag, add_provenance_flags, given_provenance
from workspacefs.cli.progress import Bar, show_files
from workspacefs.client.locate import session_of

EXAMPLE = """\
  workspacefs commit -m "fix the login form"
  workspacefs commit -m "fix the login form" --into main --agent coder-1 --meta ticket=42"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "path", metavar="PATH", nargs="?", help="a mountpoint, or anything inside (default: here)"
    )
    parser.add_argument("-m", "--message", required=True, help="why, in a line or more")
    parser.add_argument(
        "--into",
        metavar="BRANCH",
        help="then land it on this branch, merged with what that has moved to; with conflicts "
        "nothing lands, and the exit code is 5",
    )
    add_provenance_flags(parser)
    add_progress_flag(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Ask the session to commit, and tell what came of it."""
    address = session_of(options.path or ".", context.state)
    args = {
        "message": options.message,
        "into": options.into,
        "meta": dict(options.meta),
        **given_provenance(options, context.environ),
    }
    with (
        Bar("commit", unit="files", is_shown=options.progress) as bar,
        address.connect() as connection,
    ):
        answer = connection.call("commit", args, on_progress=lambda facts: show_files(bar, facts))
    _tell(answer, address.session, options.into, context.out)
    return {
        "session": address.session,
        "mountpoint": address.mountpoint,
        **answer,
        EXIT_MEMBER: exit_code_of(answer),
    }


def _tell(answer: Mapping[str, object], session: str, into: str | None, out: Output) -> None:
    commit = answer.get("commit")
    if not commit:
        out.line("nothing to commit: everything is as in the base commit")
        return
    counts = answer.get("counts")
    told = (
        ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        if isinstance(counts, dict)
        else ""
    )
    if answer.get("is_new", True):
        out.line(f"commit {short_id(commit)} on session {session}" + (f": {told}" if told else ""))
    else:
        out.line(f"nothing new to commit; the session is at {short_id(commit)}")
    if into:
        tell_landing(answer, session, into, out)
    else:
        out.note("it is on the session's own ref; workspacefs commit -m WHY --into main lands it")
