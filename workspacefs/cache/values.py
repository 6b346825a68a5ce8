"""The disk's side of the cache: what is there of each value, and what a bad disk does to that.

No failure of the disk is an error here: what cannot be kept is handed out all the same by whoever
fetched it, and what cannot be read is not there.
"""

from __future__ import annotations

import logging

from workspacefs.cache.block_file import VALUE_MAX_BYTES, BlockFile, Found, block_span
from workspacefs.cache.directory import CacheDirectory
from workspacefs.cache.evictor import Evictor

log = logging.getLogger(__name__)


class CachedValues:
    """Block files of one store that are being filled. Thread-safe."""

    def __init__(self, directory: CacheDirectory, evictor: Evictor | None) -> None:
        self._directory = directory
        self._evictor = evictor
        self.is_disk_bad = False
        """The disk did not take what came last: what is fetched ahead would be thrown away."""
        self.uncached = 0
        """Times that something could not be kept."""

    def read(self, key: str, offset: int, length: int) -> Found | None:
        """Return a range that is there, or None."""
        file = self._directory.find(key)
        try:
            return None if file is None else file.read(offset, length)
        except OSError:
            return None

    def holds(self, key: str, offset: int, length: int) -> bool:
        """Tell whether a range is there."""
        file = self._directory.find(key)
        try:
            return file is not None and file.holds(offset, length)
        except OSError:
            return False

    def total_bytes(self, key: str) -> int:
        """Return the length of a value of which something is there; 0: not known."""
        file = self._directory.find(key)
        return 0 if file is None else file.total_bytes

    def missing_runs(self, key: str, first: int, end: int) -> list[tuple[int, int]]:
        """Return the runs (first, end) of blocks that are not there, in order."""
        file = self._directory.find(key)
        try:
            return [(first, end)] if file is None else file.missing_runs(first, end)
        except OSError:
            return [(first, end)]

    def insert(self, key: str, data: bytes | memoryview) -> None:
        """Keep a whole value that was just stored."""
        if len(data) > VALUE_MAX_BYTES:
            return
        try:
            file = self._directory.open(key)
            file.note_total(len(data))
            file.write(0, data)
            file.set_present(*block_span(0, len(data)))
        except OSError as exc:
            self._not_kept(exc)
        self.filled(len(data))

    def open(self, key: str, total_bytes: int) -> BlockFile | None:
        """Return the file of a value of known length for filling; None: it cannot be kept."""
        if total_bytes > VALUE_MAX_BYTES:
            return None
        try:
            file = self._directory.open(key)
            file.note_total(total_bytes)
        except OSError as exc:
            self._not_kept(exc)
            return None
        return file

    def write(self, file: BlockFile, offset: int, piece: bytes) -> bool:
        """Write bytes that do not count yet; False: the disk does not take them."""
        try:
            file.write(offset, piece)
        except OSError as exc:
            self._not_kept(exc)
            return False
        return True

    def set_present(self, file: BlockFile, first: int, end: int, mark: int | None) -> bool:
        """Say that blocks are there; False: the disk does not take that."""
        try:
            file.set_present(first, end, marked_block=mark)
        except OSError as exc:
            self._not_kept(exc)
            return False
        self.is_disk_bad = False
        return True

    def clear_mark(self, key: str, block: int) -> None:
        """Turn a marked block into a plain one."""
        file = self._directory.find(key)
        try:
            if file is not None:
                file.clear_mark(block)
        except OSError as exc:
            log.debug("cache.not_written", extra={"errno": exc.errno})

    def forget(self, key: str, first: int, end: int) -> None:
        """Say that blocks are not there."""
        file = self._directory.find(key)
        try:
            if file is not None:
                file.forget(first, end)
        except OSError:
            self._directory.remove(key)

    def remove(self, key: str) -> None:
        """Let go of a value that is no more."""
        self._directory.remove(key)

    def filled(self, size_bytes: int) -> None:
        """Count bytes that came; may evict what was used longest ago."""
        if self._evictor is not None:
            self._evictor.note(size_bytes)

    def _not_kept(self, exc: OSError) -> None:
        self.is_disk_bad = True
        self.uncached += 1
        log.debug("cache.not_written", extra={"errno": exc.errno})
