"""What a merge brought into a session, as a person reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workspacefs.cli.context import Output, count_text, short_id
from workspacefs.cli.landing_text import tell_conflicts


def tell_merge(answer: Mapping[str, object], title: str, out: Output) -> None:
    """Print what came of bringing `title` into a session."""
    session = str(answer["session"])
    if answer["is_current"]:
        out.line(f"{session} has all of {title} already")
        return
    counts, conflicts = answer["counts"], answer["conflicts"]
    assert isinstance(counts, Mapping)
    assert isinstance(conflicts, Sequence)
    changed = ", ".join(f"{number:,} {word}" for word, number in counts.items() if number)
    what = f" ({changed})" if changed else ""
    if answer["is_forward"]:
        out.line(f"{session} is at {short_id(answer['commit'])} now, as {title}{what}")
    elif answer["commit"]:
        out.line(f"{title} is in {session} now{what}: commit {short_id(answer['commit'])}")
    else:
        out.line(f"{title} is in {session} now{what}, not committed yet")
    kept_open = answer["kept_open"]
    if isinstance(kept_open, int) and kept_open:
        out.line(
            f"{count_text(kept_open, 'file')} that it changed are open: who has them open goes on "
            "with what was there"
        )
    tell_conflicts(conflicts, session, title, out)
    if conflicts:
        out.note(
            f"{count_text(len(conflicts), 'conflict')} to be settled: edit the files, then "
            "workspacefs resolve PATH; or take one side with --ours or --theirs. All three "
            "versions are in .workspacefs/conflicts"
        )
    elif not answer["commit"] and not answer["is_forward"]:
        out.note("next: workspacefs commit -m WHY keeps it, together with your own changes")
    out.note(f"to take it back: workspacefs restore {answer['safety']}")
