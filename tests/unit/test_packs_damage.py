"""Packs: whatever happens to stored bytes, the right ones are read or none, and the pack named."""

from __future__ import annotations

import random
import secrets
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import xxhash
import zstandard

from workspacefs.backend.file import FileBackend
from workspacefs.backend.memory import MemoryBackend
from workspacefs.errors import IntegrityError, RefusedError, UnavailableError
from workspacefs.ids import FileId, PackId, chunk_id_of
from workspacefs.objects.chunk_lists import encode_chunk_list
from workspacefs.objects.commits import Commit, encode_commit
from workspacefs.objects.entry import Chunks, Entry, Subtree, Totals
from workspacefs.objects.nodes import encode_leaf
from workspacefs.objects.refs import ChunkRef, Locator, Ref
from workspacefs.packs.frames import (
    FRAME_HEADER_BYTES,
    RunKind,
    decode_frame,
    encode_frame,
)
from workspacefs.packs.reader import ObjectStore
from workspacefs.packs.records import InSameFrame, decode_locators, encode_record, split_record
from workspacefs.packs.table import FOOTER_BYTES, PackTable, load_table, pack_key
from workspacefs.packs.writer import ObjectWriter
from workspacefs.testing.faulty import FaultyBackend, flip_byte


class Sample:
    """One pack with an object of each kind, and its bytes."""

    def __init__(self, first_seed: int = 0) -> None:
        self.backend = MemoryBackend(secrets.token_hex(8))
        self.plains = [
            random.Random(seed).randbytes(300) + bytes(300)
            for seed in range(first_seed, first_seed + 3)
        ]
        self.plains.append(random.Random(first_seed + 9).randbytes(1000))
        writer = ObjectWriter(self.backend, threads=0)
        self.chunks = [writer.add_chunk(plain) for plain in self.plains]
        self.chunk_list = writer.add_chunk_list(*encode_chunk_list(self.chunks))
        entry = Entry(b"f", 0o100644, 0, 0, 600, 5, 5, FileId(9), 1, Chunks((self.chunks[0],)))
        self.node = writer.add_node(*encode_leaf([entry]))
        content = Subtree(self.node, Totals(1, 0, 600, 0))
        root = Entry(b"", 0o40755, 0, 0, 0, 5, 5, FileId(1), 2, content)
        self.commit_value = Commit(root=root, parents=(), message="m", time_ns=1)
        self.commit = writer.add_commit(*encode_commit(self.commit_value))
        (self.pack_id,) = writer.finish().packs
        self.key = pack_key(self.pack_id)
        self.stored = self.backend.get(self.key)

    def with_bytes(self, stored: bytes) -> MemoryBackend:
        backend = MemoryBackend(secrets.token_hex(8))
        backend.put(self.key, [stored])
        return backend

    def check_all(self, store: ObjectStore) -> int:
        """Read every object; return how many were refused. Wrong data fails the test."""
        refused = 0
        reads = [
            *(
                (store.load_chunk, ref, plain)
                for ref, plain in zip(self.chunks, self.plains, strict=True)
            ),
            (store.load_chunk_list, self.chunk_list, tuple(self.chunks)),
            (lambda ref: store.load_node(ref).names, self.node, [b"f"]),
            (store.load_commit, self.commit, self.commit_value),
        ]
        for load, ref, expected in reads:
            try:
                found = load(ref)  # type: ignore[operator]  # a table of readers
            except IntegrityError as exc:
                refused += 1
                assert self.key in str(exc)
                assert exc.context["pack"] == self.key
                assert exc.context["id"] == ref.id.hex()
            else:
                assert found == expected
        return refused


@pytest.fixture(scope="module")
def sample() -> Sample:
    return Sample()


def test_every_flipped_byte_is_found(sample: Sample) -> None:
    """Whichever byte of a pack is flipped, every object reads right or its pack is named."""
    refusals = 0
    for at in range(len(sample.stored)):
        backend = sample.with_bytes(flip_byte(at)(sample.stored))
        refusals += sample.check_all(ObjectStore(backend)) > 0

    frames = sum(length for _, length in load_table(sample.backend, sample.pack_id).iter_frames())
    assert refusals == frames, "every byte of every frame is covered"


def test_every_cut_is_found(sample: Sample) -> None:
    """Wherever a pack is cut off, every object reads right or its pack is named."""
    for length in range(0, len(sample.stored), 7):
        sample.check_all(ObjectStore(sample.with_bytes(sample.stored[:length])))
    assert sample.check_all(ObjectStore(sample.with_bytes(sample.stored[:40]))) == 7


