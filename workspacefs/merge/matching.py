"""Which lines of two texts are the same ones. Knows nothing of merging.

Lines that occur once in both texts are taken first, in the longest order that both have (patience
diff); between them a shortest edit script is looked for, which also finds its way through lines
that are all alike. Work is bounded: what is too far apart stays unmatched.

Source: E. Myers, "An O(ND) Difference Algorithm and Its Variations", Algorithmica 1986, section 2.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

_EDITS_MAX: Final = 500
"""A longest edit script between two matched lines; it takes memory by the square."""
_STEPS_MAX: Final = 4_000_000
"""Lines compared for one pair of texts, besides 16 for each line: about a second."""


class Span(NamedTuple):
    """A part of each of two texts."""

    low: int
    high: int
    other_low: int
    other_high: int


class LineMatcher:
    """Matches the lines of `a` and `b`."""

    def __init__(self, a: Sequence[bytes], b: Sequence[bytes]) -> None:
        self._a = a
        self._b = b
        self._pairs: list[tuple[int, int, int]] = []
        self._steps_left = _STEPS_MAX + 16 * (len(a) + len(b))

    def get_matching_blocks(self) -> list[tuple[int, int, int]]:
        """Return (start in a, start in b, lines) in order, and last (len(a), len(b), 0)."""
        spans = [Span(0, len(self._a), 0, len(self._b))]
        while spans:
            span = self._strip(spans.pop())
            if span.low == span.high or span.other_low == span.other_high:
                continue
            self._steps_left -= span.high - span.low + span.other_high - span.other_low
            if self._steps_left <= 0:
                continue
            anchors = self._anchors(span)
            if anchors:
                spans += self._between(span, anchors)
            else:
                self._match_edits(span)
        return _joined(self._pairs, len(self._a), len(self._b))

    def _strip(self, span: Span) -> Span:
        """Match what is the same at both ends; return what lies between."""
        low, high, other_low, other_high = span
        a, b = self._a, self._b
        shorter = min(high - low, other_high - other_low)
        head = 0
        while head < shorter and a[low + head] == b[other_low + head]:
            head += 1
        tail = 0
        while tail < shorter - head and a[high - 1 - tail] == b[other_high - 1 - tail]:
            tail += 1
        if head:
            self._pairs.append((low, other_low, head))
        if tail:
            self._pairs.append((high - tail, other_high - tail, tail))
        return Span(low + head, high - tail, other_low + head, other_high - tail)

    def _anchors(self, span: Span) -> list[tuple[int, int]]:
        """Return the places of lines that occur once in both parts, ascending in both."""
        part = self._a[span.low : span.high]
        counts = Counter(part)
        other_part = self._b[span.other_low : span.other_high]
        other_counts = Counter(other_part)
        places = {
            line: index
            for index, line in enumerate(other_part, span.other_low)
            if other_counts[line] == 1 and counts.get(line) == 1
        }
        pairs = [
            (index, places[line]) for index, line in enumerate(part, span.low) if line in places
        ]
        return _longest_ascending(pairs)

    def _between(self, span: Span, anchors: Sequence[tuple[int, int]]) -> Iterator[Span]:
        """Match the anchors; yield what lies between them and has lines on both sides."""
        low, other_low = span.low, span.other_low
        run, other_run = low, other_low
        for at, other_at in (*anchors, (span.high, span.other_high)):
            if at != low or other_at != other_low:
                if low > run:
                    self._pairs.append((run, other_run, low - run))
                if at > low and other_at > other_low:
                    yield Span(low, at, other_low, other_at)
                run, other_run = at, other_at
            low, other_low = at + 1, other_at + 1
        # The end stands for a line of its own, which matches nothing.
        if low - 1 > run:
            self._pairs.append((run, other_run, low - 1 - run))

    def _match_edits(self, span: Span) -> None:
        """Match what a shortest edit script leaves, unless it would be too long."""
        a = self._a[span.low : span.high]
        b = self._b[span.other_low : span.other_high]
        furthest = {1: 0}
        """By diagonal (place in a - place in b): the furthest place in a that is reached."""
        rounds: list[dict[int, int]] = []
        for edits in range(min(len(a) + len(b), _EDITS_MAX) + 1):
            rounds.append(dict(furthest))
            for diagonal in range(-edits, edits + 1, 2):
                start = _step(furthest, diagonal, edits)
                at = start
                while at < len(a) and at - diagonal < len(b) and a[at] == b[at - diagonal]:
                    at += 1
                furthest[diagonal] = at
                self._steps_left -= at - start + 1
                if at >= len(a) and at - diagonal >= len(b):
                    self._pairs += _trace(rounds, diagonal, at, span)
                    return
            if self._steps_left <= 0:
                return


def _step(furthest: dict[int, int], diagonal: int, edits: int) -> int:
    """Return where in a diagonal begins after one more edit, from either neighbour."""
    if diagonal == -edits:
        return furthest[diagonal + 1]
    if diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1]:
        return furthest[diagonal + 1]
    return furthest[diagonal - 1] + 1


def _trace(
    rounds: list[dict[int, int]], diagonal: int, at: int, span: Span
) -> Iterator[tuple[int, int, int]]:
    """Yield the matched runs on the way back from the end of an edit script."""
    for edits in range(len(rounds) - 1, -1, -1):
        furthest = rounds[edits]
        start = _step(furthest, diagonal, edits)
        if at > start:
            yield span.low + start, span.other_low + start - diagonal, at - start
        came_down = furthest.get(diagonal + 1) == start
        diagonal += 1 if came_down else -1
        at = start if came_down else start - 1


def _longest_ascending(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return a longest part of `pairs` (ascending in the first) that ascends in the second."""
    seconds = [second for _, second in pairs]
    if sorted(seconds) == seconds:  # nothing has moved: seconds differ, so they ascend
        return list(pairs)
    ends: list[int] = []  # second of the last pair of the best part of each length
    last: list[int] = []  # number of that pair
    before: list[int] = []  # number of the pair before each one
    for number, (_, second) in enumerate(pairs):
        length = bisect_left(ends, second)
        before.append(last[length - 1] if length else -1)
        if length == len(ends):
            ends.append(second)
            last.append(number)
        else:
            ends[length], last[length] = second, number
    found = []
    number = last[-1] if last else -1
    while number >= 0:
        found.append(pairs[number])
        number = before[number]
    return found[::-1]


def _joined(
    pairs: list[tuple[int, int, int]], length: int, other_length: int
) -> list[tuple[int, int, int]]:
    """Return runs in order, those that touch made one, and the end mark."""
    blocks: list[tuple[int, int, int]] = []
    for at, other_at, lines in sorted(pairs):
        if blocks:
            start, other_start, so_far = blocks[-1]
            if (start + so_far, other_start + so_far) == (at, other_at):
                blocks[-1] = (start, other_start, so_far + lines)
                continue
        blocks.append((at, other_at, lines))
    blocks.append((length, other_length, 0))
    return blocks
