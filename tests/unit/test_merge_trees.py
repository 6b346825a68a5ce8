"""Merging whole trees: what it costs, and what it does with trees that are deep, far or damaged."""

from __future__ import annotations

import random
import stat
from collections.abc import Iterable

import pytest

from tests.unit.merge_checks import check_nothing_lost, check_tree, facts
from tests.unit.merge_files import CHUNKS, TREES, File, Files, do, show
from tests.unit.merge_program import Program
from tests.unit.merge_three import TIME_NS, Three, merge
from workspacefs.errors import IntegrityError
from workspacefs.ids import ROOT_FILE_ID, FileId
from workspacefs.merge.conflicts import ConflictKind
from workspacefs.merge.lines import TEXT_MAX_BYTES, Labels
from workspacefs.merge.trees import merge_trees
from workspacefs.objects.entry import Chunks, Entry
from workspacefs.objects.nodes import Node
from workspacefs.objects.refs import ChunkRef, Ref
from workspacefs.testing.objects import MemoryObjects
from workspacefs.trees.build import build_directory
from workspacefs.trees.edit import edit_directory
from workspacefs.trees.parameters import TreeParameters
from workspacefs.trees.walk import find_entry, resolve_path

REAL = TreeParameters(seed=7)


def file_entry(name: bytes, file_id: int, data: bytes) -> Entry:
    mode = stat.S_IFREG | 0o644
    return Entry(name, mode, 0, 0, len(data), 1, 1, FileId(file_id), 1, data)


def directory_entry(
    name: bytes, file_id: int, rows: Iterable[Entry], store: MemoryObjects
) -> Entry:
    listed = list(rows)
    nlink = 2 + sum(row.is_dir for row in listed)
    content = build_directory(listed, store, REAL)
    return Entry(name, stat.S_IFDIR | 0o755, 0, 0, 0, 1, 1, FileId(file_id), nlink, content)


class Large:
    """A tree of many directories with files, and changes to it by path."""

    def __init__(self, directories: int, files: int) -> None:
        self.store = MemoryObjects()
        self.shape = directories, files
        rows = [
            directory_entry(
                b"d%05d" % number,
                1_000_000 * (number + 1),
                (
                    file_entry(b"f%05d" % at, 1_000_000 * (number + 1) + 1 + at, b"%d\n" % at)
                    for at in range(files)
                ),
                self.store,
            )
            for number in range(directories)
        ]
        self.root = directory_entry(b"", ROOT_FILE_ID, rows, self.store)

    def edit(self, changes: dict[bytes, dict[bytes, Entry | None]], root: Entry) -> Entry:
        """Return a root with other files in some directories."""
        rows: dict[bytes, Entry | None] = {}
        for name, files in changes.items():
            old = find_entry(root.subtree, name, self.store)
            assert old is not None
            below = edit_directory(old.subtree, files, self.store, self.store, REAL)
            rows[name] = old._replace(content=below)
        return self.edit_root(rows, root)

    def edit_root(self, rows: dict[bytes, Entry | None], root: Entry) -> Entry:
        """Return a root with other directories."""
        nlink = root.nlink
        for name, row in rows.items():
            old = find_entry(root.subtree, name, self.store)
            nlink += (row is not None) - (old is not None)
        below = edit_directory(root.subtree, rows, self.store, self.store, REAL)
        return root._replace(content=below, nlink=nlink)

    def change_some(self, word: bytes, seed: int, first_id: int) -> Entry:
        """Edit, remove and add 100 files all over."""
        rng = random.Random(seed)
        directories, files = self.shape
        changes: dict[bytes, dict[bytes, Entry | None]] = {}
        for number in range(100):
            directory, at = rng.randrange(directories), rng.randrange(files)
            names = changes.setdefault(b"d%05d" % directory, {})
            name, file_id = b"f%05d" % at, 1_000_000 * (directory + 1) + 1 + at
            match number % 3:
                case 0:
                    names[name] = file_entry(name, file_id, b"%s %d\n" % (word, number))
                case 1:
                    names[name] = None
                case _:
                    new = b"%s%d" % (word, number)
                    names[new] = file_entry(new, first_id + number, new)
        return self.edit(changes, self.root)


def count_nodes(large: Large, ours: Entry, theirs: Entry) -> tuple[int, int]:
    """Return nodes read and written by a merge."""
    large.store.loads = large.store.adds = 0
    merge(large.store, large.root, ours, theirs, params=REAL)
    return large.store.loads, large.store.adds


