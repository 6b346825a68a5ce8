"""What one side did to the base, by identity."""

from __future__ import annotations

import pytest

from tests.unit.merge_files import Files, do
from workspacefs.ids import FileId
from workspacefs.merge.differ import Differ
from workspacefs.merge.moves import find_moved
from workspacefs.merge.place import Place
from workspacefs.merge.side import Side, compare_side
from workspacefs.testing.objects import MemoryObjects
from workspacefs.trees.parameters import TreeParameters

BASE = "mkdir a/s; mkdir b; write a/f 1; write a/s/g 2; write b/h 3; write r 4"


class Compared:
    """A base, a side, and what was found."""

    def __init__(self, program: str, base: str = BASE) -> None:
        self.base = Files()
        do(self.base, base)
        self.now = self.base.fork(1000)
        do(self.now, program)
        self.store = MemoryObjects()
        self.roots = self.base.tree(self.store), self.now.tree(self.store)
        self.side = self.compare()

    def compare(self, *separate: FileId) -> Side:
        """Compare them."""
        return compare_side(*self.roots, Differ(self.store), separate=frozenset(separate))

    def places(self, path: bytes) -> list[bytes] | None:
        """Return where the side has what the base has at a path, as base path of the directory
        and name; None: nowhere.
        """
        paths = {self.base.at(path).file_id: path for path in [b"", *self.base.paths()]}
        seen = self.side.now.get(self.base.at(path).file_id)
        if seen is None:
            return None
        return sorted(
            paths.get(place.directory, b"new") + b":" + place.name for place in seen.places
        )


def test_only_what_differs_is_seen_and_the_way_to_it() -> None:
    """Other files are in neither map."""
    compared = Compared("write a/s/g X")

    seen = {compared.base.at(path).file_id for path in (b"", b"a", b"a/s", b"a/s/g")}
    assert compared.side.base.keys() == compared.side.now.keys() == seen


def test_file_that_moved_is_the_same() -> None:
    """Its place is another one, in a directory that is known by id."""
    compared = Compared("mv a/f b/e; mv b c")

    assert compared.places(b"a/f") == [b"b:e"]
    assert compared.places(b"b") == [b":c"]
    assert compared.base.at(b"b/h").file_id not in compared.side.base


def test_file_with_new_names_has_all_of_them() -> None:
    """And the old one."""
    compared = Compared("ln r a/q; ln r b/q")

    assert compared.places(b"r") == [b":r", b"a:q", b"b:q"]


def test_file_that_was_written_anew_is_the_same() -> None:
    """The id is another one, the identity is not."""
    compared = Compared("replace a/f X")

    assert compared.places(b"a/f") == [b"a:f"]
    now = compared.side.now[compared.base.at(b"a/f").file_id]
    assert now.entry.file_id == compared.now.at(b"a/f").file_id == 1000
    assert compared.side.replaced == {1000: compared.base.at(b"a/f").file_id}


def test_directory_that_was_made_anew_is_the_same_with_all_in_it() -> None:
    """From the top down: what is at the same names in it is the same, too."""
    compared = Compared("remake a; write a/s/n N")

    assert compared.places(b"a") == [b":a"]
    assert compared.places(b"a/s") == [b"a:s"]
    assert compared.places(b"a/s/g") == [b"a/s:g"]
    new = compared.now.at(b"a/s/n").file_id
    assert compared.side.now[new].places == {Place(compared.base.at(b"a/s").file_id, b"n")}


@pytest.mark.parametrize(
    ("program", "path"),
    [
        ("mv r o; write r N", b"r"),  # the old one is still there
        ("rm r; mv a/f r", b"r"),  # what is there now is no new one
        ("rm r; symlink r t", b"r"),  # another kind
        ("rm a; write a N", b"a"),
        ("mv a/s b/s; mkdir a/s", b"a/s"),
        ("ln r q; rm r; write r N", b"r"),
    ],
)
def test_what_took_a_name_is_not_always_the_same(program: str, path: bytes) -> None:
    """Only where an old file is gone, and a new one of its kind has its name."""
    compared = Compared(program)

    assert compared.side.replaced == {}
    assert compared.now.at(path).file_id in compared.side.now


def test_file_that_the_other_side_knows_apart_is_apart() -> None:
    """Ids that are said to be separate take nobody's place."""
    compared = Compared("replace r N; remake a")
    new = [compared.now.at(path).file_id for path in (b"r", b"a")]

    side = compared.compare(*new)

    assert set(new) <= side.now.keys()
    assert compared.base.at(b"r").file_id not in side.now
    assert compared.base.at(b"a").file_id not in side.now


def test_of_two_files_that_took_names_of_one_the_first_is_the_same() -> None:
    """By id, so that no order of reading matters."""
    compared = Compared("rm a/f; rm b/f; write b/f X; write a/f Y", base=BASE + "; ln a/f b/f")

    assert compared.side.replaced == {1000: compared.base.at(b"a/f").file_id}
    assert compared.places(b"a/f") == [b"b:f"]
    assert compared.now.at(b"a/f").file_id in compared.side.now


@pytest.mark.parametrize(
    ("program", "moved"),
    [
        ("mv a c", {b"a"}),
        ("mv a b/a", {b"a"}),
        ("mkdir n; mv a n/a", {b"a"}),
        ("mkdir n/m/o; mv a n/m/o/a; mv n/m/o/a/s s", {b"a", b"a/s"}),
        ("mv a/s s; rm a", {b"a/s"}),
        ("mv a/s/t t; rm a", {b"a/s/t"}),
        ("mv a/s x; mv a x/a; mkdir a", {b"a", b"a/s"}),
        ("mkdir n; mv a/s/t n/t; rm a; mv n a", {b"a/s/t"}),
        ("mv a t; mv b a; mv t b", {b"a", b"b"}),
        ("rm a; mkdir a/s/t", set()),
        ("", set()),
    ],
)
def test_directories_that_moved_are_found(program: str, moved: set[bytes]) -> None:
    """Also into new ones, out of those that are gone, and out of each other."""
    compared = Compared(program, base=BASE + "; mkdir a/s/t; write a/s/t/u 5")
    base, now = compared.roots

    found = find_moved(base.subtree, now.subtree, Differ(compared.store))

    assert found.keys() == {compared.base.at(path).file_id for path in moved}


def test_directory_that_moved_far_is_compared_not_listed() -> None:
    """Whatever is new or gone around it, its leaves are not read but for a few."""
    wide = TreeParameters(seed=7, boundary_bits=2, single_leaf_max=8)
    base = Files()
    base.mkdir(b"gone/large")
    for number in range(2000):
        base.write(b"gone/large/f%04d" % number, b"1")
    now = base.fork(10_000)
    do(now, "mkdir new/deep; mv gone/large new/deep/large; rm gone; write new/deep/large/x X")
    store = MemoryObjects()
    roots = base.tree(store, wide), now.tree(store, wide)
    store.loads = 0

    side = compare_side(*roots, Differ(store))

    assert store.loads < 60
    assert side.now[base.at(b"gone/large").file_id].entry.subtree.totals.files == 2001
    assert base.at(b"gone/large/f0001").file_id not in side.now
