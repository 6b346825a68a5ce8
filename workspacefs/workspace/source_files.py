"""Reading one regular file of a source tree as one consistent state, holes unread."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from workspacefs.chunking.parameters import ChunkParameters
from workspacefs.objects.entry import Content
from workspacefs.workspace.attributes import is_same_state
from workspacefs.workspace.content import ContentSink, write_content

_READS_MAX: Final = 3
_REREAD_MAX_BYTES: Final = 64 * 1024 * 1024
_SPARSE_MIN_BYTES: Final = 1024 * 1024


class SourceReadError(Exception):
    """The source (not the store) failed while its content was read."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class SourceFile(NamedTuple):
    """What was read."""

    status: os.stat_result
    """From before the content was read."""
    content: Content
    size_bytes: int
    """As read; differs from `status` if the file changed meanwhile."""
    is_unsteady: bool
    """It changed during each attempt."""
    waited_s: float
    """Time spent in reading it."""


def read_source_file(
    fd: int, status: os.stat_result, sink: ContentSink, params: ChunkParameters
) -> SourceFile:
    """Store the content of an open regular file; read again if it changes meanwhile.

    Raises:
        SourceReadError: Reading failed.
    """
    attempt = 0
    waited_s = 0.0

    def read(offset: int, length: int) -> bytes:
        nonlocal waited_s
        started_s = time.perf_counter()
        data = _pread(fd, offset, length)
        waited_s += time.perf_counter() - started_s
        return data

    while True:
        attempt += 1
        size = status.st_size
        content, read_bytes = write_content(
            read,
            size,
            sink,
            params,
            is_zero=_hole_finder(fd, status),
        )
        after = os.fstat(fd)
        if is_same_state(status, after) and read_bytes == size:
            return SourceFile(status, content, read_bytes, False, waited_s)
        if attempt == _READS_MAX or after.st_size > _REREAD_MAX_BYTES:
            return SourceFile(status, content, read_bytes, True, waited_s)
        status = after


def _pread(fd: int, offset: int, length: int) -> bytes:
    try:
        data = os.pread(fd, length, offset)
        if len(data) == length:
            return data
        parts = [data]
        got = len(data)
        while got < length and (data := os.pread(fd, length - got, offset + got)):
            parts.append(data)
            got += len(data)
    except OSError as exc:
        raise SourceReadError(exc) from exc
    return b"".join(parts)


def _hole_finder(fd: int, status: os.stat_result) -> Callable[[int, int], bool] | None:
    """Return what tells holes of a sparse file; None if it has none worth asking for."""
    if status.st_size < _SPARSE_MIN_BYTES or status.st_blocks * 512 >= status.st_size:
        return None

    def is_zero(offset: int, length: int) -> bool:
        try:
            return os.lseek(fd, offset, os.SEEK_DATA) >= offset + length
        except OSError as exc:
            # ENXIO: no data up to the end, wherever that is by now. Else: not known.
            return exc.errno == errno.ENXIO and os.fstat(fd).st_size >= offset + length

    return is_zero