def test_cost_grows_with_changes_not_with_files() -> None:
    """A hundred changes on each side touch as many nodes in 100,000 files as in 10,000."""
    counts = []
    for directories in (400, 4000):
        large = Large(directories, 25)
        ours = large.change_some(b"o", 1, 10)
        theirs = large.change_some(b"t", 2, 500)
        counts.append(count_nodes(large, ours, theirs))

    (small_loads, small_adds), (loads, adds) = counts
    assert loads < 1.5 * small_loads
    assert adds < 1.5 * small_adds
    assert loads < 200 * 6


def test_few_changes_in_a_thousand_and_in_many_files() -> None:
    """One change on each side costs a few nodes, whatever else there is."""
    counts = []
    for directories in (10, 1000):
        large = Large(directories, 100)
        ours = large.edit({b"d00003": {b"f00001": file_entry(b"f00001", 9, b"A\n")}}, large.root)
        theirs = large.edit({b"d00004": {b"f00001": None}}, large.root)
        counts.append(count_nodes(large, ours, theirs))

    assert max(loads for loads, _ in counts) <= 30
    assert max(adds for _, adds in counts) <= 8


@pytest.mark.parametrize("files", [1_000, 50_000])
def test_large_directory_moved_into_a_new_one_is_not_listed(files: int) -> None:
    """Nor one that moved out of a directory that was removed, nor one that moved down deep."""
    large = Large(3, files)
    moved = find_entry(large.root.subtree, b"d00001", large.store)
    assert moved is not None
    new = directory_entry(b"n", 50, [moved._replace(name=b"inside")], large.store)
    into_new = large.edit_root({b"d00001": None, b"n": new}, large.root)
    for number in range(20):
        new = directory_entry(b"n", 60 + number, [new], large.store)
    into_deep = large.edit_root({b"d00001": None, b"n": new}, large.root)
    theirs = large.edit({b"d00001": {b"f00001": file_entry(b"f00001", 9, b"B\n")}}, large.root)

    assert count_nodes(large, into_new, theirs)[0] < 60
    assert count_nodes(large, into_deep, theirs)[0] < 200
    merged = merge(large.store, large.root, into_deep, theirs, params=REAL)
    path = b"n/" * 21 + b"inside/f00001"
    assert resolve_path(merged.root, path, large.store).content == b"B\n"
    # The same the other way round: what was in a new directory now stands by itself.
    large.root, back = into_new, large.root
    assert count_nodes(large, back, into_new)[0] < 60
    later = large.edit_root({b"x": file_entry(b"x", 90, b"X")}, into_new)
    assert count_nodes(large, back, later)[0] < 60


def test_side_without_changes_costs_nothing() -> None:
    """Not even to read a node; and nothing is written."""
    large = Large(10, 10)
    ours = large.change_some(b"o", 1, 10)

    assert count_nodes(large, ours, large.root) == (0, 0)
    assert count_nodes(large, ours, ours) == (0, 0)
    assert count_nodes(large, large.root, ours)[1] == 0


def test_content_is_read_only_where_both_changed_it() -> None:
    """Large files that one side changed are taken by their ids."""
    three = Three()
    text = b"".join(b"%d\n" % number for number in range(2000))
    for name in (b"a", b"b", b"c"):
        three.base.write(name, text)
    three.ours, three.theirs = three.base.fork(1000), three.base.fork(2000)
    three.ours.write(b"a", text + b"A\n")
    three.theirs.write(b"b", text + b"B\n")
    roots = three.roots()
    three.store.chunk_loads = 0

    assert merge(three.store, *roots).is_clean

    assert three.store.chunk_loads == 0


class NoChunks(MemoryObjects):
    """A store whose content must not be read."""

    def load_chunk(self, ref: ChunkRef) -> bytes:
        """Fail."""
        raise AssertionError(f"chunk {ref} was read")


def test_huge_files_are_compared_by_id_alone() -> None:
    """Both changed a file of a gigabyte: a binary conflict, nothing is read, ours stays."""
    store = NoChunks()
    size = 1 << 30
    assert size > TEXT_MAX_BYTES

    def root(chunk: int) -> Entry:
        content = Chunks((ChunkRef(bytes([chunk]) * 32, size),))
        entry = file_entry(b"f", 9, b"")._replace(content=content, size_bytes=size)
        return directory_entry(b"", ROOT_FILE_ID, [entry], store)

    base, ours, theirs = map(root, (1, 2, 3))

    merged = merge(store, base, ours, theirs, params=REAL)

    assert [conflict.kind for conflict in merged.conflicts] == [ConflictKind.BINARY]
    assert merged.root.content == ours.content


