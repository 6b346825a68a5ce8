"""Making one frozen layer of several, so that looking something up asks few.

The newest row of a key counts; of who changed a file, all do. Bodies come along: runs are copied,
own files are linked (they never change any more), and where a file has own files in several of the
layers, the blocks that show are copied into one. Content in layers that are not merged, or in the
store, stays where it is.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Final

from workspacefs.ids import FileId
from workspacefs.layers.bodies import BodyContent, OwnFile, content_from_desc, content_to_desc
from workspacefs.layers.database import Snapshot
from workspacefs.layers.layer import Layer
from workspacefs.layers.rows import (
    BLOCK_BYTES,
    BLOCKS_PER_GROUP,
    ContentDesc,
    OwnFileDesc,
    RunDesc,
    block_key,
    decode_inode,
    encode_inode,
    is_inode_key,
)
from workspacefs.layers.writers import merged_rows

_BATCH_ROWS: Final = 2000
_PIECE_BLOCKS: Final = 16

_Row = tuple[bytes, bytes | None]


def flatten(merged: Sequence[Layer], target: Layer, layers: Mapping[int, Layer]) -> None:
    """Bring into the empty layer `target` what `merged` show together.

    Nothing of it survives power loss before `target` is settled (journal.py).

    Args:
        merged: Frozen layers, the newest first, with none between them.
        target: Of this process alone.
        layers: By number, all that rows of `merged` may name.

    Raises:
        NoSpaceError: The disk is full; `target` is of no use.
    """
    _Flattening(merged, target, layers).run()


def layers_to_merge(sizes: Sequence[int]) -> int:
    """Return how many of the newest layers to merge so that few stay and each byte is copied
    seldom; 0: none.

    A layer is taken in while it is at most twice as large as all newer ones together: with n
    merges, a row is copied log n times, and log n layers stay.

    Args:
        sizes: Of the layers, whatever the unit, the newest first.
    """
    taken, total = 0, 0
    for size in sizes:
        if taken and size > 2 * total:
            break
        taken, total = taken + 1, total + max(size, 1)
    return taken if taken > 1 else 0


def size_of_layer(layer: Layer) -> int:
    """Return what copying a layer costs, in bytes, about; own files are linked and cost nothing."""
    return layer.rows.count() * 256 + layer.segment.end


class _Flattening:
    def __init__(self, merged: Sequence[Layer], target: Layer, layers: Mapping[int, Layer]) -> None:
        self._merged = {layer.number: layer for layer in merged}
        self._target = target
        self._layers = layers
        self._rows: list[_Row] = []

    def run(self) -> None:
        with ExitStack() as stack:
            snapshots = [stack.enter_context(layer.snapshot()) for layer in self._merged.values()]
            for prefix in (b"D", b"I"):
                for key, value in _newest(snapshots, prefix):
                    if prefix == b"I":
                        if not is_inode_key(key):
                            continue  # of who changed it
                        value = self._moved(FileId(int.from_bytes(key[1:], "big")), value)
                    self._put(key, value)
            for key, value in merged_rows(snapshots):
                self._put(key, value)
        self._flush()

    def _put(self, key: bytes, value: bytes) -> None:
        self._rows.append((key, value))
        if len(self._rows) >= _BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        self._target.rows.commit(self._rows)
        self._rows = []

    def _moved(self, file_id: FileId, value: bytes) -> bytes:
        row = decode_inode(value)
        content = self._moved_content(file_id, row.content, row.size_bytes)
        return value if content is row.content else encode_inode(row._replace(content=content))

    def _moved_content(self, file_id: FileId, content: ContentDesc, size_bytes: int) -> ContentDesc:
        match content:
            case RunDesc(number, offset, _) if number in self._merged:
                if size_bytes == 0:
                    return None
                data = self._merged[number].segment.read(offset, size_bytes)
                return RunDesc(self._target.number, self._target.segment.append(data), len(data))
            case OwnFileDesc(number) if number in self._merged:
                own = content_from_desc(content, file_id, self._layers)
                assert isinstance(own, OwnFile)
                if self._is_merged(own.lower):
                    own, lower = self._combined(file_id, own, size_bytes)
                else:
                    self._link(own, file_id)
                    lower = content.lower
                for group, bits in own.copied.items():
                    self._put(block_key(file_id, group), bytes(bits))
                lower = self._moved_content(file_id, lower, own.lower_bytes)
                return OwnFileDesc(self._target.number, own.lower_bytes, lower)
            case _:
                return content

    def _is_merged(self, content: BodyContent) -> bool:
        return isinstance(content, OwnFile) and content.layer.number in self._merged

    def _link(self, own: OwnFile, file_id: FileId) -> None:
        os.link(own.layer.own.path(own.file_id), self._target.own.path(file_id))

    def _combined(
        self, file_id: FileId, newest: OwnFile, size_bytes: int
    ) -> tuple[OwnFile, ContentDesc]:
        """Return one own file in the place of several that lie over each other, and what lies
        beneath them all.
        """
        chain = [newest]
        while self._is_merged(lower := chain[-1].lower):
            assert isinstance(lower, OwnFile)
            chain.append(lower)
        beneath = chain[-1].lower
        made = OwnFile(self._target, file_id, beneath, min(own.lower_bytes for own in chain))
        self._target.own.create(file_id)
        for own, first, stop in _spans(chain, -(-size_bytes // BLOCK_BYTES)):
            start, length = first * BLOCK_BYTES, (stop - first) * BLOCK_BYTES
            if not own.layer.own.is_hole(own.file_id, start, length):
                data = own.layer.own.read(own.file_id, start, length)
                self._target.own.write(file_id, data, start)
            for block in range(first, min(stop, -(-made.lower_bytes // BLOCK_BYTES))):
                group, at = divmod(block, BLOCKS_PER_GROUP)
                bits = made.copied.setdefault(group, bytearray(BLOCKS_PER_GROUP // 8))
                bits[at >> 3] |= 1 << (at & 7)
        return made, content_to_desc(beneath, file_id)


def _newest(snapshots: Sequence[Snapshot], prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the newest value of each key that begins with `prefix`, in order of key."""
    streams = (_aged(snapshot, prefix, age) for age, snapshot in enumerate(snapshots))
    last = None
    for key, _, value in heapq.merge(*streams):
        if key != last:
            yield key, value
            last = key


def _aged(snapshot: Snapshot, prefix: bytes, age: int) -> Iterator[tuple[bytes, int, bytes]]:
    for key, value in snapshot.iter_rows(prefix):
        yield key, age, value


def _spans(chain: Sequence[OwnFile], blocks: int) -> Iterator[tuple[OwnFile, int, int]]:
    """Yield (own file, first block, block after the last) of what each of `chain` shows, in pieces
    that fit in memory; what shows from beneath all is left out.
    """
    block = 0
    while block < blocks:
        owner = _owner(chain, block)
        stop = block + 1
        while stop < min(blocks, block + _PIECE_BLOCKS) and _owner(chain, stop) is owner:
            stop += 1
        if owner is not None:
            yield owner, block, stop
        block = stop


def _owner(chain: Sequence[OwnFile], block: int) -> OwnFile | None:
    return next((own for own in chain if own.is_own(block)), None)
