"""Merges of trees that random programs made: what must hold whatever they did."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.merge_checks import check_both_ways, check_nothing_lost, check_tree, facts, mirrored
from tests.unit.merge_files import Files, show
from tests.unit.merge_program import (
    STEPS,
    Forks,
    Program,
    Step,
    forks,
    plain_forks,
    run_forks,
    steps,
)
from tests.unit.merge_three import Three, merge
from workspacefs.objects.entry import Entry
from workspacefs.trees.parameters import TreeParameters
from workspacefs.trees.walk import walk

many = settings(deadline=None, max_examples=examples(100))


def share(program: Forks, common: list[Step]) -> Three:
    """Make a base, and two sides that went the same way for some steps."""
    base = Files()
    Program(base, b"b").run(program[0])
    shared = base.fork(500)
    Program(shared, b"c").run(common)
    three = Three(base)
    three.ours, three.theirs = shared.fork(1000), shared.fork(2000)
    Program(three.ours, b"o").run(program[1])
    Program(three.theirs, b"t").run(program[2])
    return three


@pytest.mark.parametrize("first_seed", range(0, examples(400), 100))
def test_long_programs(first_seed: int) -> None:
    """Many changes on both sides, with and without a common past that the base does not have."""
    for seed in range(first_seed, first_seed + 100):
        rng = random.Random(seed)
        base, common, left, right = (
            [
                (rng.randrange(STEPS), rng.randrange(41), rng.randrange(41))
                for _ in range(rng.randrange(most))
            ]
            for most in (25, 8, 12, 12)
        )
        check_both_ways(share((base, left, right), common if seed % 2 else []))


@given(program=forks)
@many
def test_merge_is_symmetrical(program: Forks) -> None:
    """A clean merge is the same from both sides, byte for byte; else the conflicts are the same."""
    three = run_forks(program)

    merged, other = three.merge(), three.merge(swapped=True)

    assert Counter(facts(conflict) for conflict in merged.conflicts) == mirrored(other)
    if merged.is_clean:
        assert merged.root == other.root


@given(program=forks)
@many
def test_result_is_a_sound_tree(program: Forks) -> None:
    """No directory twice, link counts and totals right, and the nodes are those of its names."""
    three = run_forks(program)

    merged = three.merge()

    check_tree(merged.root, three.store)
    paths = {path for path, _ in walk(merged.root, three.store)} | {b""}
    for conflict in merged.conflicts:
        assert conflict.path.rpartition(b"/")[0] in paths
        assert conflict.beside is None or conflict.beside in paths
    assert list(merged.conflicts) == sorted(merged.conflicts, key=lambda c: c.path)


@given(program=forks)
@many
def test_no_line_is_lost(program: Forks) -> None:
    """What a side wrote is in the result, or in what a conflict names."""
    three = run_forks(program)

    merged = three.merge()

    check_nothing_lost(merged, three)


@given(program=forks)
@many
def test_side_without_changes_changes_nothing(program: Forks) -> None:
    """Merging the base, or what is merged already, gives the other side as it is."""
    three = run_forks(program)
    base, ours, theirs = three.roots()

    assert merge(three.store, base, ours, base).root == ours
    assert merge(three.store, base, base, theirs).root == theirs
    assert merge(three.store, base, ours, ours).root == ours


@given(program=plain_forks)
@many
def test_merging_again_changes_nothing(program: Forks) -> None:
    """A clean merge, merged with either side once more over the old base, stays what it is."""
    three = run_forks(program)
    base, ours, theirs = three.roots()
    merged = three.merge()

    if merged.is_clean:
        for side in (ours, theirs):
            again = merge(three.store, base, merged.root, side)
            assert (again.conflicts, again.root) == ((), merged.root)


@given(program=forks, seed=st.integers(0, 2**64 - 1), bits=st.integers(1, 3))
@many
def test_shape_of_nodes_does_not_matter(
    program: Forks,
    seed: int,
    bits: int,
) -> None:
    """Other tree parameters give the same files and conflicts."""
    three = run_forks(program)
    other = TreeParameters(seed=seed, boundary_bits=bits, single_leaf_max=2)

    merged, again = three.merge(), three.merge(params=other)

    def rows(root: Entry) -> list[tuple[bytes, Entry]]:
        return [
            (path, entry._replace(content=None) if entry.is_dir else entry)
            for path, entry in walk(root, three.store)
        ]

    assert rows(merged.root) == rows(again.root)
    assert [(c.kind, c.path, c.beside) for c in merged.conflicts] == [
        (c.kind, c.path, c.beside) for c in again.conflicts
    ]


@given(common=steps, left=steps, right=steps)
@many
def test_changes_apart_are_both_there(
    common: list[Step], left: list[Step], right: list[Step]
) -> None:
    """What each side did in a directory of its own is what doing both there would give."""
    base = Files()
    for name in (b"left", b"right"):
        base.mkdir(name)
        Program(base, name, name).run(common)
    three, both = Three(base), base.fork(3000)
    for files in (three.ours, both):
        Program(files, b"o", b"left").run(left)
    for files in (three.theirs, both):
        Program(files, b"t", b"right").run(right)

    merged = three.merge()

    assert merged.conflicts == ()
    assert show(merged.root, three.store) == show(both.tree(three.store), three.store)


@given(program=forks, common=steps)
@many
def test_sides_may_have_more_in_common_than_the_base(program: Forks, common: list[Step]) -> None:
    """One was forked from the other's uncommitted work: both know ids that the base does not."""
    check_both_ways(share(program, common))