def test_thousands_of_levels() -> None:
    """Depth costs no stack: edits and moves at the bottom, on both sides."""
    depth = 3000
    base = Files()
    path = b"/".join([b"d"] * depth)
    directory = base.files[ROOT_FILE_ID]
    for number in range(depth):  # each by itself: paths would take long to follow
        new = File(FileId(10_000 + number), directory.mode)
        base.files[new.file_id] = new
        directory.names[b"d"] = new.file_id
        directory = new
    base.write(path + b"/f", b"1\n2\n3\n")
    three = Three(base)
    three.ours.write(path + b"/f", b"A\n2\n3\n")
    three.ours.move(b"d", b"e")
    three.theirs.write(path + b"/f", b"1\n2\nB\n")
    three.theirs.write(path + b"/g", b"G\n")

    merged = three.merge()

    assert merged.is_clean
    bottom = resolve_path(merged.root, b"e/" + path[2:], three.store)
    assert show(bottom, three.store) == {b"f": b"A\n2\nB\n", b"g": b"G\n"}


class FarObjects(MemoryObjects):
    """Counts rounds, and loads of what was not brought before."""

    def __init__(self) -> None:
        super().__init__()
        self.here: set[bytes] = set()
        self.rounds = 0

    def prefetch_nodes(self, refs: Iterable[Ref]) -> bool:
        """Bring nodes, in a round if any is missing."""
        missing = {ref.id for ref in refs} - self.here
        self.rounds += bool(missing)
        self.here |= missing
        return True

    def load_node(self, ref: Ref) -> Node:
        """Return a node; a round, if it was not brought."""
        self.rounds += ref.id not in self.here
        self.here.add(ref.id)
        return super().load_node(ref)


def test_far_nodes_come_together() -> None:
    """A hundred directories that changed take few round trips, not one each."""
    large = Large(100, 10)
    far = FarObjects()
    far.bodies = large.store.bodies
    large.store = far
    ours = large.change_some(b"o", 1, 10)
    theirs = large.change_some(b"t", 2, 500)
    far.here.clear()
    far.rounds = 0

    merge(far, large.root, ours, theirs, params=REAL)

    assert far.rounds <= 8


def test_labels_name_what_steps_aside() -> None:
    """A label need not be a file name, and a name is never too long."""
    three = Three()
    long, umlauts = b"x" * 255, "ä".encode() * 127
    for name in (b"n", long, umlauts):
        three.ours.write(name, b"\0A")
        three.theirs.write(name, b"\0B")

    merged = merge(three.store, *three.roots(), labels=Labels(theirs="agents/a1"))

    assert [conflict.beside for conflict in merged.conflicts] == [
        b"n~agents-a1",
        b"x" * 245 + b"~agents-a1",
        "ä".encode() * 122 + b"~agents-a1",
    ]


def test_labels_stand_in_markers() -> None:
    """With the name of the base."""
    three = Three()
    three.ours.write(b"f", b"A\n")
    three.theirs.write(b"f", b"B\n")
    labels = Labels(ours="main", theirs="fix", base="last week")

    merged = merge(three.store, *three.roots(), labels=labels)

    assert show(merged.root, three.store)[b"f"] == (
        b"<<<<<<< main\nA\n||||||| last week\n=======\nB\n>>>>>>> fix\n"
    )


def test_same_merge_gives_the_same_result() -> None:
    """Whatever order dicts and sets happen to have."""
    three = Three()
    Program(three.base, b"b").run([(kind % 18, 7 * kind, 3 * kind) for kind in range(40)])
    three.ours, three.theirs = three.base.fork(1000), three.base.fork(2000)
    Program(three.ours, b"o").run([(kind % 18, 5 * kind, 11 * kind) for kind in range(20)])
    Program(three.theirs, b"t").run([(kind % 18, 13 * kind, 2 * kind) for kind in range(20)])

    assert three.merge() == three.merge()


def test_directory_that_a_tree_has_twice_is_damage() -> None:
    """Nobody could say where it is: the merge refuses, and names the file id."""
    store = MemoryObjects()
    inner = directory_entry(b"a", 7, [file_entry(b"f", 8, b"1")], store)
    base = directory_entry(b"", ROOT_FILE_ID, [], store)
    ours = directory_entry(b"", ROOT_FILE_ID, [inner, inner._replace(name=b"b")], store)
    theirs = directory_entry(b"", ROOT_FILE_ID, [file_entry(b"x", 9, b"X")], store)

    with pytest.raises(IntegrityError, match="file id 7 "):
        merge(store, base, ours, theirs, params=REAL)


