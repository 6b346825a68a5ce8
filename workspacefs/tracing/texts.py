"""Texts by line, and which lines of one stand in another. Knows nothing of commits.

How lines end is an attribute of the whole text, as it is for merges: it tells no two lines apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from workspacefs.merge.matching import LineMatcher

_STEPS_BYTES: Final = (4096, 64, 1)
"""Texts are compared by so many bytes at a time, as long as they are the same."""


class Block(NamedTuple):
    """Lines that stand in two texts; lines are counted from 0."""

    start: int
    other_start: int
    lines: int


def normal_text(data: bytes) -> bytes:
    """Return a text each of whose lines ends with a newline alone, the last one too."""
    if b"\r\n" in data:
        data = data.replace(b"\r\n", b"\n")
    return data + b"\n" if data and not data.endswith(b"\n") else data


def lines_of(text: bytes) -> list[bytes]:
    """Return the lines of a normal text, without their ends."""
    return text.split(b"\n")[:-1]


def iter_common_lines(text: bytes, other: bytes) -> Iterator[Block]:
    """Yield the runs of lines that two normal texts have in common, in order.

    What is the same at both ends is found without looking at single lines, so that a small change
    of a large text costs little.
    """
    head = _common_head(text, other)
    tail = _common_tail(text[head:], other[head:])
    end, other_end = len(text) - tail, len(other) - tail
    at = text.count(b"\n", 0, head)
    if head:
        yield Block(0, 0, at)
    middle, other_middle = text[head:end], other[head:other_end]
    if middle and other_middle:
        ours, theirs = lines_of(middle), lines_of(other_middle)
        blocks = _blocks_in_order(ours, theirs)
        if blocks is None:
            blocks = LineMatcher(ours, theirs).get_matching_blocks()[:-1]
        for start, other_start, lines in blocks:
            yield Block(at + start, at + other_start, lines)
    if tail:
        yield Block(
            at + middle.count(b"\n"), at + other_middle.count(b"\n"), text.count(b"\n", end)
        )


def _blocks_in_order(lines: list[bytes], others: list[bytes]) -> list[tuple[int, int, int]] | None:
    """Return all common lines, if what is left of both without those that only one has is the same;
    else None.

    No line that both have is left out then, so no other match is better; and the work is done by
    whole slices, which takes a tenth of the time of matching line by line.
    """
    stops = [*_places_outside(lines, others), len(lines)]
    other_stops = [*_places_outside(others, lines), len(others)]
    blocks: list[tuple[int, int, int]] = []
    at = other_at = number = other_number = 0
    while True:
        while at == stops[number] and at < len(lines):
            at, number = at + 1, number + 1
        while other_at == other_stops[other_number] and other_at < len(others):
            other_at, other_number = other_at + 1, other_number + 1
        size = min(stops[number] - at, other_stops[other_number] - other_at)
        if lines[at : at + size] != others[other_at : other_at + size]:
            return None
        if not size:
            return blocks if (at, other_at) == (len(lines), len(others)) else None
        blocks.append((at, other_at, size))
        at, other_at = at + size, other_at + size


def _places_outside(lines: list[bytes], others: list[bytes]) -> list[int]:
    """Return where the lines are that the others do not have, in order."""
    wanted = set(lines).difference(others)
    return [at for at, line in enumerate(lines) if line in wanted] if wanted else []


def _common_head(text: bytes, other: bytes) -> int:
    """Return how many bytes of whole lines both begin with."""
    shorter = min(len(text), len(other))
    at = 0
    for step in _STEPS_BYTES:
        while at + step <= shorter and text[at : at + step] == other[at : at + step]:
            at += step
    return text.rfind(b"\n", 0, at) + 1


def _common_tail(text: bytes, other: bytes) -> int:
    """Return how many bytes of whole lines both end with."""
    shorter, end, other_end = min(len(text), len(other)), len(text), len(other)
    size = 0
    for step in _STEPS_BYTES:
        while (
            size + step <= shorter
            and text[end - size - step : end - size]
            == other[other_end - size - step : other_end - size]
        ):
            size += step
    if _begins_line(text, end - size) and _begins_line(other, other_end - size):
        return size
    return end - text.index(b"\n", end - size) - 1


def _begins_line(text: bytes, at: int) -> bool:
    return at == 0 or text[at - 1 : at] == b"\n"
