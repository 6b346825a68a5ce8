"""Three-way merge of text by line. Knows bytes only: neither files nor trees.

How lines end, and whether the last one does, are merged as attributes of the whole text; so one
side may convert all line endings while the other edits. A text whose lines end in different ways is
merged byte for byte, line by line. White space is content.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from workspacefs.merge.endings import Ending, find_ending, merge_endings
from workspacefs.merge.matching import LineMatcher

BINARY_HEAD_BYTES: Final = 8000
"""A NUL in so many first bytes makes a file binary."""
TEXT_MAX_BYTES: Final = 16 * 1024 * 1024
"""Larger files are taken for binary ones, unread."""
LINES_MAX: Final = 1_000_000
"""Texts of more lines are taken for binary: each line costs about 100 bytes of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What the sides are called: behind conflict markers, and in names of what steps aside."""

    ours: str = "ours"
    theirs: str = "theirs"
    base: str = "base"


DEFAULT_LABELS: Final = Labels()


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedText:
    """What three texts became."""

    is_clean: bool
    marked: bytes
    """With conflict markers where both sides changed the same lines; the merge itself if clean."""
    union: bytes
    """Ours, then theirs, where both sides changed the same lines."""
    ends_in_marker: bool = False
    """Whether the last line of `marked` is a conflict marker."""


def is_text(data: bytes) -> bool:
    """Tell whether a file with these bytes can be merged by line."""
    return (
        len(data) <= TEXT_MAX_BYTES
        and b"\0" not in data[:BINARY_HEAD_BYTES]
        and data.count(b"\n") < LINES_MAX
    )


def merge_lines(base: bytes, ours: bytes, theirs: bytes, labels: Labels) -> MergedText:
    """Merge the changes that both sides made to `base`.

    What both changed alike is there once. Changes that touch each other conflict, as in git.
    Symmetrical: with the sides swapped, a clean merge gives the same bytes, and else the same lines
    conflict.

    Args:
        base: What both began from; empty if there is nothing of the kind.
        ours: Text of which `is_text` says yes, like the others.
        theirs: The other side's.
        labels: For the markers.
    """
    texts = (base, ours, theirs)
    ending = merge_endings(*map(find_ending, texts))
    if ending is Ending.MIXED:
        return _merge(_Lines(*map(_split, texts)), labels)
    is_ended = _merge_ended(*map(_is_ended, texts))
    plain = [_split(text.replace(b"\r\n", b"\n"), add_end=True) for text in texts]
    merged = _merge(_Lines(*plain), labels)
    return MergedText(
        is_clean=merged.is_clean,
        marked=_finish(merged.marked, ending, is_ended=is_ended or merged.ends_in_marker),
        union=_finish(merged.union, ending, is_ended=is_ended),
        ends_in_marker=merged.ends_in_marker,
    )


@dataclass(frozen=True, slots=True)
class _Lines:
    base: list[bytes]
    ours: list[bytes]
    theirs: list[bytes]


def _merge(lines: _Lines, labels: Labels) -> MergedText:
    marked: list[bytes] = []
    union: list[bytes] = []
    conflicts = 0
    is_settled = True
    for group in _iter_groups(lines):
        is_settled = len(group) == 1
        if is_settled:
            marked += group[0]
            union += group[0]
        else:
            base, ours, theirs = group
            conflicts += 1
            marked += _iter_marked(base, ours, theirs, labels)
            union += [*(_ended(ours) if theirs else ours), *theirs]
    return MergedText(
        is_clean=conflicts == 0,
        marked=b"".join(marked),
        union=b"".join(union),
        ends_in_marker=not is_settled,
    )


def _iter_groups(lines: _Lines) -> Iterator[tuple[Sequence[bytes], ...]]:
    """Yield (lines,) that are settled, and (base, ours, theirs) lines that conflict, in order.

    Source: S. Khanna, K. Kunal, B. Pierce, "A Formal Investigation of Diff3", FSTTCS 2007,
    section 2: what stands between two runs that all three texts have is settled by itself.
    """
    at = ours_at = theirs_at = 0
    for start, ours_start, theirs_start, length in _iter_stable(lines):
        yield from _settle(
            lines.base[at:start],
            lines.ours[ours_at:ours_start],
            lines.theirs[theirs_at:theirs_start],
        )
        if length:
            yield (lines.base[start : start + length],)
        at, ours_at, theirs_at = start + length, ours_start + length, theirs_start + length


def _iter_stable(lines: _Lines) -> Iterator[tuple[int, int, int, int]]:
    """Yield (start in base, in ours, in theirs, length) of runs that all have, and last the ends
    with length 0.
    """
    ours = iter(LineMatcher(lines.base, lines.ours).get_matching_blocks())
    theirs = iter(LineMatcher(lines.base, lines.theirs).get_matching_blocks())
    left, right = next(ours, None), next(theirs, None)
    while left is not None and right is not None:
        low = max(left[0], right[0])
        left_end, right_end = left[0] + left[2], right[0] + right[2]
        length = min(left_end, right_end) - low
        if length > 0:
            yield low, left[1] + low - left[0], right[1] + low - right[0], length
        if left_end < right_end:
            left = next(ours, None)
        else:
            right = next(theirs, None)
    yield len(lines.base), len(lines.ours), len(lines.theirs), 0


def _settle(
    base: Sequence[bytes], ours: Sequence[bytes], theirs: Sequence[bytes]
) -> Iterator[tuple[Sequence[bytes], ...]]:
    if ours == theirs or theirs == base:
        yield (ours,)
    elif ours == base:
        yield (theirs,)
    else:
        yield from _refined(base, ours, theirs)


def _refined(
    base: Sequence[bytes], ours: Sequence[bytes], theirs: Sequence[bytes]
) -> Iterator[tuple[Sequence[bytes], ...]]:
    """Take lines that both sides added alike out of a conflict.

    Only where the base has nothing: else the reader could not tell which of its lines went where.
    """
    if base:
        yield base, ours, theirs
        return
    at = other_at = 0
    for start, other_start, length in LineMatcher(ours, theirs).get_matching_blocks():
        left, right = ours[at:start], theirs[other_at:other_start]
        if left or right:
            yield base, left, right
        if length:
            yield (ours[start : start + length],)
        at, other_at = start + length, other_start + length


def _iter_marked(
    base: Sequence[bytes], ours: Sequence[bytes], theirs: Sequence[bytes], labels: Labels
) -> Iterator[bytes]:
    yield _marker(b"<<<<<<<", labels.ours)
    yield from _ended(ours)
    yield _marker(b"|||||||", labels.base)
    yield from _ended(base)
    yield b"=======\n"
    yield from _ended(theirs)
    yield _marker(b">>>>>>>", labels.theirs)


def _marker(sign: bytes, label: str) -> bytes:
    return sign + b" " + " ".join(label.split()).encode("utf-8", "surrogateescape") + b"\n"


def _ended(lines: Sequence[bytes]) -> Sequence[bytes]:
    """Return lines of which the last one has an end, so that another can follow."""
    if lines and not lines[-1].endswith(b"\n"):
        return [*lines[:-1], lines[-1] + b"\n"]
    return lines


def _split(text: bytes, *, add_end: bool = False) -> list[bytes]:
    """Return the lines with their ends."""
    lines = text.split(b"\n")
    last = lines.pop()
    ended = [line + b"\n" for line in lines]
    if last:
        ended.append(last + b"\n" if add_end else last)
    return ended


def _is_ended(text: bytes) -> bool | None:
    """Tell whether the last line has an end; None: there is no line."""
    return text.endswith(b"\n") if text else None


def _merge_ended(base: bool | None, ours: bool | None, theirs: bool | None) -> bool:
    if ours is None or theirs is None:
        other = theirs if ours is None else ours
        return bool(base if other is None else other)
    if ours == theirs:
        return ours
    return base is None or not base  # just one side differs from the base


def _finish(text: bytes, ending: Ending, *, is_ended: bool) -> bytes:
    if not is_ended:
        text = text.removesuffix(b"\n")
    return text.replace(b"\n", b"\r\n") if ending is Ending.CRLF else text
