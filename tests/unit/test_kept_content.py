"""Contents as inodes keep them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workspacefs.ids import PackId
from workspacefs.layers.bodies import BodyContent
from workspacefs.objects.entry import Chunks, Device, LongContent, Subtree
from workspacefs.objects.refs import ChunkRef, Locator, Ref
from workspacefs_daemon.vfs.kept_content import PackedChunk, give_content, keep_content

numbers = st.integers(0, 2**32 - 1)
locators = st.builds(
    Locator, st.binary(min_size=16, max_size=16).map(PackId), numbers, numbers, numbers, numbers
)
refs = st.builds(
    ChunkRef, st.binary(min_size=32, max_size=32), st.integers(1, 2**63 - 1), st.just(None)
)


@given(refs, locators)
def test_chunk_comes_back_as_it_was(ref: ChunkRef, locator: Locator) -> None:
    """Id, size and locator."""
    kept = keep_content(Chunks((ChunkRef(ref.id, ref.size_bytes, locator),)))
    given_back = give_content(kept)

    assert type(kept) is PackedChunk
    assert isinstance(given_back, Chunks)
    (found,) = given_back.refs
    assert (found.id, found.size_bytes, found.locator) == (ref.id, ref.size_bytes, locator)


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"inline",
        Subtree(),
        Device(5),
        LongContent(Ref(bytes(32))),
        Chunks((ChunkRef(bytes(32), 1),)),
        Chunks((ChunkRef(bytes(32), 1, Locator(PackId(bytes(16)), -1, 2, 3, 4)),)),
        Chunks((ChunkRef(bytes(32), 1, Locator(PackId(bytes(16)), 1, 2, 3, 4)),) * 2),
    ],
)
def test_everything_else_is_kept_as_it_is(content: BodyContent) -> None:
    """What someone may still fill in, what reading has to complain about, and what is known by the
    object that it is.
    """
    assert keep_content(content) is content
    assert give_content(content) is content
