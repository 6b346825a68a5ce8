"""File bodies: reading any content, and writing into the live layer.

A body in a layer is a Run (a span of the segment, for files up to RUN_MAX_BYTES) or an OwnFile (a
sparse file that may lie over older content and copies 64 KiB blocks from it when they are first
touched). Content in any older place is immutable and is read where it is.

Order that every change keeps: bytes that no row names yet may be written before the row; bytes
that a row names are cut off only after the row has changed. So a crash at any moment leaves the
state before or after, apart from a plain overwrite that was still under way.

This module must not know inodes, names or FUSE. Reading may raise whatever the chunk source
raises, always before anything was changed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, Protocol, TypeAlias

from workspacefs.errors import IntegrityError
from workspacefs.ids import FileId
from workspacefs.layers.layer import Layer
from workspacefs.layers.rows import (
    BLOCK_BYTES,
    BLOCKS_PER_GROUP,
    RUN_TAG,
    ContentDesc,
    OwnFileDesc,
    RunDesc,
    block_key,
    encode_content,
)
from workspacefs.objects.entry import Chunks, Device, LongContent, Subtree
from workspacefs.objects.refs import ChunkRef, Ref

RUN_MAX_BYTES: Final = 256 * 1024
"""Longest body that is kept as a run; copying it whole costs less than a file of its own."""


class ChunkSource(Protocol):
    """Where the bytes of chunks come from."""

    def load_chunk(self, ref: ChunkRef) -> bytes:
        """Return a chunk's plain bytes."""
        ...

    def load_chunk_list(self, ref: Ref) -> tuple[ChunkRef, ...]:
        """Return the chunks of a long file."""
        ...


class Run:
    """A body that is one span of a layer's segment; its length is the inode's size."""

    __slots__ = ("capacity_bytes", "layer", "offset")

    def __init__(self, layer: Layer, offset: int, capacity_bytes: int) -> None:
        self.layer = layer
        self.offset = offset
        self.capacity_bytes = capacity_bytes


