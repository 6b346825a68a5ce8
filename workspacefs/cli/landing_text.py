"""What a landing did, or what stands against it, as a person reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from workspacefs.cli.context import Output, count_text, short_id
from workspacefs.errors import ExitCode

_WHAT: Final = {
    "content": "both changed the same lines",
    "add/add": "each added something else under this name",
    "modify/delete": "one changed what the other removed",
    "rename/rename": "each moved it to another place",
    "rename/delete": "one moved what the other removed",
    "directory/file": "a directory here, something else there",
    "kind": "each made another kind of file of it",
    "mode": "both changed its mode, owner or attributes",
    "symlink": "both changed where it leads",
    "binary": "both changed it, and it cannot be merged by line",
}
_SHOWN_MAX: Final = 50


def exit_code_of(answer: Mapping[str, object]) -> int:
    """Return what the command ends with: 5 if there are conflicts."""
    return int(ExitCode.MOVED if answer.get("conflicts") else ExitCode.OK)


def tell_landing(answer: Mapping[str, object], session: str, into: str, out: Output) -> None:
    """Print where it landed, or every path that stands against it."""
    conflicts = answer.get("conflicts")
    if isinstance(conflicts, Sequence) and conflicts:
        tell_conflicts(conflicts, session, into, out)
        out.note(
            f"nothing landed: {count_text(len(conflicts), 'conflict')} with {into} (at "
            f"{short_id(answer.get('branch_commit'))}). The commit is safe on session {session}. "
            f"workspacefs merge --from {into} brings them into your files, to be settled there "
            "with workspacefs resolve; then commit, and land again"
        )
        return
    if answer.get("landed_on"):
        how = ", merged" if answer.get("is_merge") else ""
        out.line(f"landed on {into}{how}: {into} is at {short_id(answer.get('branch_commit'))}")


def tell_conflicts(conflicts: Sequence[object], ours: str, theirs: str, out: Output) -> None:
    """Print a line for each conflict."""
    for conflict in conflicts[:_SHOWN_MAX]:
        assert isinstance(conflict, Mapping)
        kind, path = str(conflict["kind"]), str(conflict["path"])
        number = f"{conflict['number']:>3} " if "number" in conflict else ""
        out.line(
            f"{number}{kind:<15} {path}   {_WHAT.get(kind, '')}{_sides(conflict, ours, theirs)}"
        )
    if len(conflicts) > _SHOWN_MAX:
        out.line(f"… and {len(conflicts) - _SHOWN_MAX:,} more; --json lists all")


def _sides(conflict: Mapping[str, object], ours: str, theirs: str) -> str:
    """Return which side did what, where the kind does not say it."""
    kind, mine, other = conflict["kind"], conflict["ours"], conflict["theirs"]
    if kind in ("modify/delete", "rename/delete"):
        return f" ({theirs if mine else ours} removed it)"
    if kind == "rename/rename" and isinstance(mine, Mapping) and isinstance(other, Mapping):
        return f" ({ours}: {mine['path']}; {theirs}: {other['path']})"
    return ""
