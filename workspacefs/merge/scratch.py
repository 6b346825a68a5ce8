"""Objects that are needed for the length of one merge: of a tree that stands for several bases."""

from __future__ import annotations

from collections.abc import Sequence

from workspacefs.ids import chunk_id_of, chunk_list_id_of, node_id_of
from workspacefs.merge.content import MergeSource
from workspacefs.objects.chunk_lists import decode_chunk_list
from workspacefs.objects.nodes import Node, decode_node
from workspacefs.objects.refs import Child, ChunkRef, Locator, LocatorSpan, Ref


class Scratch:
    """Keeps what is added in memory, and gives it beside what another source has."""

    def __init__(self, source: MergeSource) -> None:
        self._source = source
        self._chunks: dict[bytes, bytes] = {}
        self._nodes: dict[bytes, Node] = {}
        self._lists: dict[bytes, tuple[ChunkRef, ...]] = {}

    def add_chunk(self, plain: bytes | memoryview) -> ChunkRef:
        """Keep one chunk."""
        chunk_id = chunk_id_of(plain)
        self._chunks[chunk_id] = bytes(plain)
        return ChunkRef(chunk_id, len(plain))

    def add_chunk_list(self, body: bytes, children: Sequence[Child]) -> Ref:
        """Keep one chunk list."""
        list_id = chunk_list_id_of(body)
        locators = _locators_of(children)
        self._lists[list_id] = decode_chunk_list(body, locators, what="a chunk list of a merge")
        return Ref(list_id)

    def add_node(self, body: bytes, children: Sequence[Child]) -> Ref:
        """Keep one tree node."""
        node_id = node_id_of(body)
        locators = _locators_of(children)
        self._nodes[node_id] = decode_node(body, locators, what="a tree node of a merge")
        return Ref(node_id)

    def load_chunk(self, ref: ChunkRef) -> bytes:
        """Return the bytes of one chunk."""
        found = self._chunks.get(ref.id)
        return self._source.load_chunk(ref) if found is None else found

    def load_chunk_list(self, ref: Ref) -> tuple[ChunkRef, ...]:
        """Return one chunk list."""
        found = self._lists.get(ref.id)
        return self._source.load_chunk_list(ref) if found is None else found

    def load_node(self, ref: Ref) -> Node:
        """Return one tree node."""
        found = self._nodes.get(ref.id)
        return self._source.load_node(ref) if found is None else found


def _locators_of(children: Sequence[Child]) -> list[Locator | None]:
    locators: list[Locator | None] = []
    for child in children:
        if isinstance(child, LocatorSpan):
            locators += child.locators[child.start : child.stop]
        else:
            locators.append(child.locator)
    return locators
