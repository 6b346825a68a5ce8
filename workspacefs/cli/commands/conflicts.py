"""`workspacefs conflicts`: what two sides did that is left to be settled."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from workspacefs.cli.context import Context
from workspacefs.cli.landing_text import tell_conflicts
from workspacefs.client.locate import path_inside, session_of

EXAMPLE = """\
  workspacefs conflicts
  workspacefs conflicts src --json
  diff .workspacefs/conflicts/1.ours/a.py .workspacefs/conflicts/1.theirs/a.py"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "path",
        metavar="PATH",
        nargs="?",
        help="a mountpoint, or anything inside: then only what is there (default: here)",
    )


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """List them, with the numbers under which their versions are in .workspacefs/conflicts."""
    address = session_of(options.path or ".", context.state)
    under = path_inside(options.path, address.mountpoint) if options.path else ""
    with address.connect() as connection:
        answer = connection.call("conflicts")
    rows = answer["conflicts"]
    assert isinstance(rows, list)
    shown = [row for row in rows if not under or _is_below(row["path"], under)]
    if shown:
        tell_conflicts(shown, "ours", "theirs", context.out)
        context.out.note(
            "the versions of number N are in .workspacefs/conflicts/N.base, N.ours and N.theirs; "
            "workspacefs resolve settles"
        )
    else:
        context.out.line("no conflicts")
    return {"mountpoint": address.mountpoint, **answer, "conflicts": shown}


def _is_below(path: str, under: str) -> bool:
    return path == under or path.startswith(under + "/")
