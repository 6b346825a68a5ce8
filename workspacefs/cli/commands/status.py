"""`workspacefs status`: what a session changed, grouped as a person thinks of it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Final

from workspacefs.cli.context import Context, Output, count_text, session_text, short_id, size_text
from workspacefs.cli.landing_text import tell_conflicts
from workspacefs.cli.policies import policy_text
from workspacefs.client.locate import path_inside, session_of

EXAMPLE = """\
  workspacefs status              # of the mount we are in
  workspacefs status /tmp/w/src   # only what lies below"""

_GROUPS: Final = (
    ("added", "A"),
    ("modified", "M"),
    ("deleted", "D"),
    ("renamed", "R"),
    ("type", "T"),
    ("metadata", "m"),
)
_TITLES: Final = {
    "type": "turned into something else",
    "metadata": "mode, owner, times or attributes only",
}
_SHOWN_MAX: Final = 200
"""Names of one group that a person is shown; --all shows all, and so does --json."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "path", metavar="PATH", nargs="?", help="a mountpoint, or anything inside (default: here)"
    )
    parser.add_argument("--all", action="store_true", help="name every change, however many")


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Ask the session and show its answer."""
    address = session_of(options.path or ".", context.state)
    under = path_inside(options.path, address.mountpoint) if options.path else ""
    with address.connect() as connection:
        answer = connection.call("status", {"under": under})
    _tell(answer, under, context.out, is_all=options.all)
    return {"mountpoint": address.mountpoint, **answer}


def _tell(answer: Mapping[str, object], under: str, out: Output, *, is_all: bool) -> None:
    where = f", below {under}" if under else ""
    out.line(
        f"{session_text(answer['session'], answer['branch'])}, "
        f"base {short_id(answer['base'])}{where}"
    )
    tell_store(answer.get("store"), out)
    if told := policy_text(answer.get("policy")):
        out.line(told)
    if answer.get("pause_put_off"):
        out.line(f"it was due to pause, and goes on: {answer['pause_put_off']}")
    rows, conflicts = answer["changes"], answer["conflicts"]
    assert isinstance(rows, list)
    assert isinstance(conflicts, list)
    if conflicts:
        out.line(f"{count_text(len(conflicts), 'conflict')} to be settled (workspacefs resolve):")
        tell_conflicts(conflicts, "ours", "theirs", out)
    if not rows:
        out.line("merged, not committed yet" if answer["is_merging"] else "nothing changed")
        return
    for kind, letter in _GROUPS:
        group = [row for row in rows if row["kind"] == kind]
        if group:
            _tell_group(kind, letter, group, out, is_all=is_all)
    counts = [
        f"{sum(row['kind'] == kind for row in rows):,} {kind}"
        for kind, _ in _GROUPS
        if any(row["kind"] == kind for row in rows)
    ]
    out.line(f"\n{count_text(len(rows), 'change')}: {', '.join(counts)}")
    _tell_stored(answer, out)
    out.note("next: workspacefs diff shows them, workspacefs commit -m WHY keeps them")


def _tell_stored(answer: Mapping[str, object], out: Output) -> None:
    """Say where uncommitted work is: whoever loses this machine wants to have known."""
    period = answer.get("autosave_s")
    if answer.get("is_lost"):
        out.line(
            "this session goes on in another place, so nothing can be changed here any more; to go "
            "on with what is here: workspacefs fork PATH DIR"
        )
    elif answer.get("is_stored"):
        out.line("all of it is in the store: workspacefs resume brings it back on any machine")
    elif isinstance(period, int | float):
        out.line(f"some of it is on this machine alone; it is stored every {period:g} s")
    else:
        out.line("it is on this machine alone until it is committed (mount --autosave stores it)")


def tell_store(store: object, out: Output) -> None:
    """Say it when the store does not answer; nothing when all is well."""
    if not isinstance(store, dict) or store.get("state") == "ok":
        return
    since_s, reason = store.get("since_s"), store.get("reason") or "no reason is known"
    silent = "does not answer"
    if isinstance(since_s, int | float):
        silent = f"has not answered for {since_s:,.0f} s"
    out.line(
        f"the store {silent} ({reason}): what is on this machine can be read and "
        "changed, other reads wait, then fail; commits need the store"
    )


def _tell_group(
    kind: str, letter: str, group: list[dict[str, object]], out: Output, *, is_all: bool
) -> None:
    out.line(f"\n{_TITLES.get(kind, kind)}")
    shown = group if is_all else group[:_SHOWN_MAX]
    for row in shown:
        end = "/" if row["is_dir"] else ""
        name = f"{row['from']}{end} -> {row['path']}" if row.get("from") else str(row["path"])
        out.line(f"  {letter} {name}{end}{_sizes(row)}")
    if len(shown) < len(group):
        out.line(f"  … and {len(group) - len(shown):,} more (--all names them)")


def _sizes(row: Mapping[str, object]) -> str:
    files = row.get("files")
    if isinstance(files, int):
        return f"  ({count_text(files, 'file')})"
    old, new = row.get("old_size"), row.get("new_size")
    if isinstance(old, int) and isinstance(new, int):
        return "" if old == new else f"  ({size_text(old)} -> {size_text(new)})"
    size = new if isinstance(new, int) else old
    return f"  ({size_text(size)})" if isinstance(size, int) and size else ""
