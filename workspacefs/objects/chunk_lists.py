"""Chunk lists: the chunks of one long file, in order.

One level is enough: at the largest chunk size a file of 1 TiB has about 260,000 chunks.
"""

from __future__ import annotations

from collections.abc import Sequence

from workspacefs.objects.encoding import decode, encode
from workspacefs.objects.refs import ChunkRef, Locator, Ref
from workspacefs.objects.rows import chunk_refs_of


def encode_chunk_list(refs: Sequence[ChunkRef]) -> tuple[bytes, list[Ref]]:
    """Return the body of a chunk list, and its references in body order."""
    return encode([part for ref in refs for part in (ref.id, ref.size_bytes)]), list(refs)


def decode_chunk_list(
    body: bytes, locators: Sequence[Locator | None], *, what: str
) -> tuple[ChunkRef, ...]:
    """Return the chunks that `body` lists; `locators` are theirs, in order.

    Raises:
        IntegrityError: The body is malformed.
    """
    return chunk_refs_of(decode(body, what=what), locators, 0, what=what)
