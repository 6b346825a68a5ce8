"""Operations on a local disk that the file backend is made of, and what their failures mean.

This module must not know what is stored.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from workspacefs.backend.contract import STORE_DENIED
from workspacefs.errors import NoSpaceError, UnavailableError, WorkspaceError

_IOV_MAX: Final = 1024
"""Most buffers in one writev. Source: limits.h, IOV_MAX."""
_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
_DENIED: Final = frozenset((errno.EACCES, errno.EPERM, errno.EROFS))


def disk_error(exc: OSError, action: str, path: Path) -> WorkspaceError:
    """Return what a failed call on a local disk means to the user of the store."""
    reason = os.strerror(exc.errno) if exc.errno else str(exc)
    if exc.errno in _FULL:
        return NoSpaceError(
            f"cannot {action} {path}: the disk is full or over quota; "
            "free some space and try again, nothing stored was lost",
            path=str(path),
        )
    if exc.errno in _DENIED:
        return UnavailableError(
            f"cannot {action} {path}: {reason}; run as the user who owns the store, "
            "or give this user read and write permission on it",
            kind=STORE_DENIED,
            path=str(path),
        )
    return UnavailableError(f"cannot {action} {path}: {reason}", kind="store.disk", path=str(path))


@contextmanager
def disk_errors(action: str, path: Path) -> Iterator[None]:
    """Translate what calls on a local disk raise within."""
    try:
        yield
    except OSError as exc:
        raise disk_error(exc, action, path) from exc


class OpenFile:
    """A descriptor for reading that is closed when its last user lets go of it."""

    __slots__ = ("fd", "size_bytes")

    def __init__(self, path: Path) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        found = os.fstat(self.fd)
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(errno.ENOENT, "no regular file", str(path))
        self.size_bytes = found.st_size

    def is_linked(self) -> bool:
        """Tell whether the file still has a name: else it was deleted or replaced."""
        return os.fstat(self.fd).st_nlink > 0

    def read(self, length: int, offset: int) -> bytes:
        """Return up to `length` bytes from `offset` on; fewer only at the end of the file."""
        data = os.pread(self.fd, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]  # one pread moves at most 2 GiB, and signals may cut it
        done = len(data)
        while done < length and (data := os.pread(self.fd, length - done, offset + done)):
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class OpenFiles:
    """The files read last, kept open: opening costs more than reading a small range.

    Eviction never closes a file under another thread's read: a file is closed when nobody
    refers to it any more.
    """

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._files: OrderedDict[str, OpenFile] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, key: str) -> OpenFile | None:
        """Return the open file of `key`, unless it is not open or has lost its name since."""
        with self._lock:
            file = self._files.get(key)
            if file is None:
                return None
            self._files.move_to_end(key)
        if file.is_linked():
            return file
        self.drop(key)
        return None

    def add(self, key: str, file: OpenFile) -> None:
        """Keep `file` open; may let go of the one that was used longest ago."""
        evicted = None
        with self._lock:
            self._files[key] = file
            if len(self._files) > self._limit:
                _, evicted = self._files.popitem(last=False)
        del evicted  # closed outside the lock

    def drop(self, key: str) -> None:
        """Forget the file of `key`."""
        with self._lock:
            file = self._files.pop(key, None)
        del file


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold the lock file `path` against all other threads and processes; waits for it.

    The kernel releases it when the holder dies. Source: flock(2).
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextmanager
def temporary_file(directory: Path, parts: Sequence[bytes | memoryview]) -> Iterator[Path]:
    """Write the parts to a new file that survives power loss, and remove its name at the end.

    The body gives the file its real name by link or rename.
    """
    path = directory / secrets.token_hex(16)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            # Who may enter the store may read it, whatever umask the writer has: daemons have
            # 077, and a store may be shared between accounts.
            os.fchmod(fd, stat.S_IMODE(directory.stat().st_mode) & 0o666)
            write_all(fd, parts)
            os.fsync(fd)
        finally:
            os.close(fd)
        yield path
    finally:
        path.unlink(missing_ok=True)


def write_all(fd: int, parts: Sequence[bytes | memoryview]) -> None:
    """Write all bytes of all parts at the file's position."""
    for start in range(0, len(parts), _IOV_MAX):
        batch = [memoryview(part).cast("B") for part in parts[start : start + _IOV_MAX]]
        while batch:
            written = os.writev(fd, batch)
            while batch and written >= len(batch[0]):
                written -= len(batch.pop(0))
            if batch and written:
                batch[0] = batch[0][written:]


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive power loss."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
