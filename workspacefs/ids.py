"""Identities of stored things, and the one place where they are computed.

Every id of content is BLAKE3-256 in keyed mode; the key names the kind of object, so that bytes
of one kind can never be passed off as another. This module must not know how objects are encoded
or stored.

Source: BLAKE3 specification, section 2.3 (modes): keyed_hash with a 32-byte key.
"""

from __future__ import annotations

from typing import Final, NewType

from blake3 import blake3

ChunkId = NewType("ChunkId", bytes)
"""32 raw bytes: identity of a chunk's plain bytes."""
NodeId = NewType("NodeId", bytes)
"""32 raw bytes: identity of a tree node's body."""
ChunkListId = NewType("ChunkListId", bytes)
"""32 raw bytes: identity of a chunk list's body."""
CommitId = NewType("CommitId", bytes)
"""32 raw bytes: identity of a commit's body."""
FileId = NewType("FileId", int)
"""Identity of a file, 1 <= id < 2**63: high 39 bits an epoch, low 24 bits a counter."""
PackId = NewType("PackId", bytes)
"""16 raw bytes, drawn when a pack is begun; never derived from content, never reused."""

ID_BYTES: Final = 32
PACK_ID_BYTES: Final = 16

ROOT_FILE_ID: Final = FileId(1)
"""The root directory of every workspace; also FUSE's root node id."""
EPOCH_COUNTER_BITS: Final = 24
"""File ids handed out in one epoch: 2**24. Epoch 0 is reserved for the root."""
EPOCH_BITS: Final = 39

_CHUNK_KEY: Final = b"workspacefs:chunk".ljust(32, b"\0")
_NODE_KEY: Final = b"workspacefs:tree-node".ljust(32, b"\0")
_CHUNK_LIST_KEY: Final = b"workspacefs:chunk-list".ljust(32, b"\0")
_COMMIT_KEY: Final = b"workspacefs:commit".ljust(32, b"\0")


def chunk_id_of(plain: bytes | memoryview) -> ChunkId:
    """Return the id of a chunk with these plain bytes."""
    return ChunkId(blake3(plain, key=_CHUNK_KEY).digest())


def node_id_of(body: bytes | memoryview) -> NodeId:
    """Return the id of a tree node with this body."""
    return NodeId(blake3(body, key=_NODE_KEY).digest())


def chunk_list_id_of(body: bytes | memoryview) -> ChunkListId:
    """Return the id of a chunk list with this body."""
    return ChunkListId(blake3(body, key=_CHUNK_LIST_KEY).digest())


def commit_id_of(body: bytes | memoryview) -> CommitId:
    """Return the id of a commit with this body."""
    return CommitId(blake3(body, key=_COMMIT_KEY).digest())
