"""Chunks of a file that was changed in place which stay as they are, found without reading them.

Where a chunk ends depends on its own bytes alone, once its begin is given (FastCDC looks at nothing
behind the cut; pages lie at fixed places). So a chunk of the base that begins where a new one does,
and of which no byte has changed, is that new one. A change of a byte in a large file costs one
chunk or two, not a pass over the file, which in a far store would be a download.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeAlias

from workspacefs.chunking.paged import HEAD_BYTES, is_paged
from workspacefs.chunking.parameters import ChunkParameters
from workspacefs.layers.bodies import BodyContent, ChunkSource, OwnFile, read_body
from workspacefs.layers.rows import BLOCK_BYTES
from workspacefs.objects.entry import Chunks, LongContent
from workspacefs.objects.refs import ChunkRef

FindChunk: TypeAlias = Callable[[int], ChunkRef | None]
"""Returns the chunk that begins at an offset, if it is known without reading."""


def chunks_to_reuse(
    body: BodyContent, size_bytes: int, source: ChunkSource, params: ChunkParameters
) -> FindChunk | None:
    """Return what finds chunks to be taken over into a file of `size_bytes`; None: there are none.

    Blocks when a chunk list has to be read.
    """
    top = body
    overlays: list[OwnFile] = []
    while isinstance(body, OwnFile):
        overlays.append(body)
        body = body.lower
    if not overlays or not isinstance(body, Chunks | LongContent):
        return None
    refs: Sequence[ChunkRef]
    refs = body.refs if isinstance(body, Chunks) else source.load_chunk_list(body.ref)
    ends = list(accumulate(ref.size_bytes for ref in refs))
    if not _is_cut_alike(ends[-1], size_bytes, params):
        return None
    page_bytes = params.page_bytes_for(size_bytes)
    was_paged = all(ref.size_bytes == page_bytes for ref in refs[:-1])
    if is_paged(read_body(top, 0, HEAD_BYTES, source)) != was_paged:
        return None  # the first bytes have changed, and with them how the file is cut
    # The last chunk ends where the file does, whatever its bytes.
    kept_bytes = min(size_bytes, *(own.lower_bytes for own in overlays))
    starts = dict(zip((0, *ends[:-2]), refs[:-1], strict=True))

    def find(offset: int) -> ChunkRef | None:
        ref = starts.get(offset)
        if ref is None or offset + ref.size_bytes > kept_bytes:
            return None
        first, end = offset // BLOCK_BYTES, -(-(offset + ref.size_bytes) // BLOCK_BYTES)
        for own in overlays:
            if any(own.is_own(block) for block in range(first, end)):
                return None
        return ref

    return find


def _is_cut_alike(old_bytes: int, new_bytes: int, params: ChunkParameters) -> bool:
    return (
        min(old_bytes, new_bytes) > params.whole_max_bytes
        and params.avg_bytes_for(old_bytes) == params.avg_bytes_for(new_bytes)
        and params.page_bytes_for(old_bytes) == params.page_bytes_for(new_bytes)
    )
