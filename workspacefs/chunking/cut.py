"""Cutting a file of any size with bounded memory.

The result is a function of content, size and parameters alone: not of how the file is read.

Source: FastCDC, Xia et al., "The Design of Fast Content Defined Chunking for Data Deduplication",
IEEE TPDS 2020, as pyfastcdc implements it (normalization level 1, no seed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from pyfastcdc import FastCDC

from workspacefs.chunking.paged import is_paged
from workspacefs.chunking.parameters import MIB, ChunkParameters

_WINDOW_MIN_BYTES: Final = 4 * MIB


class ReadRange(Protocol):
    """Reads a range of the file that is cut."""

    def __call__(self, offset: int, length: int, /) -> bytes:
        """Return `length` bytes at `offset`; fewer only if the file ends there."""
        ...


@dataclass(frozen=True, slots=True)
class KnownChunk:
    """Stands for a chunk that was not read, because it is known to be as it was."""

    length: int


def iter_chunks(
    read: ReadRange,
    size_bytes: int,
    params: ChunkParameters,
    *,
    is_zero: Callable[[int, int], bool] | None = None,
    find_known: Callable[[int], int] | None = None,
) -> Iterator[bytes | memoryview | KnownChunk]:
    """Yield the chunks of a file in order; none if it is empty.

    Args:
        read: Called in ascending order of offset. A short answer ends the file there.
        size_bytes: Size of the file; what lies behind is not read.
        params: Where to cut.
        is_zero: Tells of a range (offset, length), without reading it, that it is all zeros; False
            when not known. Saves reading and cutting holes; never changes the chunks.
        find_known: Tells of an offset the length of the chunk that begins there, if that was cut
            before under the same parameters and is not the last; else 0. Never changes the chunks,
            but the first bytes of the file must not make it another kind of file than before.

    Yields:
        Chunks that the caller may keep. Views share a window of at most 32 MiB. Chunks of zeros
        that were not read are `zeros(length)` or KnownChunk.
    """
    if size_bytes == 0:
        return
    if size_bytes <= params.whole_max_bytes:
        if whole := read(0, size_bytes):
            yield whole
        return
    find_known = find_known or _find_none
    if is_paged(read(0, 4096)):
        page_bytes = params.page_bytes_for(size_bytes)
        yield from _pages(read, size_bytes, page_bytes, is_zero, find_known)
    else:
        avg_bytes = params.avg_bytes_for(size_bytes)
        yield from _content_defined(read, size_bytes, avg_bytes, is_zero, find_known)


def _find_none(offset: int) -> int:
    return 0


@lru_cache(maxsize=4)
def zeros(length: int) -> bytes:
    """Return that many zero bytes; the same object again for recent lengths."""
    return bytes(length)


@lru_cache(maxsize=8)
def _cutter(avg_bytes: int) -> FastCDC:
    return FastCDC(avg_bytes, min_size=avg_bytes // 4, max_size=avg_bytes * 4)


def _pages(
    read: ReadRange,
    size_bytes: int,
    page_bytes: int,
    is_zero: Callable[[int, int], bool] | None,
    find_known: Callable[[int], int],
) -> Iterator[bytes | memoryview | KnownChunk]:
    for offset in range(0, size_bytes, page_bytes):
        length = min(page_bytes, size_bytes - offset)
        if find_known(offset) == length:
            yield KnownChunk(length)
            continue
        if is_zero and is_zero(offset, length):
            yield zeros(length)
            continue
        page = read(offset, length)
        if page:
            yield page
        if len(page) < length:
            return


def _content_defined(
    read: ReadRange,
    size_bytes: int,
    avg_bytes: int,
    is_zero: Callable[[int, int], bool] | None,
    find_known: Callable[[int], int],
) -> Iterator[bytes | memoryview | KnownChunk]:
    cutter = _cutter(avg_bytes)
    max_bytes = avg_bytes * 4
    window_bytes = max(_WINDOW_MIN_BYTES, 4 * max_bytes)
    if find_known is not _find_none:
        window_bytes = 2 * max_bytes  # what is read beyond a change is mostly known after all
    at = 0  # where the next chunk begins
    rest = b""  # bytes read from there on
    while at < size_bytes:
        while (known_bytes := find_known(at)) > 0:
            yield KnownChunk(known_bytes)
            at += known_bytes
            rest = rest[known_bytes:]
        # A run of zeros is cut at the largest chunk: the rolling hash of zeros never matches.
        while is_zero and at + max_bytes < size_bytes and is_zero(at, max_bytes):
            yield zeros(max_bytes)
            at += max_bytes
            rest = rest[max_bytes:]
        wanted = min(window_bytes, size_bytes - at)
        fresh = read(at + len(rest), wanted - len(rest)) if wanted > len(rest) else b""
        window = rest + fresh if rest else fresh
        is_last = len(window) < wanted or at + len(window) >= size_bytes
        view = memoryview(window)
        used = 0
        for chunk in cutter.cut_buf(window):
            end = used + chunk.length
            if end == len(window) and not is_last:
                break  # cut by the window, not by content: decide with more in sight
            yield view[used:end]
            used = end
            if (is_zero and is_zero(at + used, max_bytes)) or find_known(at + used):
                break
        at += used
        rest = window[used:]
        if is_last and not rest:
            return
