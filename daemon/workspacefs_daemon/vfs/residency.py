"""What is in memory, and the signal that something is not.

Operations are plain functions that read what they need before they change anything. When a node or
a chunk is not at hand they raise NotResident; the caller loads it elsewhere and calls again, as
after a page fault. On a local store small loads are done on the spot: a thread hop costs more.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from workspacefs.objects.nodes import Node
from workspacefs.objects.refs import ChunkRef, Ref

T = TypeVar("T")

INLINE_LOAD_MAX_BYTES: Final = 128 * 1024
"""Largest chunk that is read from a local store without leaving the caller's thread: a frame of
that size is there and unpacked in about 150 µs."""


_LARGE_MAX_BYTES: Final = 24 << 20
"""Enough for what the kernel reads ahead of one reader (4 MiB), several times over."""


_READING_MAX: Final = 256


class NotResident(Exception):  # a signal, not an error
    """Something must be loaded first; call `load` on a thread that may block, then try again."""

    def __init__(self, load: Callable[[], object]) -> None:
        super().__init__("not in memory")
        self.load = load


class Store(Protocol):
    """The part of the object store that file operations need."""

    def load_node(self, ref: Ref) -> Node:
        """Return a node, blocking."""
        ...

    def near_node(self, ref: Ref) -> Node | None:
        """Return what is in memory or on a disk of this machine, or None."""
        ...

    def load_chunk(self, ref: ChunkRef) -> bytes:
        """Return a chunk, blocking."""
        ...

    def near_chunk(self, ref: ChunkRef) -> bytes | None:
        """Return what is in memory or on a disk of this machine, or None."""
        ...

    def load_chunk_list(self, ref: Ref) -> tuple[ChunkRef, ...]:
        """Return a chunk list, blocking."""
        ...

    def near_chunk_list(self, ref: Ref) -> tuple[ChunkRef, ...] | None:
        """Return what is in memory or on a disk of this machine, or None."""
        ...


class Resident:
    """Node and chunk source for code that must not wait."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.on_sequence: Callable[[Sequence[ChunkRef], int], None] | None = None
        """Hears when a file of many chunks is read in order: its chunks, and which is read now."""
        self._reading: OrderedDict[int, int] = OrderedDict()
        """Chunk that was read last, by identity of the file's sequence of chunks."""
        self._may_block = False
        self._large: OrderedDict[bytes, bytes] = OrderedDict()
        """Large chunks read last. The kernel reads a chunk in pieces, and the store verifies the
        whole chunk each time: for these once is enough."""
        self._large_bytes = 0
        self._large_lock = threading.Lock()
        self._loading: dict[bytes, threading.Lock] = {}

    def load_node(self, ref: Ref) -> Node:
        """Return a node, or raise NotResident."""
        node = self._store.near_node(ref)
        if node is not None:
            return node
        if self._may_block:
            return self._store.load_node(ref)
        raise NotResident(lambda: self._store.load_node(ref))

    def load_chunk(self, ref: ChunkRef) -> bytes:
        """Return a chunk, or raise NotResident."""
        if ref.size_bytes <= INLINE_LOAD_MAX_BYTES:
            chunk = self._store.near_chunk(ref)
            if chunk is None and self._may_block:
                return self._store.load_chunk(ref)
        else:
            chunk = self._large.get(ref.id)
            if chunk is None and self._may_block:
                return self._store.load_chunk(ref)
        if chunk is None:
            raise NotResident(lambda: self._load_large(ref))
        return chunk

    def _load_large(self, ref: ChunkRef) -> None:
        if ref.size_bytes <= INLINE_LOAD_MAX_BYTES:
            self._store.load_chunk(ref)  # the store keeps its frame
            return
        with self._large_lock:
            loading = self._loading.setdefault(ref.id, threading.Lock())
        # Pieces of one chunk are asked for at the same time: one of them loads it for all.
        with loading:
            if ref.id in self._large:
                return
            try:
                chunk = self._store.load_chunk(ref)
            finally:
                with self._large_lock:
                    self._loading.pop(ref.id, None)
            with self._large_lock:
                if ref.id not in self._large:
                    self._large[ref.id] = chunk
                    self._large_bytes += len(chunk)
                while self._large_bytes > _LARGE_MAX_BYTES and len(self._large) > 1:
                    self._large_bytes -= len(self._large.popitem(last=False)[1])

    def note_read(self, refs: Sequence[ChunkRef], index: int) -> None:
        """Take note that a chunk of a file of several is about to be read."""
        if self.on_sequence is None:
            return
        last = self._reading.get(id(refs), -1)
        if last == index:
            return
        self._reading[id(refs)] = index
        if len(self._reading) > _READING_MAX:
            self._reading.popitem(last=False)
        if index == last + 1:
            self.on_sequence(refs, index)

    def load_chunk_list(self, ref: Ref) -> tuple[ChunkRef, ...]:
        """Return the chunks of a long file, or raise NotResident."""
        refs = self._store.near_chunk_list(ref)
        if refs is not None:
            return refs
        if self._may_block:
            return self._store.load_chunk_list(ref)
        raise NotResident(lambda: self._store.load_chunk_list(ref))

    def run_blocking(self, operation: Callable[[], T]) -> T:
        """Run an operation with loads done on the spot: the way out when memory is so small that
        what one load brings pushes out what the last one brought.
        """
        self._may_block = True
        try:
            return operation()
        finally:
            self._may_block = False
