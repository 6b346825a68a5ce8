"""Reading ahead: many nodes in few requests, and nothing that load_ would not have found."""

from __future__ import annotations

import random

import pytest

from tests.unit.recording_backend import RecordingBackend
from workspacefs.errors import IntegrityError
from workspacefs.ids import FileId, PackId
from workspacefs.objects.chunk_lists import encode_chunk_list
from workspacefs.objects.entry import Entry
from workspacefs.objects.nodes import encode_leaf
from workspacefs.objects.refs import ChunkRef, Locator, Ref
from workspacefs.packs.prefetch import (
    GAP_MAX_BYTES,
    RANGE_MAX_BYTES,
    FramePlace,
    join_frames,
)
from workspacefs.packs.reader import ObjectStore
from workspacefs.packs.table import pack_key
from workspacefs.packs.writer import ObjectWriter

PACK, OTHER = PackId(b"p" * 16), PackId(b"q" * 16)


def store_leaves(backend: RecordingBackend, count: int) -> list[Ref]:
    """Store leaves of 30 KB that do not compress."""
    writer = ObjectWriter(backend)
    refs = []
    for number in range(count):
        xattrs = ((b"user.x", random.Random(number).randbytes(30_000)),)
        entry = Entry(b"f", 0o100644, 0, 0, 0, 5, 5, FileId(9), 1, None, xattrs)
        refs.append(writer.add_node(*encode_leaf([entry])))
    writer.finish()
    return refs


def test_frames_are_joined_over_small_gaps_only() -> None:
    """Neighbours share a range; a wide gap, another pack, or a full range begins a new one."""
    near = [FramePlace(PACK, 32, 100), FramePlace(PACK, 132 + GAP_MAX_BYTES, 100)]
    far = FramePlace(PACK, near[1].offset + 101 + GAP_MAX_BYTES, RANGE_MAX_BYTES)
    after = FramePlace(PACK, far.offset + far.length, 5)
    other = FramePlace(OTHER, 32, 100)

    ranges = join_frames([other, after, far, *near, near[0]])

    assert [one.frames for one in ranges] == [tuple(near), (far,), (after,), (other,)]
    assert [(one.offset, one.length) for one in ranges] == [
        (32, 200 + GAP_MAX_BYTES),
        (far.offset, far.length),
        (after.offset, 5),
        (32, 100),
    ]


def test_every_frame_lies_in_its_range() -> None:
    """Whatever locators claim, overlaps included, each frame is covered by one range."""
    rng = random.Random(1)
    for _ in range(300):
        places = {
            FramePlace(rng.choice([PACK, OTHER]), rng.randrange(10**7), rng.randrange(1, 3 * 10**6))
            for _ in range(rng.randrange(30))
        }

        ranges = join_frames(places)

        covered = [place for one in ranges for place in one.frames]
        assert sorted(covered) == sorted(places)
        for one in ranges:
            for place in one.frames:
                assert place.pack_id == one.pack_id
                assert one.offset <= place.offset
                assert place.offset + place.length <= one.offset + one.length
            assert one.length <= RANGE_MAX_BYTES or len(one.frames) == 1


def test_prefetched_nodes_need_no_request() -> None:
    """Sixty nodes in twenty frames come in one request; loading them asks for nothing."""
    backend = RecordingBackend()
    refs = store_leaves(backend, 60)
    store = ObjectStore(backend)

    with backend.recorded() as ahead:
        assert store.prefetch_nodes(refs)
    with backend.recorded() as after:
        nodes = [store.load_node(ref) for ref in refs]
        store.prefetch_nodes(refs)

    assert [one.kind for one in ahead] == ["get packs"]
    assert after == []
    assert [node.names for node in nodes] == [[b"f"]] * 60  # type: ignore[union-attr]  # leaves


def test_ranges_are_read_at_the_same_time() -> None:
    """What does not fit one range is asked for all at once."""
    backend = RecordingBackend()
    refs = store_leaves(backend, 600)
    store = ObjectStore(backend)

    with backend.together(["get packs"] * 4):
        store.prefetch_nodes(refs)

    assert backend.most_at_once >= 4


def test_near_store_is_left_alone() -> None:
    """On a local store nothing is read ahead, and the references are not even looked at."""
    store = ObjectStore(RecordingBackend(is_local=True))

    assert not store.prefetch_nodes(pytest.fail("looked at") for _ in range(1))
    assert not store.prefetch_chunk_lists(pytest.fail("looked at") for _ in range(1))


def test_damage_is_left_for_load_to_tell() -> None:
    """A flipped byte, a wrong place or a missing pack spoils nothing but its own node."""
    backend = RecordingBackend()
    refs = store_leaves(backend, 60)
    first = refs[0].locator
    assert first is not None
    key = pack_key(first.pack_id)
    stored = bytearray(backend.inner.get(key))
    stored[first.frame_offset + 2000] ^= 1
    backend.inner.delete(key)
    backend.inner.put(key, [stored])
    gone = Ref(b"g" * 32, Locator(PACK, 32, 500, 0, 100))
    beyond = Ref(b"b" * 32, Locator(first.pack_id, len(stored) + 10**7, 500, 0, 100))
    wrong = Ref(refs[1].id, refs[-1].locator)
    nowhere = Ref(b"n" * 32)
    store = ObjectStore(backend)

    store.prefetch_nodes([gone, beyond, wrong, nowhere, *refs])

    assert store.peek_node(refs[-1]) is not None
    for bad in (gone, beyond, wrong, nowhere, refs[0]):
        assert store.peek_node(bad) is None
    with pytest.raises(IntegrityError):
        store.load_node(refs[0])
    with pytest.raises(IntegrityError):
        store.load_node(gone)


def test_chunk_lists_are_prefetched_too() -> None:
    """The lists of long files come together."""
    backend = RecordingBackend()
    writer = ObjectWriter(backend)
    lists = [
        writer.add_chunk_list(
            *encode_chunk_list([ChunkRef(bytes([n, m]) * 16, 5) for m in range(20)])
        )
        for n in range(50)
    ]
    writer.finish()
    store = ObjectStore(backend)

    with backend.recorded() as made:
        store.prefetch_chunk_lists(lists)
        assert all(len(store.load_chunk_list(one)) == 20 for one in lists)

    assert len(made) == 1
