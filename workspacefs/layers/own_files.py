"""Own files of a layer: sparse bodies of large or rewritten files, one file each.

Any thread may read while one writes: descriptors are kept in a bounded cache under a lock that is
held from looking one up until it has been used.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from workspacefs.errors import IntegrityError
from workspacefs.ids import FileId
from workspacefs.layers.disk import explained, from_os_error, write_all

_OPEN_FILES_MAX: Final = 256


class OwnFiles:
    """The own files in one directory, by file id."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.dirty: set[FileId] = set()
        """Written since the journal was last written."""
        self.names_are_dirty = False
        """Whether files were created since the journal was last written."""
        with explained(f"{directory} cannot be made"):
            directory.mkdir(mode=0o700, exist_ok=True)
        self._files: OrderedDict[FileId, int] = OrderedDict()
        self._lock = threading.Lock()

    def path(self, file_id: FileId) -> Path:
        """Return where the own file of `file_id` is, whether or not it exists."""
        return self.directory / f"{file_id:016x}"

    def iter_ids(self) -> Iterator[FileId]:
        """Yield the file ids of all own files there are."""
        for path in self.directory.iterdir():
            yield FileId(int(path.name, 16))

    def create(self, file_id: FileId) -> None:
        """Create an own file, empty; whatever a crash left under its name goes."""
        with self._lock, explained("a file cannot be created"):
            os.ftruncate(self._fd(file_id, create=True), 0)
        self.dirty.add(file_id)
        self.names_are_dirty = True

    def blocks(self, file_id: FileId) -> int:
        """Return what an own file takes on disk, in units of 512 bytes."""
        with self._lock:
            return os.fstat(self._fd(file_id)).st_blocks

    def dup(self, file_id: FileId) -> int:
        """Return a descriptor of an own file that is the caller's to close."""
        with self._lock:
            return os.dup(self._fd(file_id))

    def read(self, file_id: FileId, offset: int, length: int) -> bytes:
        """Return up to `length` bytes of an own file; fewer at its end. From any thread."""
        with self._lock:
            return os.pread(self._fd(file_id), length, offset)

    def is_hole(self, file_id: FileId, offset: int, length: int) -> bool:
        """Tell whether a span has nothing on disk, so that it reads as zeros. From any thread.

        Source: lseek(2), SEEK_DATA. Reads and writes name their offsets: moving the descriptor's
        own does no harm.
        """
        with self._lock:
            try:
                return os.lseek(self._fd(file_id), offset, os.SEEK_DATA) >= offset + length
            except OSError as exc:
                if exc.errno == errno.ENXIO:
                    return True
                raise from_os_error(exc, f"own file {self.path(file_id)} cannot be read") from exc

    def write(self, file_id: FileId, data: bytes | memoryview, offset: int) -> None:
        """Write into an own file, growing it when need be."""
        with self._lock:
            fd = self._fd(file_id)
            write_all(fd, data, offset, end=os.fstat(fd).st_size)
        self.dirty.add(file_id)

    def truncate(self, file_id: FileId, size_bytes: int) -> None:
        """Set the length of an own file."""
        with self._lock, explained("a file cannot be resized"):
            os.ftruncate(self._fd(file_id), size_bytes)
        self.dirty.add(file_id)

    def remove(self, file_id: FileId) -> None:
        """Remove an own file, if it is there. No row may name it."""
        with self._lock:
            fd = self._files.pop(file_id, None)
            if fd is not None:
                os.close(fd)
        self.path(file_id).unlink(missing_ok=True)
        self.dirty.discard(file_id)

    def close(self) -> None:
        """Close every descriptor; nothing is synced."""
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()

    def _fd(self, file_id: FileId, *, create: bool = False) -> int:
        # The lock is held from here until the descriptor has been used: another thread may push
        # it out of the cache, and its number would soon mean another file.
        fd = self._files.get(file_id)
        if fd is not None:
            self._files.move_to_end(file_id)
            return fd
        path = self.path(file_id)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            fd = os.open(path, flags, 0o600)
        except FileNotFoundError as exc:
            raise IntegrityError(
                f"own file {path} is missing", kind="layer.own_file_missing"
            ) from exc
        except OSError as exc:
            raise from_os_error(exc, f"own file {path} cannot be opened") from exc
        if len(self._files) >= _OPEN_FILES_MAX:
            os.close(self._files.popitem(last=False)[1])
        self._files[file_id] = fd
        return fd
