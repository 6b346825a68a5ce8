"""Writing into the live layer: what becomes of a body when bytes are put into it or cut off.

Order that every change keeps: bytes that no row names yet may be written before the row; bytes
that a row names are cut off only after the row has changed. So a crash at any moment leaves the
state before or after, apart from a plain overwrite that was still under way.

Whatever has to be read first is read before anything is changed, so a change that could not be
read for may be tried again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from workspacefs.ids import FileId
from workspacefs.layers.bodies import BodyContent, ChunkSource, OwnFile, Run, read_body
from workspacefs.layers.layer import Layer
from workspacefs.layers.rows import BLOCK_BYTES, BLOCKS_PER_GROUP, block_key

RUN_MAX_BYTES: Final = 256 * 1024
"""Longest body that is kept as a run; copying it whole costs less than a file of its own."""


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
        layer.segment.write(data, content.offset + offset)
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
        return Change(Run(layer, layer.segment.append(whole), len(whole)))
    if type(content) is Run and content.layer is layer:
        at_end = content.offset + content.capacity_bytes == layer.segment.end
        if end <= content.capacity_bytes or at_end:
            # What stands past the size may be left over from a longer time: a gap is zeroed.
            gap = max(0, offset - size_bytes)
            layer.segment.write(bytes(gap) + data if gap else data, content.offset + offset - gap)
            if end <= content.capacity_bytes:
                return Change(content)
            return Change(Run(layer, content.offset, end))
    old = read_body(content, 0, size_bytes, source)
    whole = old[:offset] + bytes(max(0, offset - size_bytes)) + data + old[end:]
    if type(content) is Run and content.layer is layer:
        # It grew although something stands behind it: it may do so again, so leave room.
        capacity = min(RUN_MAX_BYTES, max(4096, 2 * len(whole)))
        return Change(
            Run(layer, layer.segment.append(whole, capacity_bytes=capacity), capacity), dead=content
        )
    return Change(Run(layer, layer.segment.append(whole), len(whole)))


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
            layer.own.truncate(file_id, size_bytes)  # nothing stale may show in the gap
    else:
        own, pieces, dead = _new_own(layer, file_id, content, size_bytes, offset, end, source)
        change = Change(own, dead=dead)
    for at, piece in pieces:
        layer.own.write(file_id, piece, at)
    layer.own.write(file_id, data, offset)
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
    layer.own.create(file_id)
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
        return Change(Run(layer, layer.segment.append(whole), len(whole)))
    kept = min(size_bytes, new_bytes)
    own, pieces, dead = _new_own(layer, file_id, content, kept, kept, kept, source)
    for at, piece in pieces:
        layer.own.write(file_id, piece, at)
    return Change(own, dead=dead)


def _resize_own(own: OwnFile, size_bytes: int, new_bytes: int, source: ChunkSource) -> Change:
    layer = own.layer
    if new_bytes >= size_bytes:
        layer.own.truncate(own.file_id, size_bytes)  # nothing stale may show past the old end
        return Change(own)
    if new_bytes >= own.lower_bytes:
        return Change(own, cut_to=new_bytes)
    block = new_bytes // BLOCK_BYTES
    start = block * BLOCK_BYTES
    shorter = OwnFile(layer, own.file_id, own.lower if start else None, start)
    shorter.copied = own.copied
    if start < new_bytes and not own.is_own(block):
        layer.own.write(own.file_id, read_body(own.lower, start, new_bytes - start, source), start)
    return Change(shorter, cut_to=new_bytes)