class OwnFile:
    """A body with a sparse file of its own, perhaps over older content.

    A block comes from `lower` while it starts before `lower_bytes` and is not in `copied`.
    """

    __slots__ = ("copied", "file_id", "layer", "lower", "lower_bytes")

    def __init__(self, layer: Layer, file_id: FileId, lower: BodyContent, lower_bytes: int) -> None:
        self.layer = layer
        self.file_id = file_id
        self.lower = lower
        self.lower_bytes = lower_bytes
        self.copied: dict[int, bytearray] = {}

    def is_own(self, block: int) -> bool:
        """Tell whether a block's bytes are in the own file."""
        if block * BLOCK_BYTES >= self.lower_bytes:
            return True
        group = self.copied.get(block // BLOCKS_PER_GROUP)
        at = block % BLOCKS_PER_GROUP
        return group is not None and bool(group[at >> 3] & 1 << (at & 7))


BodyContent: TypeAlias = bytes | Chunks | LongContent | Subtree | Device | Run | OwnFile | None


@dataclass(slots=True)
class Change:
    """What a change of a body leads to; the caller commits it in one transaction."""

    content: BodyContent
    rows: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Rows to put beside the inode row."""
    dead: Run | None = None
    """A run that no row names once the transaction is through."""
    cut_to: int | None = None
    """Length to cut the own file to once the transaction is through."""
    groups: dict[int, bytearray] = field(default_factory=dict)
    """Bitmaps that the rows hold; they become the own file's once the transaction is through."""


def content_to_desc(content: BodyContent) -> ContentDesc:
    """Return the stored form of a content."""
    match content:
        case Run():
            return RunDesc(content.layer.number, content.offset, content.capacity_bytes)
        case OwnFile():
            lower = content_to_desc(content.lower)
            return OwnFileDesc(content.layer.number, content.lower_bytes, lower)
        case _:
            return content


def stored_content(content: BodyContent) -> object:
    """Return what of a content stands in an inode row; content_to_desc() and encode_content() in
    one, since it runs for every change of any inode.
    """
    kind = type(content)
    if content is None or kind is bytes:
        return content
    if kind is Run:
        run = content
        assert isinstance(run, Run)
        return (RUN_TAG, run.layer.number, run.offset, run.capacity_bytes)
    return encode_content(content_to_desc(content))


def content_from_desc(
    desc: ContentDesc, file_id: FileId, layers: Mapping[int, Layer]
) -> BodyContent:
    """Return the content that a stored form stands for.

    Raises:
        IntegrityError: It names a layer that is not there.
    """
    match desc:
        case RunDesc(number, offset, capacity):
            return Run(_layer(layers, number), offset, capacity)
        case OwnFileDesc(number, lower_bytes, lower):
            layer = _layer(layers, number)
            own = OwnFile(layer, file_id, content_from_desc(lower, file_id, layers), lower_bytes)
            groups = -(-lower_bytes // (BLOCK_BYTES * BLOCKS_PER_GROUP))
            for group in range(groups):
                bitmap = layer.get(block_key(file_id, group))
                if bitmap is not None:
                    own.copied[group] = bytearray(bitmap)
            return own
        case _:
            return desc


def _layer(layers: Mapping[int, Layer], number: int) -> Layer:
    try:
        return layers[number]
    except KeyError as exc:
        raise IntegrityError(
            f"a file body lies in layer {number}, which is gone", kind="layer.missing"
        ) from exc


# -- reading -------------------------------------------------------------------------------


def read_body(content: BodyContent, offset: int, length: int, source: ChunkSource) -> bytes:
    """Return exactly `length` bytes from `offset`; past the end of the body come zeros.

    Raises:
        IntegrityError: Stored bytes are missing or wrong.
    """
    match content:
        case None:
            return bytes(length)
        case bytes():
            return _padded(content[offset : offset + length], length)
        case Run():
            return content.layer.read_segment(content.offset + offset, length)
        case Chunks(refs):
            if len(refs) == 1:
                chunk = source.load_chunk(refs[0])
                if offset == 0 and length == len(chunk):
                    return chunk
                return _padded(chunk[offset : offset + length], length)
            return _read_chunks(refs, offset, length, source)
        case LongContent(ref):
            refs = source.load_chunk_list(ref)
            return _read_chunks(refs, offset, length, source, ends=_ends_of_list(ref.id, refs))
        case OwnFile():
            return _read_own(content, offset, length, source)
        case _:
            raise IntegrityError("a file has the content of another kind", kind="layer.kind")


def _padded(data: bytes, length: int) -> bytes:
    return data if len(data) == length else data + bytes(length - len(data))


def _read_chunks(
    refs: tuple[ChunkRef, ...],
    offset: int,
    length: int,
    source: ChunkSource,
    *,
    ends: Sequence[int] | None = None,
) -> bytes:
    if ends is None:
        ends = list(accumulate(ref.size_bytes for ref in refs))
    parts = []
    end = offset + length
    index = bisect_right(ends, offset)
    while index < len(refs) and offset < end:
        start = ends[index] - refs[index].size_bytes
        part = source.load_chunk(refs[index])[offset - start : end - start]
        parts.append(part)
        offset += len(part)
        index += 1
    return _padded(b"".join(parts), length)


_list_ends: dict[bytes, Sequence[int]] = {}
"""Where the chunks of recently read long files end, by chunk list id. Never stale: a list never
changes. Only saves adding up thousands of sizes again for each read."""
_LIST_ENDS_MAX: Final = 64


def _ends_of_list(list_id: bytes, refs: tuple[ChunkRef, ...]) -> Sequence[int]:
    ends = _list_ends.get(list_id)
    if ends is None:
        if len(_list_ends) >= _LIST_ENDS_MAX:
            _list_ends.clear()
        ends = _list_ends[list_id] = list(accumulate(ref.size_bytes for ref in refs))
    return ends


def _read_own(own: OwnFile, offset: int, length: int, source: ChunkSource) -> bytes:
    if own.lower_bytes <= offset:
        return _pread_own(own, offset, length)
    parts = []
    end = offset + length
    while offset < end:
        block = offset // BLOCK_BYTES
        is_own = own.is_own(block)
        stop = (block + 1) * BLOCK_BYTES
        while stop < end and own.is_own(stop // BLOCK_BYTES) == is_own:
            stop += BLOCK_BYTES
        stop = min(stop, end)
        if is_own:
            parts.append(_pread_own(own, offset, stop - offset))
        else:
            # The last lower block may end before the block does: zeros follow.
            inside = max(0, min(stop, own.lower_bytes) - offset)
            part = read_body(own.lower, offset, inside, source)
            parts.append(_padded(part, stop - offset))
        offset = stop
    return b"".join(parts)


def _pread_own(own: OwnFile, offset: int, length: int) -> bytes:
    return _padded(own.layer.read_own(own.file_id, offset, length), length)


# -- writing -------------------------------------------------------------------------------


def write_body(
    layer: Layer,
    file_id: FileId,
    content: BodyContent,
    size_bytes: int,
    data: bytes,
    offset: int,
    source: ChunkSource,
) -> Change:
    """Write `data` at `offset` of a file of `size_bytes`, in the live layer.

    The bytes are in the layer on return; they count once the caller has committed the change.

    Raises:
        NoSpaceError: The disk is full; the file is as it was.
    """
    end = offset + len(data)
    if type(content) is Run and content.layer is layer and end <= size_bytes:
        layer.write_segment(data, content.offset + offset)
        return Change(content)
    if max(end, size_bytes) <= RUN_MAX_BYTES and not (
        type(content) is OwnFile and content.layer is layer
    ):
        return _write_run(layer, content, size_bytes, data, offset, source)
    return _write_own(layer, file_id, content, size_bytes, data, offset, source)


def _write_run(
    layer: Layer,
    content: BodyContent,
    size_bytes: int,
    data: bytes,
    offset: int,
    source: ChunkSource,
) -> Change:
    end = offset + len(data)
    if size_bytes == 0 and not (type(content) is Run and content.layer is layer):
        whole = bytes(offset) + data if offset else data
        return Change(Run(layer, layer.append_run(whole), len(whole)))
    if type(content) is Run and content.layer is layer:
        at_end = content.offset + content.capacity_bytes == layer.segment_end
        if end <= content.capacity_bytes or at_end:
            # What stands past the size may be left over from a longer time: a gap is zeroed.
            gap = max(0, offset - size_bytes)
            layer.write_segment(bytes(gap) + data if gap else data, content.offset + offset - gap)
            if end <= content.capacity_bytes:
                return Change(content)
            return Change(Run(layer, content.offset, end))
    old = read_body(content, 0, size_bytes, source)
    whole = old[:offset] + bytes(max(0, offset - size_bytes)) + data + old[end:]
    if type(content) is Run and content.layer is layer:
        # It grew although something stands behind it: it may do so again, so leave room.
        capacity = min(RUN_MAX_BYTES, max(4096, 2 * len(whole)))
        return Change(
            Run(layer, layer.append_run(whole, capacity_bytes=capacity), capacity), dead=content
        )
    return Change(Run(layer, layer.append_run(whole), len(whole)))


def _write_own(
    layer: Layer,
    file_id: FileId,
    content: BodyContent,
    size_bytes: int,
    data: bytes,
    offset: int,
    source: ChunkSource,
) -> Change:
    end = offset + len(data)
    if type(content) is OwnFile and content.layer is layer:
        change = Change(content)
        own = content
        pieces = _missing_edges(own, offset, end, source)
        if offset > size_bytes:
            layer.truncate_own(file_id, size_bytes)  # nothing stale may show in the gap
    else:
        own, pieces, dead = _new_own(layer, file_id, content, size_bytes, offset, end, source)
        change = Change(own, dead=dead)
    for at, piece in pieces:
        layer.write_own(file_id, piece, at)
    layer.write_own(file_id, data, offset)
    if not own.is_own(offset // BLOCK_BYTES) or own.lower_bytes > offset:
        change.groups = _mark_copied(own, offset, end)
        change.rows = [
            (block_key(file_id, group), bytes(bits)) for group, bits in change.groups.items()
        ]
    return change


def _new_own(
    layer: Layer,
    file_id: FileId,
    content: BodyContent,
    size_bytes: int,
    offset: int,
    end: int,
    source: ChunkSource,
) -> tuple[OwnFile, list[tuple[int, bytes]], Run | None]:
    """Return a new own file for a body, the pieces to copy into it, and the run it replaces."""
    dead = content if type(content) is Run and content.layer is layer else None
    if size_bytes <= RUN_MAX_BYTES:
        old = read_body(content, 0, size_bytes, source)
        own = OwnFile(layer, file_id, None, 0)
        pieces = [(0, old)] if old else []
    else:
        own = OwnFile(layer, file_id, content, size_bytes)
        pieces = _missing_edges(own, offset, end, source)
    layer.create_own(file_id)
    return own, pieces, dead


def _missing_edges(
    own: OwnFile, offset: int, end: int, source: ChunkSource
) -> list[tuple[int, bytes]]:
    """Return what the first and last block of a write need from the content below."""
    pieces: list[tuple[int, bytes]] = []
    first, last = offset // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
    start = first * BLOCK_BYTES
    if not own.is_own(first) and offset > start:
        # The content below may end before the write begins: the gap is zeros, as the file has.
        length = min(offset, own.lower_bytes) - start
        pieces.append((start, read_body(own.lower, start, length, source)))
    stop = min((last + 1) * BLOCK_BYTES, own.lower_bytes)
    if not own.is_own(last) and end < stop:
        pieces.append((end, read_body(own.lower, end, stop - end, source)))
    return pieces


def _mark_copied(own: OwnFile, offset: int, end: int) -> dict[int, bytearray]:
    groups: dict[int, bytearray] = {}
    for block in range(offset // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
        if own.is_own(block):
            continue
        number, at = divmod(block, BLOCKS_PER_GROUP)
        if number not in groups:
            groups[number] = bytearray(own.copied.get(number, bytes(BLOCKS_PER_GROUP // 8)))
        groups[number][at >> 3] |= 1 << (at & 7)
    return groups


def resize_body(
    layer: Layer,
    file_id: FileId,
    content: BodyContent,
    size_bytes: int,
    new_bytes: int,
    source: ChunkSource,
) -> Change:
    """Set the length of a file of `size_bytes`, in the live layer; new bytes are zeros.

    The caller cuts the own file to `cut_to` after it has committed the change.

    Raises:
        NoSpaceError: The disk is full; the file is as it was.
    """
    if type(content) is OwnFile and content.layer is layer:
        return _resize_own(content, size_bytes, new_bytes, source)
    is_live_run = type(content) is Run and content.layer is layer
    if new_bytes == 0:
        return Change(None, dead=content if is_live_run else None)  # type: ignore[arg-type]  # a Run then
    if is_live_run and new_bytes <= size_bytes:
        return Change(content)
    if new_bytes <= RUN_MAX_BYTES:
        if new_bytes > size_bytes:
            zeros = bytes(new_bytes - size_bytes)
            return _write_run(layer, content, size_bytes, zeros, size_bytes, source)
        whole = read_body(content, 0, new_bytes, source)
        return Change(Run(layer, layer.append_run(whole), len(whole)))
    kept = min(size_bytes, new_bytes)
    own, pieces, dead = _new_own(layer, file_id, content, kept, kept, kept, source)
    for at, piece in pieces:
        layer.write_own(file_id, piece, at)
    return Change(own, dead=dead)


def _resize_own(own: OwnFile, size_bytes: int, new_bytes: int, source: ChunkSource) -> Change:
    layer = own.layer
    if new_bytes >= size_bytes:
        layer.truncate_own(own.file_id, size_bytes)  # nothing stale may show past the old end
        return Change(own)
    if new_bytes >= own.lower_bytes:
        return Change(own, cut_to=new_bytes)
    block = new_bytes // BLOCK_BYTES
    start = block * BLOCK_BYTES
    shorter = OwnFile(layer, own.file_id, own.lower if start else None, start)
    shorter.copied = own.copied
    if start < new_bytes and not own.is_own(block):
        layer.write_own(own.file_id, read_body(own.lower, start, new_bytes - start, source), start)
    return Change(shorter, cut_to=new_bytes)
