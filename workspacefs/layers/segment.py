"""The segment of a layer: the bodies of small files, one span each, in one append-only file."""

from __future__ import annotations

import os
from pathlib import Path

from workspacefs.errors import IntegrityError
from workspacefs.layers.disk import DISK_BLOCK_BYTES, explained, punch, write_all


class Segment:
    """An open segment. Writing is for one thread; reading for any."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with explained(f"segment {path} cannot be opened"):
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self.end = os.fstat(self.fd).st_size
        self.is_dirty = False
        """Whether it was written since the journal was last written."""
        self._dead_starts: dict[int, int] = {}
        """End of each dead stretch, by its start; and the other way round."""
        self._dead_ends: dict[int, int] = {}

    def append(self, data: bytes | memoryview, *, capacity_bytes: int = 0) -> int:
        """Write `data` at the end, leave room up to `capacity_bytes` for it to grow, and return
        its offset.

        Raises:
            NoSpaceError: The disk is full; nothing has changed.
        """
        offset = self.end
        self.write(data, offset)
        if capacity_bytes > len(data):
            # The file's length must say so too: after a crash the end is found by it.
            with explained("a file body cannot be written"):
                os.ftruncate(self.fd, offset + capacity_bytes)
            self.end = offset + capacity_bytes
        return offset

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write inside a run, or past the end when the caller extends the last run."""
        write_all(self.fd, data, offset, end=self.end)
        self.is_dirty = True
        self.end = max(self.end, offset + len(data))

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes.

        Raises:
            IntegrityError: The segment is shorter.
        """
        data = os.pread(self.fd, length, offset)
        if len(data) != length:
            raise IntegrityError(
                f"segment {self._path} is cut off at {offset + len(data)}",
                kind="layer.segment_short",
            )
        return data

    def bury(self, offset: int, length: int) -> None:
        """Give the disk blocks of a dead run back.

        The disk takes whole blocks only, and small runs share them: dead neighbours are joined,
        and a block goes when the last run in it does.
        """
        start, end = offset, offset + length
        if start in self._dead_ends:
            start = self._dead_ends.pop(start)
        if end in self._dead_starts:
            end = self._dead_starts.pop(end)
        self._dead_starts[start] = end
        self._dead_ends[end] = start
        first = max(start, offset - DISK_BLOCK_BYTES)
        last = min(end, offset + length + DISK_BLOCK_BYTES)
        punch(self.fd, first, last - first)

    def close(self) -> None:
        """Close it; nothing is synced."""
        os.close(self.fd)
