"""Nodes on the way to names are brought level by level, whatever the tree claims."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from workspacefs.ids import FileId
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.objects.nodes import Node
from workspacefs.objects.refs import Ref
from workspacefs.testing.nodes import MemoryNodes
from workspacefs.trees.ahead import Way, prefetch_ways
from workspacefs.trees.build import build_directory
from workspacefs.trees.edit import edit_directory
from workspacefs.trees.parameters import TreeParameters
from workspacefs.trees.walk import find_entry

PARAMS = TreeParameters(seed=7, boundary_bits=3, single_leaf_max=20)


class FarStore:
    """Holds nothing at first; counts rounds, and loads of what was not brought before."""

    def __init__(self, inner: MemoryNodes) -> None:
        self._inner = inner
        self._here: set[bytes] = set()
        self.rounds = 0
        self.single_loads = 0

    def prefetch_nodes(self, refs: Iterable[Ref]) -> bool:
        """Bring nodes, in a round if any is missing."""
        missing = {ref.id for ref in refs} - self._here
        self.rounds += bool(missing)
        self._here |= missing
        return True

    def load_node(self, ref: Ref) -> Node:
        """Return a node."""
        if ref.id not in self._here:
            self._here.add(ref.id)
            self.single_loads += 1
        return self._inner.load_node(ref)


def entry(name: bytes, mtime: int = 0) -> Entry:
    return Entry(name, 0o100644, 0, 0, 0, mtime, 0, FileId(5), 1, None)


def build(names: Iterable[bytes]) -> tuple[MemoryNodes, Subtree]:
    store = MemoryNodes()
    return store, build_directory([entry(name) for name in sorted(names)], store, PARAMS)


@pytest.mark.parametrize("seed", range(20))
def test_names_are_found_without_another_load(seed: int) -> None:
    """After a round per level, all names are at hand: those that are there, those that are not."""
    rng = random.Random(seed)
    trees = [
        build({b"%05d" % rng.randrange(99999) for _ in range(rng.choice([1, 30, 3000]))})
        for _ in range(5)
    ]
    store = MemoryNodes()
    for one, _ in trees:
        store.bodies.update(one.bodies)
    far = FarStore(store)
    wanted = [sorted({b"%05d" % rng.randrange(99999) for _ in range(30)}) for _ in trees]
    ways = [
        Way(subtree.root, names, 0, len(names))
        for (_, subtree), names in zip(trees, wanted, strict=True)
        if subtree.root is not None
    ]

    assert prefetch_ways(far, ways)

    assert far.rounds <= 6
    for (_, subtree), names in zip(trees, wanted, strict=True):
        for name in names:
            find_entry(subtree, name, far)
    assert far.single_loads == 0


def test_near_source_is_left_alone() -> None:
    """A source that cannot bring many at once is not asked for anything."""
    store, subtree = build(b"%d" % number for number in range(100))
    assert subtree.root is not None

    assert not prefetch_ways(store, [Way(subtree.root, [b"5"], 0, 1)])


def test_edit_of_many_places_takes_few_rounds() -> None:
    """300 changes all over a directory of 20,000 load hardly a node alone."""
    names = [b"%05d" % number for number in range(20_000)]
    store, subtree = build(names)
    far = FarStore(store)
    changed = random.Random(1).sample(names, 300)

    edited = edit_directory(subtree, {name: entry(name, 7) for name in changed}, far, store, PARAMS)

    assert find_entry(edited, changed[0], store) == entry(changed[0], 7)
    assert far.single_loads <= 1
    assert far.rounds < 20
