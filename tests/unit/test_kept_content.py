"""Contents as inodes keep them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workspacefs.ids import PackId
from workspacefs.layers.bodies import BodyContent
from workspacefs.objects.entry import CHUNKS_MAX_IN_ENTRY, Chunks, Device, LongContent, Subtree
from workspacefs.objects.refs import ChunkRef, Locator, Ref
from workspacefs_daemon.vfs.kept_content import PackedChunks, give_content, keep_content

numbers = st.integers(0, 2**32 - 1)
locators = st.builds(
    Locator, st.binary(min_size=16, max_size=16).map(PackId), numbers, numbers, numbers, numbers
)
refs = st.builds(
    ChunkRef, st.binary(min_size=32, max_size=32), st.integers(1, 2**63 - 1), st.just(None)
)


@given(st.lists(st.tuples(refs, locators), min_size=1, max_size=CHUNKS_MAX_IN_ENTRY))
def test_chunks_come_back_as_they_were(pairs: list[tuple[ChunkRef, Locator]]) -> None:
    """Ids, sizes and locators, of one chunk and of as many as an entry may name."""
    chunks = Chunks(tuple(ChunkRef(ref.id, ref.size_bytes, locator) for ref, locator in pairs))

    kept = keep_content(chunks)
    given_back = give_content(kept)

    assert type(kept) is PackedChunks
    assert isinstance(given_back, Chunks)
    assert [(ref.id, ref.size_bytes, ref.locator) for ref in given_back.refs] == [
        (ref.id, ref.size_bytes, ref.locator) for ref in chunks.refs
    ]


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
    ],
)
def test_everything_else_is_kept_as_it_is(content: BodyContent) -> None:
    """Above all what someone may still fill in, and what reading has to complain about."""
    assert keep_content(content) is content
    assert give_content(content) is content
