"""Packs: what is written reads back, children before parents, each object once."""

from __future__ import annotations

import random
import secrets
import threading
from collections.abc import Callable

import pytest

from workspacefs.backend.memory import MemoryBackend
from workspacefs.errors import NoSpaceError, RefusedError, UsageError
from workspacefs.ids import FileId, chunk_id_of, node_id_of
from workspacefs.objects.chunk_lists import encode_chunk_list
from workspacefs.objects.commits import Commit, encode_commit
from workspacefs.objects.entry import Chunks, Entry, LongContent, Subtree, Totals
from workspacefs.objects.nodes import LeafNode, encode_leaf
from workspacefs.objects.refs import ChunkRef, Locator, Ref
from workspacefs.packs.frames import CHUNK_MAX_BYTES, RECORD_MAX_BYTES
from workspacefs.packs.reader import ObjectStore
from workspacefs.packs.table import ObjectKind, load_table, pack_id_of_key
from workspacefs.packs.writer import ObjectWriter
from workspacefs.testing.faulty import FaultyBackend


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend(secrets.token_hex(8))


@pytest.fixture(params=[0, 1, 3])
def writer(request: pytest.FixtureRequest, backend: MemoryBackend) -> ObjectWriter:
    return ObjectWriter(backend, threads=request.param, pack_bytes=256 * 1024)


def noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def file_entry(name: bytes, content: Chunks | LongContent, size: int) -> Entry:
    return Entry(name, 0o100644, 0, 0, size, 5, 5, FileId(9), 1, content)


def dir_entry(name: bytes, root: Ref) -> Entry:
    return Entry(name, 0o40755, 0, 0, 0, 5, 5, FileId(8), 2, Subtree(root, Totals(1, 0, 5, 0)))


def add_leaf(writer: ObjectWriter, entries: list[Entry]) -> Ref:
    body, children = encode_leaf(entries)
    return writer.add_node(body, children)


