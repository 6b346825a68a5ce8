"""`workspacefs revert`: what some commits changed is taken back, and the rest stays."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from workspacefs.cli.context import Context
from workspacefs.cli.landing_text import exit_code_of
from workspacefs.cli.main import EXIT_MEMBER
from workspacefs.cli.merge_text import tell_merge
from workspacefs.client.locate import session_of
from workspacefs.config import load_commit_defaults
from workspacefs.errors import UsageError

EXAMPLE = """\
  workspacefs revert 3f2a91c0
  workspacefs revert ./w --run r-42 -m 'r-42 used the wrong schema'
  workspacefs revert --session coder-3"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "words",
        metavar="[PATH] REV",
        nargs="*",
        help="take back what this commit changed, in the session of PATH (default: here)",
    )
    parser.add_argument("--run", metavar="R", help="all commits of this run in the history")
    parser.add_argument("--session", metavar="S", help="all that were made in this session")
    parser.add_argument(
        "-m",
        "--message",
        help="why; of the commit that is made (who makes it is said by the environment: see "
        "workspacefs commit --help)",
    )


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Ask the session, and tell what came of it."""
    whose = {
        name: value
        for name, value in (("of_run", options.run), ("of_session", options.session))
        if value
    }
    words = list(options.words)
    rev = words.pop() if words and not whose else ""
    if len(words) > 1 or bool(rev) == bool(whose):
        raise UsageError(
            "it is: revert [PATH] REV, or revert [PATH] --run R or --session S",
            kind="usage.arguments",
        )
    address = session_of(words[0] if words else ".", context.state)
    args = {
        "rev": rev,
        **whose,
        "message": options.message or "",
        **load_commit_defaults(context.environ)._asdict(),
    }
    with address.connect() as connection:
        answer = connection.call("revert", args)
    tell_merge(answer, str(answer["from"]), context.out)
    return {"mountpoint": address.mountpoint, **answer, EXIT_MEMBER: exit_code_of(answer)}
