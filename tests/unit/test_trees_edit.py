"""Building and editing the tree of one directory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workspacefs.objects.entry import Subtree
from workspacefs.objects.nodes import BranchNode, LeafNode
from workspacefs.testing.entries import build, entry_of
from workspacefs.trees.build import sum_entries
from workspacefs.trees.edit import edit_directory
from workspacefs.trees.parameters import TreeParameters
from workspacefs.trees.walk import find_entry, iter_entries

TINY = TreeParameters(seed=7, boundary_bits=1, single_leaf_max=4)
REAL = TreeParameters(seed=7)


names = st.binary(min_size=1, max_size=3).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
few_names = st.integers(0, 80).map(lambda n: b"n%03d" % n)
params_of = st.builds(
    TreeParameters,
    seed=st.integers(0, 2**64 - 1),
    boundary_bits=st.integers(1, 3),
    single_leaf_max=st.integers(1, 6),
)


@given(
    params=params_of,
    start=st.dictionaries(few_names, st.integers(1, 4), max_size=80),
    edits=st.lists(
        st.dictionaries(few_names, st.none() | st.integers(1, 4), max_size=40), max_size=5
    ),
)
@settings(deadline=None)
def test_edited_tree_is_the_built_tree(
    params: TreeParameters,
    start: dict[bytes, int],
    edits: list[dict[bytes, int | None]],
) -> None:
    """Any sequence of edits gives the same top node as building what results."""
    model = {name: entry_of(name, version) for name, version in start.items()}
    tree, nodes = build(model, params)

    for edit in edits:
        changes = {n: None if v is None else entry_of(n, v) for n, v in edit.items()}
        tree = edit_directory(tree, changes, nodes, nodes, params)
        for name, entry in changes.items():
            if entry is None:
                model.pop(name, None)
            else:
                model[name] = entry

        expected, fresh = build(model, params)
        assert tree == expected
        assert list(iter_entries(tree, nodes)) == [model[name] for name in sorted(model)]
        assert tree.totals == sum_entries(model.values())
        assert fresh.bodies.items() <= nodes.bodies.items()


@given(params=params_of, entries=st.dictionaries(names, st.integers(1, 4), max_size=60))
@settings(deadline=None)
def test_every_name_is_found_and_listed_from_anywhere(
    params: TreeParameters, entries: dict[bytes, int]
) -> None:
    """Lookup and listing agree with a dict."""
    model = {name: entry_of(name, version) for name, version in entries.items()}
    tree, nodes = build(model, params)

    assert all(find_entry(tree, name, nodes) == model[name] for name in model)
    for absent in (b"\x01", b"\xff\xff\xff\xff", b"m"):
        assert find_entry(tree, absent, nodes) == model.get(absent)
    for after in [b"", b"\xff\xff\xff\xff", *sorted(model)]:
        listed = [entry.name for entry in iter_entries(tree, nodes, after=after)]
        assert listed == [name for name in sorted(model) if name > after]


def test_root_is_the_lowest_level_with_one_node() -> None:
    """No tree has a branch of one child at the top, whatever is removed."""
    model = {b"n%04d" % n: entry_of(b"n%04d" % n) for n in range(300)}
    tree, nodes = build(model, TINY)

    for name in sorted(model, reverse=True):
        tree = edit_directory(tree, {name: None}, nodes, nodes, TINY)
        if tree.root is not None:
            top = nodes.load_node(tree.root)
            assert isinstance(top, LeafNode) or len(top.items) > 1

    assert tree == Subtree()


def test_small_directory_is_one_leaf_and_grows_and_shrinks_across_the_limit() -> None:
    """512 names are one leaf, 513 are several, in both directions."""
    model = {b"f%05d" % n: entry_of(b"f%05d" % n) for n in range(512)}
    small, nodes = build(model, REAL)
    extra = entry_of(b"f99999")

    grown = edit_directory(small, {extra.name: extra}, nodes, nodes, REAL)
    back = edit_directory(grown, {extra.name: None}, nodes, nodes, REAL)

    assert small.root is not None
    assert grown.root is not None
    assert isinstance(nodes.load_node(small.root), LeafNode)
    assert isinstance(nodes.load_node(grown.root), BranchNode)
    assert grown == build(model | {extra.name: extra}, REAL)[0]
    assert back == small


def test_removing_a_boundary_name_merges_two_leaves() -> None:
    """Without the name that closed it a leaf runs on into the next."""
    model = {b"f%05d" % n: entry_of(b"f%05d" % n) for n in range(3000)}
    tree, nodes = build(model, REAL)
    assert tree.root is not None
    top = nodes.load_node(tree.root)
    assert isinstance(top, BranchNode)
    boundary = top.last_names[0]

    edited = edit_directory(tree, {boundary: None}, nodes, nodes, REAL)

    assert edited.root is not None
    after = nodes.load_node(edited.root)
    assert isinstance(after, BranchNode)
    assert len(after.items) == len(top.items) - 1
    del model[boundary]
    assert edited == build(model, REAL)[0]


@pytest.mark.parametrize("changes", [1, 10, 100])
def test_nodes_touched_grow_with_changes_not_with_the_directory(changes: int) -> None:
    """An edit of n names in 100,000 reads and writes at most a few nodes for each."""
    model = {b"f%06d" % n: entry_of(b"f%06d" % n) for n in range(100_000)}
    tree, nodes = build(model, REAL)
    nodes.loads = nodes.adds = 0
    edit = {b"f%06d" % (n * 977 % 100_000): entry_of(b"x", 3) for n in range(changes)}
    edit = {name: entry._replace(name=name) for name, entry in edit.items()}

    edited = edit_directory(tree, edit, nodes, nodes, REAL)

    assert nodes.loads <= 3 * changes + 3
    assert nodes.adds <= 3 * changes + 3
    assert edited == build(model | edit, REAL)[0]


def test_changes_that_change_nothing_write_nothing() -> None:
    """Setting equal entries or removing absent names keeps the tree, unwritten if small."""
    model = {b"f%03d" % n: entry_of(b"f%03d" % n) for n in range(100)}
    tree, nodes = build(model, REAL)
    nodes.adds = 0

    same = edit_directory(tree, {b"f001": model[b"f001"], b"zz": None}, nodes, nodes, REAL)

    assert same == tree
    assert nodes.adds == 0
