"""Contents as inodes keep them: the one reference of a small file in one string of bytes.

The kernel may hold a million inodes, and most are never read. As objects, the reference that a
small file has takes 510 bytes; packed it takes 120, and reading it back 1 µs. Files of several
chunks stay as they are: whoever follows how one is read knows it by its sequence of references
(residency.py).
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

from workspacefs.ids import PackId
from workspacefs.layers.bodies import BodyContent
from workspacefs.objects.entry import Chunks
from workspacefs.objects.refs import ChunkRef, Locator

_REF: Final = struct.Struct("<32s16s4IQ")
"""Id, pack id, frame_offset, frame_bytes, inner_offset, inner_bytes, size_bytes."""


class PackedChunk(bytes):
    """The reference of a Chunks that has one, as a `_REF`."""

    __slots__ = ()


KeptContent: TypeAlias = BodyContent | PackedChunk


def keep_content(content: BodyContent) -> KeptContent:
    """Return the short form of a content that has one, else the content."""
    if type(content) is not Chunks or len(content.refs) != 1:
        return content
    (ref,) = content.refs
    if ref.locator is None:
        return content  # it may be filled in later, for everyone who has the reference
    try:
        return PackedChunk(_REF.pack(ref.id, *ref.locator, ref.size_bytes))
    except struct.error:
        return content  # no pack is that long: damaged; reading says so


def give_content(kept: KeptContent) -> BodyContent:
    """Return the content of which keep_content() made `kept`; the reference is a new one."""
    if type(kept) is not PackedChunk:
        return kept
    chunk_id, pack_id, offset, stored, inner, plain, size = _REF.unpack(kept)
    return Chunks(
        (ChunkRef(chunk_id, size, Locator(PackId(pack_id), offset, stored, inner, plain)),)
    )
