"""File bodies: what a content may be, and reading any of them.

A body in a layer is a Run (a span of the segment, for small files) or an OwnFile (a sparse file
that may lie over older content and copies 64 KiB blocks from it when they are first touched).
Content in any older place is immutable and is read where it is. Writing: see writing.py.

This module must not know inodes, names or FUSE. Reading may raise whatever the chunk source
raises.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
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


class ChunkSource(Protocol):
    """Where the bytes of chunks come from."""

    def load_chunk(self, ref: ChunkRef) -> bytes:
        """Return a chunk's plain bytes."""
        ...

    def load_chunk_list(self, ref: Ref) -> tuple[ChunkRef, ...]:
        """Return the chunks of a long file."""
        ...

    def note_read(self, refs: Sequence[ChunkRef], index: int) -> None:
        """Take note that chunk number `index` of a file of several is about to be read."""
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


def content_to_desc(content: BodyContent, file_id: FileId) -> ContentDesc:
    """Return the stored form of a content of a file."""
    match content:
        case Run():
            return RunDesc(content.layer.number, content.offset, content.capacity_bytes)
        case OwnFile():
            lower = content_to_desc(content.lower, file_id)
            other = 0 if content.file_id == file_id else content.file_id
            return OwnFileDesc(content.layer.number, content.lower_bytes, lower, other)
        case _:
            return content


def stored_content(content: BodyContent, file_id: FileId) -> object:
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
    return encode_content(content_to_desc(content, file_id))


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
        case OwnFileDesc(number, lower_bytes, lower, other):
            layer = _layer(layers, number)
            beneath = content_from_desc(lower, file_id, layers)
            own = OwnFile(layer, FileId(other) if other else file_id, beneath, lower_bytes)
            groups = -(-lower_bytes // (BLOCK_BYTES * BLOCKS_PER_GROUP))
            for group in range(groups):
                bitmap = layer.rows.get(block_key(own.file_id, group))
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
            return content.layer.segment.read(content.offset + offset, length)
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
        source.note_read(refs, index)
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
    return _padded(own.layer.own.read(own.file_id, offset, length), length)


def is_zero_span(content: BodyContent, offset: int, length: int) -> bool:
    """Tell of a span, without reading it, that it is all zeros; False where that is not known."""
    return (
        type(content) is OwnFile
        and offset >= content.lower_bytes
        and content.layer.own.is_hole(content.file_id, offset, length)
    )
