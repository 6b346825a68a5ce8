"""`workspacefs resolve`: a conflict is settled, and the next commit does not have it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from workspacefs.cli.context import Context, count_text
from workspacefs.cli.settling import Conflict, change
from workspacefs.client.locate import path_inside, session_of
from workspacefs.errors import NotFoundError, UsageError

EXAMPLE = """\
  workspacefs resolve src/a.py              # as it stands now, edited by hand
  workspacefs resolve src/a.py --theirs
  workspacefs resolve --all --ours
  workspacefs resolve notes.md --union
  workspacefs resolve src/a.py /tmp/merged.py"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "path",
        metavar="PATH",
        nargs="?",
        help="what the conflict is about, or a directory: then all that are in it",
    )
    parser.add_argument("file", metavar="FILE", nargs="?", help="what it shall hold")
    parser.add_argument("--all", action="store_true", help="all that are left (PATH: the mount)")
    parser.add_argument("-n", "--number", type=int, help="the one of that number")
    choice = parser.add_mutually_exclusive_group()
    for side, what in (
        ("ours", "what the session had"),
        ("theirs", "what was brought in"),
        ("base", "what both began from"),
        ("union", "the lines of both, ours first"),
        ("as-is", "as it stands, also with lines that look like conflict markers"),
    ):
        choice.add_argument(
            f"--{side}", dest="choice", action="store_const", const=side, default="", help=what
        )


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Change the files, then have the session take note."""
    if options.path is None and not options.all and options.number is None:
        raise UsageError("name a PATH, a --number, or --all", kind="usage.arguments")
    if options.file is not None and options.choice:
        raise UsageError(f"both FILE and --{options.choice}; give one", kind="usage.arguments")
    address = session_of(options.path or ".", context.state)
    with address.connect() as connection:
        subpath = str(connection.call("info")["subpath"] or "")
        rows = connection.call("conflicts")["conflicts"]
        assert isinstance(rows, list)
        chosen = _chosen(rows, options, address.mountpoint, subpath)
        if options.file is not None and len(chosen) > 1:
            raise UsageError(f"{options.path} has several conflicts; name one with --number")
        settled = []
        for row in chosen:
            conflict = Conflict(row, address.mountpoint, subpath)
            change(conflict, "file" if options.file is not None else options.choice, options.file)
            answer = connection.call("settle", {"numbers": [conflict.number]})
            settled.append(row)
            context.out.line(f"settled: {conflict.path}")
    left = answer["left"]
    assert isinstance(left, int)
    context.out.note(
        f"{count_text(left, 'conflict')} left"
        if left
        else "no conflicts left; workspacefs commit -m WHY keeps the result"
    )
    return {
        "session": address.session,
        "mountpoint": address.mountpoint,
        "settled": settled,
        "left": left,
    }


def _chosen(
    rows: list[dict[str, object]], options: argparse.Namespace, mountpoint: str, subpath: str
) -> list[dict[str, object]]:
    if options.number is not None:
        chosen = [row for row in rows if row["number"] == options.number]
        what = f"conflict {options.number}"
    elif options.all:
        chosen, what = rows, "a conflict"
    else:
        inside = "/".join(
            part for part in (subpath.strip("/"), path_inside(options.path, mountpoint)) if part
        )
        chosen = [row for row in rows if _is_about(row, inside)]
        what = f"a conflict about {inside or mountpoint}"
    if not chosen:
        names = ", ".join(str(row["path"]) for row in rows[:5])
        left = f"those left are about: {names}" if names else "none is left"
        raise NotFoundError(f"there is not {what}; {left}", kind="conflict.absent")
    return chosen


def _is_about(row: Mapping[str, object], inside: str) -> bool:
    return inside in ("", row["beside"]) or f"{row['path']}/".startswith(inside + "/")
