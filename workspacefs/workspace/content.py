"""File content in and out of the store: the one place that knows its three forms."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Protocol

from workspacefs.chunking.cut import KnownChunk, ReadRange, iter_chunks, zeros
from workspacefs.chunking.parameters import ChunkParameters
from workspacefs.errors import IntegrityError
from workspacefs.objects.chunk_lists import encode_chunk_list
from workspacefs.objects.entry import (
    CHUNKS_MAX_IN_ENTRY,
    INLINE_MAX_BYTES,
    Chunks,
    Content,
    Entry,
    LongContent,
)
from workspacefs.objects.refs import ChunkRef, Ref


class ContentSink(Protocol):
    """Takes chunks and chunk lists."""

    def add_chunk(self, plain: bytes | memoryview) -> ChunkRef:
        """Store one chunk."""
        ...

    def add_chunk_list(self, body: bytes, children: Sequence[Ref]) -> Ref:
        """Store one chunk list."""
        ...


class ContentSource(Protocol):
    """Gives chunks and chunk lists."""

    def load_chunk(self, ref: ChunkRef) -> bytes:
        """Return the verified bytes of one chunk."""
        ...

    def load_chunk_list(self, ref: Ref) -> tuple[ChunkRef, ...]:
        """Return one chunk list."""
        ...


def write_content(
    read: ReadRange,
    size_bytes: int,
    sink: ContentSink,
    params: ChunkParameters,
    *,
    is_zero: Callable[[int, int], bool] | None = None,
    find_known: Callable[[int], ChunkRef | None] | None = None,
) -> tuple[Content, int]:
    """Store the content of a regular file; return it and the size that was really read.

    Args:
        read: As for `iter_chunks`; a short answer ends the file there.
        size_bytes: What to read at most.
        sink: Gets the chunks in order, then their list if they are many.
        params: Where to cut.
        is_zero: As for `iter_chunks`: tells holes that need not be read.
        find_known: Returns the stored chunk that begins at an offset, if it is known that it still
            does; see workspace/reuse.py.
    """
    if size_bytes <= params.whole_max_bytes:
        data = read(0, size_bytes) if size_bytes else b""
        if len(data) <= INLINE_MAX_BYTES:
            return (data or None), len(data)
        return Chunks((sink.add_chunk(data),)), len(data)
    refs: list[ChunkRef] = []
    total = 0
    hole: ChunkRef | None = None

    def known_bytes(offset: int) -> int:
        assert find_known is not None
        known = find_known(offset)
        return 0 if known is None else known.size_bytes

    for chunk in iter_chunks(
        read, size_bytes, params, is_zero=is_zero, find_known=known_bytes if find_known else None
    ):
        if isinstance(chunk, KnownChunk):
            assert find_known is not None
            known = find_known(total)
            assert known is not None
            refs.append(known)
            total += chunk.length
            continue
        length = len(chunk)
        if is_zero is not None and type(chunk) is bytes and chunk is zeros(length):
            if hole is None or hole.size_bytes != length:
                hole = sink.add_chunk(chunk)
            refs.append(hole)
        else:
            refs.append(sink.add_chunk(chunk))
        total += length
    if total <= INLINE_MAX_BYTES:
        data = read(0, total) if total else b""
        return (data or None), len(data)
    if len(refs) <= CHUNKS_MAX_IN_ENTRY:
        return Chunks(tuple(refs)), total
    body, children = encode_chunk_list(refs)
    return LongContent(sink.add_chunk_list(body, children)), total


def chunks_of(entry: Entry, source: ContentSource) -> tuple[ChunkRef, ...]:
    """Return the chunks of a regular file in order; none if it is empty or inline.

    Raises:
        IntegrityError: A chunk list does not add up to the size of the file.
    """
    match entry.content:
        case Chunks(refs):
            return refs
        case LongContent(ref):
            refs = source.load_chunk_list(ref)
            if sum(chunk.size_bytes for chunk in refs) != entry.size_bytes:
                raise IntegrityError(
                    f"chunk list {ref.id.hex()} does not add up to the {entry.size_bytes} bytes "
                    f"of {entry.name!r}",
                    kind="object.malformed",
                )
            return refs
        case _:
            return ()


def iter_content(entry: Entry, source: ContentSource) -> Iterator[bytes]:
    """Yield the content of a regular file in order, chunk by chunk."""
    if isinstance(entry.content, bytes):
        yield entry.content
    for ref in chunks_of(entry, source):
        yield source.load_chunk(ref)


def read_content(entry: Entry, source: ContentSource, offset: int, length: int) -> bytes:
    """Return a range of a regular file; fewer bytes only where it ends."""
    if isinstance(entry.content, bytes):
        return entry.content[offset : offset + length]
    end = min(offset + length, entry.size_bytes)
    if offset >= end:
        return b""
    refs = chunks_of(entry, source)
    starts = [0, *accumulate(ref.size_bytes for ref in refs)]
    index = bisect_right(starts, offset) - 1
    parts = []
    while starts[index] < end:
        chunk = source.load_chunk(refs[index])
        parts.append(chunk[max(offset - starts[index], 0) : end - starts[index]])
        index += 1
        if index == len(refs):
            break
    return b"".join(parts)
