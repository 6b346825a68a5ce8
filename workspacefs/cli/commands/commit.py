"""`workspacefs commit`: a session's changes become a commit, with who made them and why."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from workspacefs.cli.context import Context, Output, short_id
from workspacefs.cli.parser import add_progress_flag, key_value
from workspacefs.cli.progress import Bar
from workspacefs.client.locate import session_of
from workspacefs.config import load_commit_defaults

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
        help="then land it on this branch; exit code 5 when the branch has moved",
    )
    for flag, what in (
        ("agent", "who made the changes"),
        ("run", "in which run of it"),
        ("tool-call", "in which call of a tool"),
        ("model", "with which model"),
    ):
        variable = "WORKSPACEFS_" + flag.replace("-", "_").upper()
        parser.add_argument(f"--{flag}", metavar="NAME", help=f"{what} (default: ${variable})")
    parser.add_argument(
        "--meta",
        metavar="KEY=VALUE",
        action="append",
        type=key_value,
        default=[],
        help="anything else worth keeping; may be given again",
    )
    add_progress_flag(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Ask the session to commit, and tell what came of it."""
    address = session_of(options.path or ".", context.state)
    defaults = load_commit_defaults(context.environ)
    args = {
        "message": options.message,
        "into": options.into,
        "meta": dict(options.meta),
        **{
            name: getattr(options, name) if getattr(options, name) is not None else default
            for name, default in defaults._asdict().items()
        },
    }
    with (
        Bar("commit", unit="files", is_shown=options.progress) as bar,
        address.connect() as connection,
    ):
        answer = connection.call("commit", args, on_progress=lambda facts: _show(bar, facts))
    _tell(answer, address.session, context.out)
    return {"session": address.session, "mountpoint": address.mountpoint, **answer}


def _show(bar: Bar, facts: Mapping[str, object]) -> None:
    done, total = facts.get("files"), facts.get("files_total")
    if isinstance(done, int):
        bar.update(done, total if isinstance(total, int) else None)


def _tell(answer: Mapping[str, object], session: str, out: Output) -> None:
    commit, landed = answer.get("commit"), answer.get("landed_on")
    if not commit:
        out.line("nothing to commit: everything is as in the base commit")
        return
    counts = answer.get("counts")
    told = (
        ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        if isinstance(counts, dict)
        else ""
    )
    out.line(f"commit {short_id(commit)} on session {session}" + (f": {told}" if told else ""))
    if landed:
        out.line(f"landed on {landed}")
    else:
        out.note("it is on the session's own ref; workspacefs commit --into main lands it")