def test_missing_pack_is_damage(sample: Sample) -> None:
    """A pack that is gone is never "not found"."""
    backend = MemoryBackend(secrets.token_hex(8))

    assert sample.check_all(ObjectStore(backend)) == 7


def test_pack_swapped_for_another_is_found(sample: Sample) -> None:
    """A whole, valid pack under the wrong name serves nothing wrong."""
    other = Sample(first_seed=100)

    assert sample.check_all(ObjectStore(sample.with_bytes(other.stored))) == 7
    with pytest.raises(IntegrityError, match="copy of pack"):
        load_table(sample.with_bytes(other.stored), sample.pack_id)


def test_flipped_tail_is_found(sample: Sample) -> None:
    """A table is read right or refused, whichever byte of the tail is flipped."""
    offset = max(sum(frame) for frame in load_table(sample.backend, sample.pack_id).iter_frames())
    for at in range(offset, len(sample.stored)):
        with pytest.raises((IntegrityError, RefusedError), match=sample.key):
            load_table(sample.with_bytes(flip_byte(at)(sample.stored)), sample.pack_id)
    for length in range(len(sample.stored)):
        with pytest.raises(IntegrityError, match=sample.key):
            load_table(sample.with_bytes(sample.stored[:length]), sample.pack_id)


def test_transient_wrong_read_heals(sample: Sample) -> None:
    """One wrong answer of the way, of any kind, is healed by fetching again."""
    for fault in (
        flip_byte(30),
        flip_byte(0),
        flip_byte(-1),
        lambda data: b"",
        lambda _: b"x" * 99,
    ):
        backend = FaultyBackend(sample.backend)
        store = ObjectStore(backend)
        backend.read_faults.append(fault)

        assert store.load_chunk(sample.chunks[0]) == sample.plains[0]
        assert len(backend.reads) == 2


def test_wrong_twice_is_damage(sample: Sample) -> None:
    """A second wrong answer is reported, with the pack, and later reads may work again."""
    backend = FaultyBackend(sample.backend)
    store = ObjectStore(backend)
    backend.read_faults.extend([flip_byte(30)] * 9)

    with pytest.raises(IntegrityError, match=sample.key):
        store.load_chunk(sample.chunks[0])

    backend.read_faults.clear()
    assert store.load_chunk(sample.chunks[0]) == sample.plains[0]


def test_unanswered_read_is_unavailable(sample: Sample) -> None:
    """No answer is not damage."""
    backend = FaultyBackend(sample.backend)
    backend.lose_reads = 1

    with pytest.raises(UnavailableError):
        ObjectStore(backend).load_chunk(sample.chunks[0])


@pytest.mark.parametrize(
    "change",
    [
        {"pack_id": PackId(b"q" * 16)},
        {"frame_offset": 33},
        {"frame_offset": 1 << 61},
        {"frame_offset": 1 << 80},
        {"frame_offset": -1},
        {"frame_bytes": 10},
        {"frame_bytes": 0},
        {"frame_bytes": 1 << 50},
        {"frame_bytes": -5},
        {"inner_offset": 1},
        {"inner_offset": 1 << 60},
        {"inner_offset": -1},
        {"inner_bytes": 1},
        {"inner_bytes": 1 << 60},
        {"inner_bytes": -1},
    ],
)
def test_wrong_locator_is_healed_by_the_tables(sample: Sample, change: dict[str, int]) -> None:
    """Whatever a locator says, what the id names is found; the second read takes no search."""
    for ref in (*sample.chunks, sample.node, sample.chunk_list, sample.commit):
        assert ref.locator is not None
    chunk, node = sample.chunks[1], sample.node
    assert chunk.locator is not None
    assert node.locator is not None
    backend = FaultyBackend(sample.backend)
    store = ObjectStore(backend, decoded_cache_bytes=0)
    wrong_chunk = ChunkRef(chunk.id, chunk.size_bytes, chunk.locator._replace(**change))
    wrong_node = Ref(node.id, node.locator._replace(**change))

    assert store.load_chunk(wrong_chunk) == sample.plains[1]
    assert store.load_node(wrong_node).names == [b"f"]

    backend.reads.clear()
    assert store.load_chunk(wrong_chunk) == sample.plains[1]
    assert store.load_node(wrong_node).names == [b"f"]
    assert store.peek_chunk(wrong_chunk) == sample.plains[1]
    assert backend.reads == []


