"""Calls on the local disk that every part of a layer shares, and what their failures mean."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from workspacefs.errors import NoSpaceError, WorkspaceError

DISK_BLOCK_BYTES: Final = 4096
"""What a file system gives back at a time."""


def write_all(fd: int, data: bytes | memoryview, offset: int, *, end: int) -> None:
    """Write all of `data`, or give back what a full disk took of it past `end` and fail."""
    try:
        written = os.pwrite(fd, data, offset)
        while written < len(data):
            written += os.pwrite(fd, memoryview(data)[written:], offset + written)
    except OSError as exc:
        # No row names the part that was taken, and freeing other space needs some of it.
        if os.fstat(fd).st_size > end:
            os.ftruncate(fd, end)
        raise from_os_error(exc, "a file body cannot be written") from exc


_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_PUNCH_HOLE_KEEP_SIZE: Final = 0x02 | 0x01
"""Source: linux/falloc.h, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE."""


def punch(fd: int, offset: int, length: int) -> None:
    """Give the whole disk blocks of a span back; the length of the file stays."""
    # The result does not matter: a file system without holes only keeps the space for longer.
    _libc.fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, offset, length)


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn a failed call within the block into our error; `what` begins its message."""
    try:
        yield
    except OSError as exc:
        raise from_os_error(exc, what) from exc


def from_os_error(exc: OSError, what: str) -> WorkspaceError:
    """Return our error for a failed call on the local disk."""
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(f"{what}: the local disk is full; free space and try again")
    error = WorkspaceError(f"{what}: {exc.strerror}", kind="layer.io")
    error.errno = exc.errno or errno.EIO
    return error


def sync_file(path: Path) -> None:
    """Make the content of a file survive power loss, whoever wrote it."""
    with explained(f"{path} cannot be written"):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
