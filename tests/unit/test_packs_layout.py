"""Which packs a writer makes, and how they go to the store."""

from __future__ import annotations

import random
import threading

import pytest

from tests.unit.recording_backend import RecordingBackend, kinds_of
from workspacefs.errors import NoSpaceError, UnavailableError
from workspacefs.ids import FileId
from workspacefs.objects.entry import Chunks, Entry
from workspacefs.objects.nodes import encode_leaf
from workspacefs.packs.builder import MIXED_PACK_BYTES
from workspacefs.packs.table import ObjectKind, load_table
from workspacefs.packs.writer import ObjectWriter, WriteSummary


@pytest.fixture
def backend() -> RecordingBackend:
    return RecordingBackend()


def write_files(writer: ObjectWriter, count: int, *, size: int = 60_000) -> None:
    """Store files of noise, each in a directory of its own."""
    for number in range(count):
        chunk = writer.add_chunk(random.Random(number).randbytes(size))
        content, xattrs = Chunks((chunk,)), ((b"user.x", random.Random(-number).randbytes(3000)),)
        entry = Entry(b"f%d" % number, 0o100644, 0, 0, size, 5, 5, FileId(9), 1, content, xattrs)
        writer.add_node(*encode_leaf([entry]))


def kinds_in_packs(backend: RecordingBackend, summary: WriteSummary) -> list[set[ObjectKind]]:
    """Return which kinds of objects lie in each pack, in order of upload."""
    return [
        {kind for kind, _, _ in load_table(backend.inner, pack).iter_objects(pack)}
        for pack in summary.packs
    ]


@pytest.mark.parametrize("threads", [0, 2])
def test_little_is_one_pack_in_the_callers_thread(backend: RecordingBackend, threads: int) -> None:
    """Data and metadata that fit one small pack are one request, without a thread for it."""
    writer = ObjectWriter(backend, threads=threads)
    write_files(writer, 5)

    summary = writer.finish()

    assert kinds_in_packs(backend, summary) == [{ObjectKind.CHUNK, ObjectKind.NODE}]
    assert [one.kind for one in backend.requests] == ["put packs"]
    assert backend.requests[0].thread == threading.get_ident()


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("is_local", [False, True])
def test_metadata_of_much_lies_apart(threads: int, is_local: bool) -> None:
    """After the first pack, which is small, no pack holds both data and metadata."""
    backend = RecordingBackend(is_local=is_local)
    writer = ObjectWriter(backend, threads=threads, pack_bytes=2 * MIXED_PACK_BYTES)
    write_files(writer, 400)

    summary = writer.finish()

    first, *others = kinds_in_packs(backend, summary)
    assert threads or first == {ObjectKind.CHUNK, ObjectKind.NODE}
    assert others.count({ObjectKind.NODE}) == 1
    assert others.count({ObjectKind.CHUNK}) == len(others) - 1 == 3
    lengths = {one.key: one.length for one in backend.requests}
    assert min(lengths.values()) > 0
    assert lengths[f"packs/{summary.packs[0].hex()}.pack"] < MIXED_PACK_BYTES + 10_000


def test_four_packs_are_under_way_at_once(backend: RecordingBackend) -> None:
    """A writer waits for room, not for each pack."""
    writer = ObjectWriter(backend, threads=0, pack_bytes=500_000)

    with backend.together(["put packs"] * 4):
        write_files(writer, 100)
        writer.finish()

    assert backend.most_at_once == 4


def test_last_packs_and_what_goes_beside_them_are_one_round(backend: RecordingBackend) -> None:
    """Data, metadata and a value beside them are stored at the same time."""
    writer = ObjectWriter(backend, threads=0, pack_bytes=500_000)
    write_files(writer, 10)
    before = kinds_of(backend.requests)
    assert before == ["put packs"]

    with backend.together(["put packs", "put packs", "put ops"]):
        writer.finish(beside={"ops/1": b"entry"})

    assert backend.inner.get("ops/1") == b"entry"


def test_value_beside_nothing_is_stored(backend: RecordingBackend) -> None:
    """A writer that stored no object still stores what goes beside."""
    summary = ObjectWriter(backend).finish(beside={"ops/1": b"entry"})

    assert summary.packs == ()
    assert backend.inner.get("ops/1") == b"entry"


class _Refusing(RecordingBackend):
    """Refuses what it is told to."""

    refused: dict[str, Exception]

    def put(self, key, parts) -> None:  # type: ignore[no-untyped-def]  # as inherited
        """Fail, or store."""
        prefix = key.partition("/")[0]
        if prefix in self.refused:
            raise self.refused[prefix]
        super().put(key, parts)

    def delete(self, key: str) -> None:
        """Fail, or delete."""
        super().delete(key)
        if "delete" in self.refused:
            raise self.refused["delete"]


def test_failed_value_beside_fails_finish_and_is_taken_back() -> None:
    """Packs do not stay when what goes beside them could not be stored."""
    backend = _Refusing()
    backend.refused = {"ops": NoSpaceError("full")}
    writer = ObjectWriter(backend, pack_bytes=500_000)
    write_files(writer, 30)

    with pytest.raises(NoSpaceError):
        writer.finish(beside={"ops/1": b"entry"})
    writer.abort()

    assert list(backend.inner.iter_keys("")) == []


def test_abort_does_not_ask_a_dead_store_for_each_pack() -> None:
    """One request that is not answered is enough to know."""
    backend = _Refusing()
    backend.refused = {"delete": UnavailableError("away")}
    writer = ObjectWriter(backend, pack_bytes=500_000)
    write_files(writer, 50)
    writer.finish()

    writer.abort()

    assert [one.kind for one in backend.requests].count("delete packs") == 1


def test_error_after_finish_keeps_the_packs(backend: RecordingBackend) -> None:
    """Once all is stored a ref may name it: an unclear answer must not take it back."""
    with pytest.raises(UnavailableError), ObjectWriter(backend) as writer:
        write_files(writer, 3)
        writer.finish()
        raise UnavailableError("whether the ref moved is not known")

    assert len(list(backend.inner.iter_keys("packs/"))) == 1