def test_other_copy_serves_when_one_is_damaged(sample: Sample) -> None:
    """An object that two packs hold is read from the one that is whole."""
    damaged = sample.with_bytes(sample.stored[:40])
    writer = ObjectWriter(damaged)
    writer.add_chunk(sample.plains[2])
    writer.finish()

    assert ObjectStore(damaged).load_chunk(sample.chunks[2]) == sample.plains[2]


def test_unknown_id_is_damage(sample: Sample) -> None:
    """An object that no pack holds is damage that names the id."""
    ref = ChunkRef(b"\xab" * 32, 5)

    with pytest.raises(IntegrityError, match="abababababab") as caught:
        ObjectStore(sample.backend).load_chunk(ref)

    assert caught.value.kind == "object.missing"


def test_wrong_size_in_a_reference_is_refused(sample: Sample) -> None:
    """Size belongs to a chunk reference; another size is not served."""
    chunk = sample.chunks[0]
    for size in (1, 599, 601):
        with pytest.raises(IntegrityError):
            ObjectStore(sample.backend).load_chunk(ChunkRef(chunk.id, size, chunk.locator))


def test_object_of_another_kind_is_refused(sample: Sample) -> None:
    """A node cannot be read as a chunk list, nor the other way round."""
    store = ObjectStore(sample.backend)

    with pytest.raises(IntegrityError):
        store.load_chunk_list(sample.node)
    with pytest.raises(IntegrityError):
        store.load_node(sample.chunk_list)
    with pytest.raises(IntegrityError):
        store.load_commit(sample.node)
    with pytest.raises(IntegrityError):
        store.load_chunk(ChunkRef(sample.node.id, 5, sample.node.locator))


def test_peek_does_no_input_or_output(sample: Sample) -> None:
    """Nothing is read by a peek; after a load, it answers."""
    backend = FaultyBackend(sample.backend)
    store = ObjectStore(backend)

    assert store.peek_chunk(sample.chunks[0]) is None
    assert store.peek_node(sample.node) is None
    assert store.peek_chunk_list(sample.chunk_list) is None
    assert backend.reads == []
    store.load_chunk(sample.chunks[0])
    node = store.load_node(sample.node)
    chunks = store.load_chunk_list(sample.chunk_list)
    backend.reads.clear()

    assert store.peek_chunk(sample.chunks[0]) == sample.plains[0]
    assert store.peek_chunk(sample.chunks[1]) == sample.plains[1], "in the same frame"
    assert store.peek_node(sample.node) is node
    assert store.peek_chunk_list(sample.chunk_list) is chunks
    assert backend.reads == []
    store.drop_caches()
    assert store.peek_chunk(sample.chunks[0]) is None


def test_caches_are_bounded() -> None:
    """Reading 40 MB through 1 MB of cache keeps 1 MB."""
    backend = MemoryBackend(secrets.token_hex(8))
    writer = ObjectWriter(backend)
    refs = [writer.add_chunk(bytes([number]) * 200_000) for number in range(200)]
    writer.finish()
    store = ObjectStore(backend, cache_bytes=1_000_000)

    for ref in refs:
        store.load_chunk(ref)

    assert sum(store.peek_chunk(ref) is not None for ref in refs) == 4


def test_zip_bombs_are_refused() -> None:
    """A frame that grows beyond what it declares, or may, is refused before it is grown."""
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(1 << 28))
    unstated = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 28))
    header, _ = encode_frame(RunKind.DATA, bytes(1000))
    for payload in (bomb, unstated):
        for claimed in (1000, 1 << 24, (1 << 24) + 1, 1 << 28, (1 << 32) - 1, 0):
            with pytest.raises(IntegrityError):
                decode_frame(forge(header, payload, claimed), RunKind.DATA, what="x")
    two = zstandard.ZstdCompressor().compress(bytes(1000)) * 2
    with pytest.raises(IntegrityError):
        decode_frame(forge(header, two, 1000), RunKind.DATA, what="x")


def forge(header: bytes, payload: bytes, plain_len: int) -> bytes:
    """Return a frame with a good checksum that claims `plain_len`."""
    fields = header[:8] + plain_len.to_bytes(4, "little") + len(payload).to_bytes(4, "little")
    check = xxhash.xxh3_64(fields + payload).intdigest()
    return fields + check.to_bytes(8, "little") + payload


