"""Walking and comparing trees."""

from __future__ import annotations

import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workspacefs.errors import NotFoundError
from workspacefs.ids import FileId
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.testing.entries import build, entry_of
from workspacefs.testing.nodes import MemoryNodes
from workspacefs.trees.build import build_directory
from workspacefs.trees.diff import Change, diff_directory, diff_trees
from workspacefs.trees.edit import edit_directory
from workspacefs.trees.parameters import TreeParameters
from workspacefs.trees.walk import resolve_path, walk

TINY = TreeParameters(seed=7, boundary_bits=1, single_leaf_max=4)

few_names = st.integers(0, 80).map(lambda n: b"n%03d" % n)
params_of = st.builds(
    TreeParameters,
    seed=st.integers(0, 2**64 - 1),
    boundary_bits=st.integers(1, 3),
    single_leaf_max=st.integers(1, 6),
)


def file(name: bytes, data: bytes = b"data") -> Entry:
    return Entry(name, stat.S_IFREG | 0o644, 0, 0, len(data), 1, 2, FileId(5), 1, data)


def directory(name: bytes, nodes: MemoryNodes, *entries: Entry, mtime_ns: int = 1) -> Entry:
    below = build_directory(sorted(entries), nodes, TINY)
    return Entry(name, stat.S_IFDIR | 0o755, 0, 0, 0, mtime_ns, 2, FileId(6), 2, below)


@given(
    params=params_of,
    old=st.dictionaries(few_names, st.integers(1, 3), max_size=80),
    new=st.dictionaries(few_names, st.integers(1, 3), max_size=80),
)
@settings(deadline=None)
def test_diff_lists_exactly_what_differs(
    params: TreeParameters, old: dict[bytes, int], new: dict[bytes, int]
) -> None:
    """The comparison of two directories equals the comparison of two dicts."""
    before = {name: entry_of(name, version) for name, version in old.items()}
    after = {name: entry_of(name, version) for name, version in new.items()}
    left, nodes = build(before, params)
    right, more = build(after, params)
    nodes.bodies |= more.bodies

    found = list(diff_directory(left, right, nodes))

    assert found == [
        (before.get(name), after.get(name))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def test_diff_reads_only_nodes_that_differ() -> None:
    """Ten changes in 100,000 names cost a few nodes each."""
    params = TreeParameters(seed=7)
    model = {b"f%06d" % n: entry_of(b"f%06d" % n) for n in range(100_000)}
    old, nodes = build(model, params)
    edit = {b"f%06d" % (n * 9973): file(b"f%06d" % (n * 9973)) for n in range(10)}
    new = edit_directory(old, edit, nodes, nodes, params)
    nodes.loads = 0

    found = list(diff_directory(old, new, nodes))

    assert {pair[1].name for pair in found if pair[1]} == set(edit)
    assert nodes.loads <= 2 * (10 * 3 + 2)


def test_walk_is_depth_first_with_directories_first() -> None:
    """Paths come in the order of a depth-first walk; the root is not among them."""
    nodes = MemoryNodes()
    root = directory(
        b"", nodes, file(b"a.txt"), directory(b"a", nodes, file(b"x"), file(b"y")), file(b"b")
    )

    paths = [path for path, _ in walk(root, nodes)]

    assert paths == [b"a", b"a/x", b"a/y", b"a.txt", b"b"]


def test_tree_diff_reports_directories_for_their_own_attributes_only() -> None:
    """A changed file does not make its directory a change; a changed time does."""
    nodes = MemoryNodes()
    old = directory(b"", nodes, directory(b"a", nodes, file(b"x")), directory(b"b", nodes))
    new = directory(
        b"", nodes, directory(b"a", nodes, file(b"x", b"new")), directory(b"b", nodes, mtime_ns=9)
    )

    paths = [change.path for change in diff_trees(old, new, nodes)]

    assert paths == [b"a/x", b"b"]


def test_directory_replaced_by_a_file_lists_what_was_below() -> None:
    """Everything that is gone is named once."""
    nodes = MemoryNodes()
    gone = directory(b"a", nodes, file(b"x"))
    old = directory(b"", nodes, gone)
    new = directory(b"", nodes, file(b"a"))

    changes = list(diff_trees(old, new, nodes))

    assert changes == [Change(b"a", gone, file(b"a")), Change(b"a/x", file(b"x"), None)]


def test_ten_thousand_levels_are_walked_and_compared() -> None:
    """Depth costs memory, never a stack."""
    nodes = MemoryNodes()
    old, new = file(b"f"), file(b"f", b"other")
    for _ in range(10_000):
        old, new = directory(b"d", nodes, old), directory(b"d", nodes, new)
    old_root, new_root = directory(b"", nodes, old), directory(b"", nodes, new)

    assert sum(1 for _ in walk(old_root, nodes)) == 10_001
    (change,) = diff_trees(old_root, new_root, nodes)
    assert change.path.count(b"/") == 10_000
    assert resolve_path(old_root, change.path, nodes) == change.old


@pytest.mark.parametrize(
    ("path", "missing"),
    [(b"a/none", "no a/none"), (b"none/x/y", "no none "), (b"a/x/deeper", "a/x is not a")],
)
def test_missing_path_is_named_up_to_the_missing_part(path: bytes, missing: str) -> None:
    """The message says how far the path exists."""
    nodes = MemoryNodes()
    root = directory(b"", nodes, directory(b"a", nodes, file(b"x")))

    with pytest.raises(NotFoundError, match=missing):
        resolve_path(root, path, nodes)


def test_root_resolves_to_itself() -> None:
    """Empty paths and slashes name the root."""
    nodes = MemoryNodes()
    root = directory(b"", nodes)

    assert resolve_path(root, b"", nodes) is root
    assert resolve_path(root, b"/", nodes) is root
    assert root.content == Subtree()
