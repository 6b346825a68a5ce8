"""All objects of a store in dicts, with counts of what was read and written."""

from __future__ import annotations

from collections.abc import Sequence

from workspacefs.ids import chunk_id_of, chunk_list_id_of
from workspacefs.objects.chunk_lists import decode_chunk_list
from workspacefs.objects.refs import ChunkRef, Ref
from workspacefs.testing.nodes import MemoryNodes


class MemoryObjects(MemoryNodes):
    """A source and sink of tree nodes, chunks and chunk lists."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks: dict[bytes, bytes] = {}
        self.chunk_loads = 0

    def add_chunk(self, plain: bytes | memoryview) -> ChunkRef:
        """Keep one chunk."""
        chunk_id = chunk_id_of(plain)
        self.chunks[chunk_id] = bytes(plain)
        return ChunkRef(chunk_id, len(plain))

    def add_chunk_list(self, body: bytes, children: Sequence[Ref]) -> Ref:
        """Keep one chunk list."""
        list_id = chunk_list_id_of(body)
        self.bodies[list_id] = body
        return Ref(list_id)

    def load_chunk(self, ref: ChunkRef) -> bytes:
        """Return the bytes of one chunk."""
        self.chunk_loads += 1
        return self.chunks[ref.id]

    def load_chunk_list(self, ref: Ref) -> tuple[ChunkRef, ...]:
        """Return one chunk list."""
        return decode_chunk_list(self.bodies[ref.id], (), what=f"chunk list {ref.id.hex()[:12]}")