def test_random_bytes_are_no_frame_or_table() -> None:
    """Decoders are total: any bytes decode or are refused with IntegrityError."""
    rng = random.Random(5)
    own = Locator(PackId(b"p" * 16), 32, 100, 0, 50)
    for _ in range(3000):
        data = rng.randbytes(rng.randrange(120))
        for decode in (
            lambda data: decode_frame(data, RunKind.META, what="x"),
            lambda data: PackTable.decode(data, what="x"),
            lambda data: list(decode_locators(data, own, what="x")),
        ):
            try:
                decode(data)
            except IntegrityError:
                pass
        split_record(data, own)


def test_records_of_all_locators() -> None:
    """Known, same-frame and unknown places read back as such."""
    own = Locator(PackId(b"p" * 16), 32, 100, 40, 0)
    far = Locator(PackId(b"q" * 16), 1 << 40, 3, 4, 5)
    record = encode_record(b"body", [far, None, InSameFrame((7, 8)), far])
    own = own._replace(inner_bytes=len(record))

    found = split_record(b"x" * 40 + record, own)

    assert found is not None
    body, hints = found
    assert body == b"body"
    locators = decode_locators(hints, own, what="x")
    assert list(locators) == [far, None, Locator(own.pack_id, 32, 100, 7, 8), far]
    assert locators[1:3] == [None, Locator(own.pack_id, 32, 100, 7, 8)]
    with pytest.raises(IndexError):
        locators[4]


def test_forged_table_serves_nothing_wrong(sample: Sample) -> None:
    """A table that lies about places leads to damage, not to wrong data."""
    table = PackTable()
    table.add_frame(32, 50, 1)
    table.add_object(1, 0, 5, sample.chunks[0].id)
    decoded = PackTable.decode(table.encode(), what="x")

    assert decoded.find(sample.pack_id, sample.chunks[0].id) == Locator(
        sample.pack_id, 32, 50, 0, 5
    )
    assert decoded.find(sample.pack_id, sample.chunks[0].id[1:] + b"\0") is None
    with pytest.raises(IntegrityError):
        PackTable.decode(table.encode() + b"\0", what="x")
    contradicting = PackTable()
    contradicting.add_object(1, 0, 5, bytes(32))
    with pytest.raises(IntegrityError):
        PackTable.decode(contradicting.encode(), what="x")


def test_newer_pack_is_refused(sample: Sample) -> None:
    """A footer of a later format is told apart from damage."""
    footer = bytearray(sample.stored[-FOOTER_BYTES:])
    footer[12:14] = (2).to_bytes(2, "little")
    footer[32:40] = xxhash.xxh3_64_intdigest(bytes(footer[:32])).to_bytes(8, "little")
    stored = sample.stored[:-FOOTER_BYTES] + bytes(footer)

    with pytest.raises(RefusedError) as caught:
        load_table(sample.with_bytes(stored), sample.pack_id)

    assert caught.value.kind == "format.newer"


def test_frame_of_another_run_is_refused() -> None:
    """Data cannot be passed off as metadata."""
    stored = b"".join(encode_frame(RunKind.DATA, b"x" * 500))

    assert decode_frame(stored, RunKind.DATA, what="x") == b"x" * 500
    assert len(stored) < 500 + FRAME_HEADER_BYTES
    with pytest.raises(IntegrityError):
        decode_frame(stored, RunKind.META, what="x")


def test_threads_read_one_store(tmp_path: Path) -> None:
    """8 threads that read through a small cache all get the right bytes."""
    backend = FileBackend(tmp_path)
    writer = ObjectWriter(backend, pack_bytes=300_000)
    plains = [random.Random(seed).randbytes(3000) * 2 for seed in range(400)]
    refs = [writer.add_chunk(plain) for plain in plains]
    writer.finish()
    store = ObjectStore(FileBackend(tmp_path), cache_bytes=400_000)
    failures: list[int] = []

    def read(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(500):
            number = rng.randrange(len(refs))
            chunk = store.peek_chunk(refs[number]) or store.load_chunk(refs[number])
            if chunk != plains[number] or chunk_id_of(chunk) != refs[number].id:
                failures.append(number)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []


def test_importing_opens_nothing() -> None:
    """A zygote may import all of it: no thread, no descriptor."""
    script = (
        "import os, threading; before = len(os.listdir('/proc/self/fd'))\n"
        "import workspacefs.packs.reader, workspacefs.packs.writer, workspacefs.refs\n"
        "import workspacefs.backend.open\n"
        "assert len(os.listdir('/proc/self/fd')) == before\n"
        "assert threading.active_count() == 1\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