def test_names_of_one_file_that_say_different_are_damage() -> None:
    """One of them would be lost."""
    store = MemoryObjects()
    base = directory_entry(b"", ROOT_FILE_ID, [], store)
    ours = directory_entry(
        b"", ROOT_FILE_ID, [file_entry(b"a", 7, b"1"), file_entry(b"b", 7, b"2")], store
    )
    theirs = directory_entry(b"", ROOT_FILE_ID, [file_entry(b"x", 9, b"X")], store)

    with pytest.raises(IntegrityError, match="file id 7 "):
        merge(store, base, ours, theirs, params=REAL)


def test_file_that_is_of_two_kinds_is_damage() -> None:
    """An id is never given twice."""
    store = MemoryObjects()
    base = directory_entry(b"", ROOT_FILE_ID, [file_entry(b"a", 7, b"1")], store)
    ours = directory_entry(b"", ROOT_FILE_ID, [directory_entry(b"a", 7, [], store)], store)
    theirs = directory_entry(b"", ROOT_FILE_ID, [file_entry(b"x", 9, b"X")], store)

    with pytest.raises(IntegrityError, match="file id 7 "):
        merge(store, base, ours, theirs, params=REAL)


def test_sides_may_share_files_that_the_base_does_not_have() -> None:
    """One was forked from the other's uncommitted work: such files are the same ones."""
    base = Files()
    do(base, "write f 1 2 3")
    common = base.fork(500)
    do(common, "write n N; mkdir d; write d/x x; replace f 1 2 3 4")
    three = Three(base)
    three.ours, three.theirs = common.fork(1000), common.fork(2000)
    do(three.ours, "mv d e; write f 0 1 2 3 4")
    do(three.theirs, "mv n m; write d/y Y")

    merged, swapped = three.merge(), three.merge(swapped=True)

    assert [(c.kind, c.path) for c in merged.conflicts] == [
        (ConflictKind.RENAME_RENAME, b"e"),
        (ConflictKind.RENAME_RENAME, b"n"),
    ]
    assert show(merged.root, three.store)[b"f"] == b"0\n1\n2\n3\n4\n"
    assert show(merged.root, three.store)[b"e/y"] == b"Y\n"
    assert len(swapped.conflicts) == 2
    check_tree(merged.root, three.store)
    check_nothing_lost(merged, three)


def test_id_that_replaced_another_on_one_side_alone() -> None:
    """Both know the new file; on one side it moved, so it is no replacement on either."""
    base = Files()
    do(base, "write f 1")
    common = base.fork(500)
    do(common, "replace f 1 2")
    three = Three(base)
    three.ours, three.theirs = common.fork(1000), common.fork(2000)
    do(three.theirs, "mv f g")

    merged, swapped = three.merge(), three.merge(swapped=True)

    check_tree(merged.root, three.store)
    check_nothing_lost(merged, three)
    assert sorted(repr(facts(c)) for c in merged.conflicts) == sorted(
        repr(facts(c.mirrored())) for c in swapped.conflicts
    )


def test_unchanged_large_directory_that_becomes_one_with_another_keeps_its_links() -> None:
    """Names of hard links that nobody had to read are found when a name of them is in the way."""
    base = Files()
    do(base, "mkdir a/s; mkdir b; write a/f 1; ln a/f b/g; write a/s/x x; write b/y y")
    three = Three(base)
    do(three.ours, "mv a n")
    do(three.theirs, "mkdir n; write n/f F; write n/z Z")

    merged, swapped = three.merge(), three.merge(swapped=True)

    assert show(merged.root, three.store)[b"n/f"] == b"1\n"
    assert show(merged.root, three.store)[b"n/f~theirs"] == b"F\n"
    assert show(swapped.root, three.store)[b"n/f~theirs"] == b"1\n"
    for one in (merged, swapped):
        check_tree(one.root, three.store)
        check_nothing_lost(one, three)


def test_result_needs_nothing_that_the_sink_was_not_given() -> None:
    """Source and sink are two stores: the result's new nodes and chunks are in the second."""
    three = Three()
    for number in range(30):
        three.base.write(b"f%d" % number, b"1\n2\n3\n" * 100)
    three.ours, three.theirs = three.base.fork(1000), three.base.fork(2000)
    three.ours.write(b"f1", b"A\n" + b"1\n2\n3\n" * 100)
    three.theirs.write(b"f1", b"1\n2\n3\n" * 100 + b"B\n")
    roots, sink = three.roots(), MemoryObjects()

    merged = merge_trees(
        *roots, three.store, sink, tree_params=TREES, chunk_params=CHUNKS, time_ns=TIME_NS
    )

    sink.bodies |= three.store.bodies
    sink.chunks |= three.store.chunks
    assert show(merged.root, sink)[b"f1"] == b"A\n" + b"1\n2\n3\n" * 100 + b"B\n"
    assert merged.root.subtree.root is not None
    assert merged.root.subtree.root.id not in three.store.bodies