@pytest.mark.parametrize("size", [1, 129, 4096, 96 * 1024, 128 * 1024, 128 * 1024 + 1, 3_000_000])
def test_chunk_reads_back(backend: MemoryBackend, writer: ObjectWriter, size: int) -> None:
    """Chunks of all sizes, compressible or not, read back by locator and by id alone."""
    plains = [noise(size, size), bytes(size), noise(1, size // 2) * 2 + b"!"]
    refs = [writer.add_chunk(plain) for plain in plains]

    summary = writer.finish()

    store = ObjectStore(backend)
    assert [store.load_chunk(ref) for ref in refs] == plains
    assert [store.load_chunk(ChunkRef(ref.id, ref.size_bytes)) for ref in refs] == plains
    assert summary.objects == len({ref.id for ref in refs})
    assert summary.stored_bytes == sum(info.size_bytes for info in backend.iter_keys("packs/"))


def test_buffer_may_be_reused_at_once(backend: MemoryBackend, writer: ObjectWriter) -> None:
    """A memoryview of a buffer that changes later is stored as it was."""
    buffer = bytearray(noise(1, 5000))
    ref = writer.add_chunk(memoryview(buffer))
    buffer[:] = bytes(5000)

    writer.finish()

    assert ObjectStore(backend).load_chunk(ref) == noise(1, 5000)


def test_same_chunk_is_stored_once(backend: MemoryBackend, writer: ObjectWriter) -> None:
    """Equal bytes give the same reference."""
    first = writer.add_chunk(noise(1, 5000))
    writer.add_chunk(noise(2, 5000))

    again = writer.add_chunk(noise(1, 5000))

    summary = writer.finish()
    assert again is first
    assert (summary.objects, summary.reused) == (2, 1)


def test_known_objects_are_not_stored_again(backend: MemoryBackend) -> None:
    """Objects of an earlier writer are named by their old locators, chunks and nodes alike."""
    old = ObjectWriter(backend)
    chunk = old.add_chunk(noise(1, 5000))
    leaf = add_leaf(old, [file_entry(b"f", Chunks((chunk,)), 5000)])
    old.finish()
    assert chunk.locator is not None
    assert leaf.locator is not None
    known = {chunk.id: chunk.locator, leaf.id: leaf.locator}

    for lookup in (known, known.get):
        new = ObjectWriter(backend, known=lookup)
        same_chunk = new.add_chunk(noise(1, 5000))
        same_leaf = add_leaf(new, [file_entry(b"f", Chunks((same_chunk,)), 5000)])
        summary = new.finish()
        assert same_chunk.locator == chunk.locator
        assert same_chunk.size_bytes == 5000
        assert same_leaf.locator == leaf.locator
        assert (summary.objects, summary.packs, summary.reused) == (0, (), 2)


def test_children_have_locators_from_their_parents(
    backend: MemoryBackend, writer: ObjectWriter
) -> None:
    """From the commit down, everything is reached by locators, over several packs."""
    directories = []
    for number in range(60):
        plains = [noise(number * 100 + file, 2000 + file) for file in range(12)]
        entries = [
            file_entry(b"f%02d" % file, Chunks((writer.add_chunk(plain),)), len(plain))
            for file, plain in enumerate(plains)
        ]
        directories.append(dir_entry(b"d%02d" % number, add_leaf(writer, entries)))
    long_refs = [writer.add_chunk(noise(-number, 70_000)) for number in range(1, 20)]
    long_list = writer.add_chunk_list(*encode_chunk_list(long_refs))
    long_entry = file_entry(b"long", LongContent(long_list), 19 * 70_000)
    root = dir_entry(b"", add_leaf(writer, [*directories, long_entry]))
    commit = writer.add_commit(
        *encode_commit(Commit(root=root, parents=(), message="m", time_ns=1))
    )

    summary = writer.finish()

    assert len(summary.packs) > 3
    counting = FaultyBackend(backend)
    store = ObjectStore(counting)
    assert _count_chunks(store, commit) == 60 * 12 + 19
    assert not [key for key, offset, _ in counting.reads if offset == 0], "no table was read"


def _count_chunks(store: ObjectStore, commit: Ref) -> int:
    content = store.load_commit(commit).root.content
    assert isinstance(content, Subtree)
    pending, found = [content.root], 0
    while pending:
        ref = pending.pop()
        assert ref is not None
        node = store.load_node(ref)
        assert isinstance(node, LeafNode)
        for entry in node.iter_entries():
            match entry.content:
                case Subtree(root, _):
                    pending.append(root)
                case LongContent(long_list):
                    for chunk in store.load_chunk_list(long_list):
                        found += len(store.load_chunk(chunk)) == chunk.size_bytes
                case Chunks(chunks):
                    for chunk in chunks:
                        found += len(store.load_chunk(chunk)) == chunk.size_bytes
    return found


def test_small_tree_shares_one_frame(backend: MemoryBackend, writer: ObjectWriter) -> None:
    """A parent lies in the frame of its children, and names them there."""
    chunk = writer.add_chunk(noise(1, 5000))
    leaf = add_leaf(writer, [file_entry(b"f", Chunks((chunk,)), 5000)])
    middle = add_leaf(writer, [dir_entry(b"d", leaf)])
    top = add_leaf(writer, [dir_entry(b"d", middle)])

    writer.finish()

    assert leaf.locator is not None
    assert top.locator is not None
    assert leaf.locator[:3] == top.locator[:3]
    counting = FaultyBackend(backend)
    store = ObjectStore(counting)
    node = store.load_node(top)
    for _ in range(2):
        entry = node.find(b"d")
        assert entry is not None
        assert isinstance(entry.content, Subtree)
        assert entry.content.root is not None
        node = store.load_node(entry.content.root)
    assert node.find(b"f") is not None
    assert len(counting.reads) == 1


def test_deep_chain_over_many_frames(backend: MemoryBackend, writer: ObjectWriter) -> None:
    """Each of 1000 nested directories finds its child, wherever frames were cut."""
    ref = add_leaf(writer, [file_entry(b"f", Chunks((writer.add_chunk(b"x" * 200),)), 200)])
    for number in range(1000):
        name = noise(number, 200).replace(b"\0", b"0").replace(b"/", b"0")
        ref = add_leaf(writer, [dir_entry(name, ref)])

    writer.finish()

    counting = FaultyBackend(backend)
    store = ObjectStore(counting)
    for _ in range(1000):
        content = next(store.load_node(ref).iter_entries()).content
        assert isinstance(content, Subtree)
        assert content.root is not None
        ref = content.root
    assert len(counting.reads) < 10


def test_many_nodes_wait_for_data_in_bounded_memory(backend: MemoryBackend) -> None:
    """Records that wait for an unfilled data run cut it short when they grow too many."""
    writer = ObjectWriter(backend, threads=0)
    chunk = writer.add_chunk(b"c" * 200)
    leaf = add_leaf(writer, [file_entry(b"f", Chunks((chunk,)), 200)])
    for number in range(300):
        writer.add_node(b"%d" % number + noise(number, 60_000), [])

    assert chunk.locator is not None
    assert leaf.locator is not None
    writer.finish()


def test_other_reference_to_a_child_of_this_writer(
    backend: MemoryBackend, writer: ObjectWriter
) -> None:
    """A parent may name a child by any reference of the same id."""
    chunk = writer.add_chunk(noise(1, 5000))
    other = ChunkRef(chunk.id, 5000)

    leaf = add_leaf(writer, [file_entry(b"f", Chunks((other,)), 5000)])
    writer.finish()

    entry = ObjectStore(backend).load_node(leaf).find(b"f")
    assert entry is not None
    assert isinstance(entry.content, Chunks)
    assert entry.content.refs[0].locator == chunk.locator


def test_child_of_unknown_place_is_found_by_id(backend: MemoryBackend) -> None:
    """A child that this writer knows nothing of is looked up in the tables when it is read."""
    old = ObjectWriter(backend)
    chunk = old.add_chunk(noise(1, 5000))
    old.finish()
    new = ObjectWriter(backend)

    leaf = add_leaf(new, [file_entry(b"f", Chunks((ChunkRef(chunk.id, 5000),)), 5000)])
    new.finish()

    store = ObjectStore(backend)
    entry = store.load_node(leaf).find(b"f")
    assert entry is not None
    assert isinstance(entry.content, Chunks)
    assert entry.content.refs[0].locator is None
    assert store.load_chunk(entry.content.refs[0]) == noise(1, 5000)


def test_tables_list_all_objects(backend: MemoryBackend, writer: ObjectWriter) -> None:
    """The packs alone say what lies where: an index can be rebuilt."""
    chunks = [writer.add_chunk(noise(number, 3000)) for number in range(300)]
    long_list = writer.add_chunk_list(*encode_chunk_list(chunks))
    leaf = add_leaf(writer, [file_entry(b"f", LongContent(long_list), 900_000)])
    commit = writer.add_commit(
        *encode_commit(Commit(root=dir_entry(b"", leaf), parents=(), message="", time_ns=1))
    )
    writer.finish()

    found: dict[bytes, tuple[ObjectKind, Locator]] = {}
    for info in backend.iter_keys("packs/"):
        pack_id = pack_id_of_key(info.key)
        assert pack_id is not None
        for kind, object_id, locator in load_table(backend, pack_id).iter_objects(pack_id):
            found[object_id] = (kind, locator)

    expected = {chunk.id: (ObjectKind.CHUNK, chunk.locator) for chunk in chunks}
    expected[long_list.id] = (ObjectKind.CHUNK_LIST, long_list.locator)
    expected[leaf.id] = (ObjectKind.NODE, leaf.locator)
    expected[commit.id] = (ObjectKind.COMMIT, commit.locator)
    assert found == expected


def test_nothing_written_stores_nothing(backend: MemoryBackend, writer: ObjectWriter) -> None:
    """No objects, no packs."""
    assert writer.finish().packs == ()
    assert list(backend.iter_keys("")) == []


def test_impossible_sizes_are_refused(writer: ObjectWriter) -> None:
    """Empty and oversized objects are refused when they are added."""
    with pytest.raises(UsageError):
        writer.add_chunk(b"")
    with pytest.raises(UsageError):
        writer.add_chunk(bytes(CHUNK_MAX_BYTES + 1))
    with pytest.raises(RefusedError):
        writer.add_node(bytes(RECORD_MAX_BYTES), [])


def test_longest_chunk_and_long_record(backend: MemoryBackend, writer: ObjectWriter) -> None:
    """16 MiB and a chunk list of 100,000 chunks are possible."""
    longest = writer.add_chunk(bytes(CHUNK_MAX_BYTES))
    refs = [
        ChunkRef(noise(number, 32), 65536, Locator(b"p" * 16, 1 << 40, 70_000, 0, 65536))
        for number in range(100_000)
    ]
    long_list = writer.add_chunk_list(*encode_chunk_list(refs))
    writer.finish()

    store = ObjectStore(backend)
    assert store.load_chunk(longest) == bytes(CHUNK_MAX_BYTES)
    read = store.load_chunk_list(long_list)
    assert read == tuple(refs)
    assert read[-1].locator == refs[-1].locator


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("writes", [0, 1, 2])
def test_failed_upload_fails_finish_for_good(
    backend: MemoryBackend, threads: int, writes: int
) -> None:
    """A full store is reported, by finish at the latest; abort takes back what was stored."""
    full = FaultyBackend(backend)
    full.full_after_writes = writes
    writer = ObjectWriter(full, threads=threads, pack_bytes=100_000)

    def write() -> None:
        for number in range(8):
            writer.add_chunk(noise(number, 90_000))
        writer.finish()

    with pytest.raises(NoSpaceError):
        write()
    with pytest.raises((NoSpaceError, UsageError)):
        writer.finish()
    writer.abort()

    assert list(backend.iter_keys("")) == []


def test_failure_within_with_aborts(backend: MemoryBackend) -> None:
    """Leaving the writer by an error takes back its packs and ends its threads."""
    threads = threading.active_count()

    def fail() -> None:
        with ObjectWriter(backend, pack_bytes=100_000) as writer:
            for number in range(8):
                writer.add_chunk(noise(number, 90_000))
            raise KeyError("ours")

    with pytest.raises(KeyError):
        fail()

    assert list(backend.iter_keys("")) == []
    assert threading.active_count() == threads


def test_parent_before_its_child_is_refused(backend: MemoryBackend) -> None:
    """A child that is added after its parent is found out at the end; nothing is lost silently."""
    writer = ObjectWriter(backend, threads=0)
    first = writer.add_chunk(b"still in an open run")
    child_body, child_children = encode_leaf([file_entry(b"f", Chunks((first,)), 20)])
    early = Ref(node_id_of(child_body))
    writer.add_node(*encode_leaf([file_entry(b"f", Chunks((first,)), 20), dir_entry(b"x", early)]))
    writer.add_node(child_body, child_children)

    with pytest.raises(UsageError, match="before its children"):
        writer.finish()
    writer.abort()


@pytest.mark.parametrize("id_of", [chunk_id_of, node_id_of])
def test_ids_are_of_their_kind(
    backend: MemoryBackend, writer: ObjectWriter, id_of: Callable[[bytes], bytes]
) -> None:
    """A chunk with the bytes of a node is another object."""
    body, _ = encode_leaf([])
    refs = {chunk_id_of: writer.add_chunk(body), node_id_of: writer.add_node(body, [])}

    writer.finish()

    assert refs[id_of].id == id_of(body)


def test_layout_without_threads_is_deterministic() -> None:
    """With threads=0 the packs depend on the calls alone."""

    def write() -> list[bytes]:
        backend = MemoryBackend(secrets.token_hex(8))
        ids = iter(range(100))
        writer = ObjectWriter(
            backend,
            threads=0,
            pack_bytes=200_000,
            draw_pack_id=lambda: next(ids).to_bytes(16, "big"),  # type: ignore[arg-type, return-value]
        )
        for number in range(100):
            chunk = writer.add_chunk(noise(number, 9000))
            add_leaf(writer, [file_entry(b"f", Chunks((chunk,)), 9000)])
        writer.finish()
        return [backend.get(info.key) for info in backend.iter_keys("")]

    assert write() == write()
