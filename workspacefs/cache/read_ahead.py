"""How far to read beyond what was asked for, and to which side.

Values are read in order again and again by programs that go through a tree (data lies in path
order), forwards by some and backwards by others (a walk with a stack takes the last directory
first), and at random by those that pick files. A window opens at each miss, doubles while reading
goes on at one of its ends; the next one begins smaller while reading goes on nowhere.

Only misses and marks are seen here: bytes that are at hand are read without asking anyone. A mark
on a block of a window tells when reading gets there, as the kernel's page cache does
(PG_readahead, mm/readahead.c).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from workspacefs.cache.block_file import BLOCK_BYTES

REQUEST_BLOCKS: Final = (4 << 20) // BLOCK_BYTES
"""Longest range asked for at once; requests lie on a grid of this width."""
WINDOW_MIN_BLOCKS: Final = (512 << 10) // BLOCK_BYTES
WINDOW_MAX_BLOCKS: Final = (32 << 20) // BLOCK_BYTES
_STREAMS_MAX: Final = 64
_STREAMS_EACH: Final = 4
"""Streams in one value: programs with several threads read in several places."""


@dataclass(slots=True, eq=False)
class _Stream:
    """Reading in one part of a value: its last window, and where it goes."""

    low: int
    high: int
    last: int
    """Block that was read when we last heard of it."""
    window_blocks: int
    mark: int | None = None
    is_forward: bool = True

    def distance(self, first: int, end: int) -> int:
        """Return how far blocks lie from the last window; 0: in it or beside it."""
        return max(self.low - end, first - self.high, 0)


@dataclass(frozen=True, slots=True)
class Window:
    """What to fetch: blocks `first` to `end`, as far as they are missing."""

    first: int
    end: int
    stream: _Stream

    def place_mark(self, runs: Sequence[tuple[int, int]], first: int, end: int) -> int | None:
        """Return the block that gets the mark: the first that reading will come to.

        Args:
            runs: What of the window is missing.
            first: Blocks needed now are from here …
            end: … to here.
        """
        if self.stream.is_forward:
            ahead = [max(run[0], end) for run in runs if run[1] > end]
            self.stream.mark = min(ahead, default=None)
        else:
            behind = [min(run[1], first) - 1 for run in runs if run[0] < first]
            self.stream.mark = max(behind, default=None)
        return self.stream.mark


class ReadAhead:
    """Decides on windows; not thread-safe."""

    def __init__(self) -> None:
        self._streams: OrderedDict[str, list[_Stream]] = OrderedDict()
        self._start_blocks = WINDOW_MIN_BLOCKS

    def miss(self, key: str, first: int, end: int) -> Window:
        """Return the window around blocks that are needed now and are not there."""
        streams = self._streams.setdefault(key, [])
        self._streams.move_to_end(key)
        if len(self._streams) > _STREAMS_MAX:
            self._streams.popitem(last=False)
        stream: _Stream | None
        stream = min(streams, key=lambda one: one.distance(first, end), default=None)
        if stream is None or stream.distance(first, end) > stream.window_blocks:
            return self._begin(streams, first, end)
        stream.is_forward = first >= stream.last
        stream.last = first
        return self._go_on(stream, first, end)

    def mark_met(self, key: str, block: int) -> Window | None:
        """Return the next window when reading has got to a mark of ours."""
        for stream in self._streams.get(key, ()):
            if stream.mark == block:
                self._streams.move_to_end(key)
                stream.last, stream.mark = block, None
                edge = stream.high if stream.is_forward else stream.low
                return self._go_on(stream, edge, edge)
        return None

    def _begin(self, streams: list[_Stream], first: int, end: int) -> Window:
        if len(streams) >= _STREAMS_EACH:
            streams.pop(0)
        if self._start_blocks < REQUEST_BLOCKS:
            low, high = first, max(end, first + self._start_blocks)
        else:
            # Programs go through whole trees: take the request's full width, to both sides.
            low, high = _request_begin(first), request_end(end - 1)
        stream = _Stream(low, high, first, self._start_blocks)
        streams.append(stream)
        # Until reading goes on there, it may be one that picks files: the next begins smaller.
        self._start_blocks = max(self._start_blocks // 2, WINDOW_MIN_BLOCKS)
        return Window(low, high, stream)

    def _go_on(self, stream: _Stream, first: int, end: int) -> Window:
        stream.window_blocks = min(2 * stream.window_blocks, WINDOW_MAX_BLOCKS)
        # A new value begins where the last one has got to: a walk goes from pack to pack.
        self._start_blocks = min(max(self._start_blocks, stream.window_blocks), REQUEST_BLOCKS)
        is_wide = stream.window_blocks >= REQUEST_BLOCKS
        low, high = first, end
        if stream.is_forward:
            high = max(end, first + stream.window_blocks)
            high = request_end(high - 1) if is_wide else high
        else:
            low = max(0, min(first, end - stream.window_blocks))
            low = _request_begin(low) if is_wide else low
        stream.low, stream.high = low, high
        return Window(low, high, stream)


def request_end(block: int) -> int:
    """Return where the request that a block belongs to ends."""
    return (block // REQUEST_BLOCKS + 1) * REQUEST_BLOCKS


def requests_of(run: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the requests that a run of blocks is fetched by."""
    first, end = run
    while first < end:
        stop = min(end, request_end(first))
        yield first, stop
        first = stop


def without(run: tuple[int, int], taken: tuple[int, int]) -> list[tuple[int, int]]:
    """Return what of a run of blocks is left when some are taken out."""
    parts = [(run[0], min(run[1], taken[0])), (max(run[0], taken[1]), run[1])]
    return [part for part in parts if part[0] < part[1]]


def _request_begin(block: int) -> int:
    return block // REQUEST_BLOCKS * REQUEST_BLOCKS
