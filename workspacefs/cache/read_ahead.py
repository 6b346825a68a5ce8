"""How far to read beyond what was asked for.

Values are read in order again and again by programs that go through a tree (data lies in path
order), and at random by those that pick files. A window opens at each miss, doubles while reading
goes on behind it, and begins smaller when windows turn out to have been of no use.

Only misses and marks are seen here: bytes that are at hand are read without asking anyone. A mark
on a block of a window tells when reading gets there, as the kernel's page cache does
(PG_readahead, mm/readahead.c).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from workspacefs.cache.block_file import BLOCK_BYTES

REQUEST_BLOCKS: Final = (4 << 20) // BLOCK_BYTES
"""Longest range asked for at once."""
WINDOW_MIN_BLOCKS: Final = (512 << 10) // BLOCK_BYTES
WINDOW_MAX_BLOCKS: Final = (32 << 20) // BLOCK_BYTES
_STREAMS_MAX: Final = 64


@dataclass(slots=True)
class _Stream:
    """Reading in one value that has gone forward so far."""

    window_blocks: int
    end: int
    """The block behind the last that was fetched for it."""
    mark: int | None = None
    was_used: bool = False
    """Whether reading got to what was fetched ahead."""


@dataclass(frozen=True, slots=True)
class Window:
    """What to fetch: blocks `first` to `end`, with a mark on one of them."""

    first: int
    end: int
    mark: int | None


class ReadAhead:
    """Decides on windows; not thread-safe."""

    def __init__(self) -> None:
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._start_blocks = WINDOW_MIN_BLOCKS

    def miss(self, key: str, first: int, end: int) -> Window:
        """Return the window for blocks that are needed now and are not there."""
        stream = self._streams.get(key)
        if stream is not None and stream.end <= first <= stream.end + stream.window_blocks:
            self._go_on(stream)
        else:
            if stream is not None:
                self._judge(stream)
            stream = self._streams[key] = _Stream(self._start_blocks, end)
        self._streams.move_to_end(key)
        if len(self._streams) > _STREAMS_MAX:
            self._judge(self._streams.popitem(last=False)[1])
        stop = max(end, _aligned(first + stream.window_blocks))
        stream.end = stop
        # Half-way, so that what comes next is on its way before reading gets there.
        middle = first + (stop - first) // 2
        stream.mark = middle if middle >= end else None
        return Window(first, stop, stream.mark)

    def mark_met(self, key: str, block: int) -> Window | None:
        """Return the next window when reading has got to a mark of ours."""
        stream = self._streams.get(key)
        if stream is None or stream.mark != block:
            return None
        self._streams.move_to_end(key)
        self._go_on(stream)
        first = stream.end
        stream.end = _aligned(first + stream.window_blocks)
        stream.mark = first
        return Window(first, stream.end, first)

    def _go_on(self, stream: _Stream) -> None:
        stream.was_used = True
        stream.window_blocks = min(2 * stream.window_blocks, WINDOW_MAX_BLOCKS)
        # A new value begins where the last one has got to: a walk goes from pack to pack.
        self._start_blocks = min(max(self._start_blocks, stream.window_blocks), REQUEST_BLOCKS)

    def _judge(self, stream: _Stream) -> None:
        if not stream.was_used:
            self._start_blocks = max(self._start_blocks // 2, WINDOW_MIN_BLOCKS)


def _aligned(block: int) -> int:
    """Return the end of a window, moved to where requests of full length end."""
    rest = block % REQUEST_BLOCKS
    return block if rest == 0 or block < REQUEST_BLOCKS else block - rest + REQUEST_BLOCKS
