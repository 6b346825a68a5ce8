"""One cached value: a sparse file with a map of the blocks that are there.

    header   64 bytes: magic 8 "wsfsblk1", total length of the value 8 (little-endian, 0: not known
             yet), zeros
    map      one byte a block: 0 absent, 1 present, 2 present and a mark (see `Found`)
    data     from DATA_OFFSET on, each byte at its offset in the value

Several processes read and write one file without a lock: a value never changes, so two writers of
a block write the same bytes; a block's map byte is written after its data. Nothing is synced: after
a power cut the map may tell of bytes that are not there. So whoever reads must be able to tell
wrong bytes from right ones (frames have a check, objects an id), and says `forget` of wrong ones.

No mmap: a file that someone truncates must cost a miss, not a SIGBUS.
"""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path
from typing import Final, NamedTuple

BLOCK_BYTES: Final = 64 * 1024
DATA_OFFSET: Final = 16 * 1024

_MAGIC: Final = b"wsfsblk1"
_HEADER: Final = struct.Struct("<8sQ")
_MAP_OFFSET: Final = 64
BLOCKS_MAX: Final = DATA_OFFSET - _MAP_OFFSET
"""Blocks that the map has room for; those behind them are never there."""
VALUE_MAX_BYTES: Final = BLOCKS_MAX * BLOCK_BYTES
"""About 1 GiB; longer values are not cached."""
_ABSENT: Final = 0
_PRESENT: Final = 1
_MARKED: Final = 2


class Found(NamedTuple):
    """Bytes that were at hand."""

    data: bytes
    marked_block: int | None
    """A block of these whose mark was met: whoever reads on will soon need what follows it."""


def block_span(offset: int, length: int) -> tuple[int, int]:
    """Return the first block of a range of bytes, and the one behind its last."""
    return offset // BLOCK_BYTES, (offset + length + BLOCK_BYTES - 1) // BLOCK_BYTES


class BlockFile:
    """The open file of one value. Thread-safe; closed when its last user lets go of it."""

    __slots__ = ("_fd", "_total_bytes", "path")

    def __init__(self, path: Path, *, is_writable: bool, is_made: bool = False) -> None:
        """Open the file.

        Args:
            path: Where it is.
            is_writable: Whether blocks will be written.
            is_made: Whether to make it if it is not there; goes with `is_writable`.

        Raises:
            FileNotFoundError: It is not there, or is no file of ours.
            OSError: As open(2).
        """
        self._fd = -1
        self.path = path
        # What is no regular file must not make us wait for its other end.
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        flags |= os.O_RDWR if is_writable else os.O_RDONLY
        self._fd = os.open(path, flags | (os.O_CREAT if is_made else 0), 0o600)
        self._total_bytes = 0
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            raise FileNotFoundError(f"{path} is no regular file")
        header = os.pread(self._fd, _HEADER.size, 0)
        if len(header) == _HEADER.size and header[:8] == _MAGIC:
            self._total_bytes = _total_in(header)
        elif is_made and not header:
            # Just made, by us or by another process at this moment: it may have blocks already.
            os.pwrite(self._fd, _HEADER.pack(_MAGIC, 0), 0)
        else:
            raise FileNotFoundError(f"{path} has no header of ours")

    @property
    def total_bytes(self) -> int:
        """Length of the whole value; 0: not known yet."""
        if self._total_bytes == 0:
            self._total_bytes = _total_in(os.pread(self._fd, _HEADER.size, 0))
        return self._total_bytes

    def is_linked(self) -> bool:
        """Tell whether the file still has its name: else it was evicted."""
        return os.fstat(self._fd).st_nlink > 0

    def allocated_bytes(self) -> int:
        """Return what the file takes of the disk."""
        return os.fstat(self._fd).st_blocks * 512

    def holds(self, offset: int, length: int) -> bool:
        """Tell whether a range is there."""
        first, end = block_span(offset, length)
        marks = self._marks(first, end)
        return len(marks) == end - first and _ABSENT not in marks

    def read(self, offset: int, length: int) -> Found | None:
        """Return a range that is there, or None."""
        first, end = block_span(offset, length)
        marks = self._marks(first, end)
        if len(marks) != end - first or _ABSENT in marks:
            return None
        data = os.pread(self._fd, length, DATA_OFFSET + offset)
        if len(data) != length:
            return None
        marked = marks.find(_MARKED)
        if marked < 0:
            return Found(data, None)
        return Found(data, first + marked)

    def missing_runs(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return the runs (first, end) of blocks that are not there, in order."""
        if first >= end:
            return []
        marks = self._marks(first, end)
        runs = []
        known_end = first + len(marks)
        at = marks.find(_ABSENT)
        while at >= 0:
            stop = at
            while stop < len(marks) and marks[stop] == _ABSENT:
                stop += 1
            runs.append((first + at, first + stop))
            at = marks.find(_ABSENT, stop)
        if known_end < end:
            begin = runs.pop()[0] if runs and runs[-1][1] == known_end else known_end
            runs.append((begin, end))
        return runs

    def note_total(self, total_bytes: int) -> None:
        """Write down how long the value is."""
        header = _HEADER.pack(_MAGIC, total_bytes)
        # Read anew: somebody may have emptied the file since it was opened.
        if os.pread(self._fd, _HEADER.size, 0) != header:
            os.pwrite(self._fd, header, 0)
        self._total_bytes = total_bytes

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Write bytes at their place; they do not count before `set_present`."""
        view = memoryview(data)
        while view:
            done = os.pwrite(self._fd, view, DATA_OFFSET + offset)
            view, offset = view[done:], offset + done

    def set_present(self, first: int, end: int, *, marked_block: int | None = None) -> None:
        """Say that blocks are there: all their bytes, or all up to the end of the value."""
        assert end <= BLOCKS_MAX, "marks must not run into the data"
        marks = bytearray([_PRESENT]) * (end - first)
        if marked_block is not None and first <= marked_block < end:
            marks[marked_block - first] = _MARKED
        os.pwrite(self._fd, marks, _MAP_OFFSET + first)

    def clear_mark(self, block: int) -> None:
        """Turn a marked block into a plain one."""
        if self._marks(block, block + 1) == bytes([_MARKED]):
            os.pwrite(self._fd, bytes([_PRESENT]), _MAP_OFFSET + block)

    def forget(self, first: int, end: int) -> None:
        """Say that blocks are not there."""
        end = min(end, BLOCKS_MAX)
        if first < end:
            os.pwrite(self._fd, bytes(end - first), _MAP_OFFSET + first)

    def touch(self) -> None:
        """Note that the value was used now: eviction takes those used longest ago."""
        os.utime(self._fd)

    def _marks(self, first: int, end: int) -> bytes:
        """Return the map of blocks, as far as there is one."""
        end = min(end, BLOCKS_MAX)
        return os.pread(self._fd, end - first, _MAP_OFFSET + first) if first < end else b""

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _total_in(header: bytes) -> int:
    """Return the length that a header tells of; 0: none that a cached value can have."""
    total_bytes = _HEADER.unpack(header)[1] if len(header) == _HEADER.size else 0
    return int(total_bytes) if total_bytes <= VALUE_MAX_BYTES else 0
