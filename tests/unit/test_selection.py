"""Part of what a side changed: random changes and paths, held against a model by path."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from tests.unit.merge_files import TREES, Files, show
from workspacefs.errors import NotFoundError, RefusedError
from workspacefs.merge.selection import check_paths, select_changes
from workspacefs.objects.entry import Entry
from workspacefs.testing.objects import MemoryObjects
from workspacefs.trees.walk import iter_entries, walk

RUNS = 3000 if os.environ.get("WORKSPACEFS_TEST_EFFORT") == "full" else 300
NAMES = [b"a", b"b", b"c"]


def random_path(rng: random.Random) -> bytes:
    return b"/".join(rng.choice(NAMES) for _ in range(rng.choice([1, 2, 2, 3])))


def work(files: Files, rng: random.Random, steps: int) -> None:
    """Do random operations, as far as they can be done."""
    for _ in range(steps):
        path, other = random_path(rng), random_path(rng)
        parent = files.find(path.rpartition(b"/")[0])
        if parent is None or not parent.mode & 0o040000:
            continue
        there = files.find(path)
        match rng.randrange(6):
            case 0 | 1 if there is None or there.mode & 0o100000:
                files.write(path, b"%d\n" % rng.randrange(9))
            case 2 | 3 if there is None:
                files.mkdir(path)
            case 4 if there is not None:
                files.remove(path)
            case 5 if there is not None and files.find(other) is None:
                above = files.find(other.rpartition(b"/")[0])
                if above and above.mode & 0o040000 and not (other + b"/").startswith(path + b"/"):
                    (files.move if rng.random() < 0.7 or there.mode & 0o040000 else files.link)(
                        path, other
                    )


def is_below(path: bytes, selected: list[bytes]) -> bool:
    return any(path == one or path.startswith(one + b"/") for one in selected)


def check_sound(root: Entry, store: MemoryObjects) -> None:
    """Raise unless each directory has one place, and files as many as they say."""
    names, links = Counter[int](), dict[int, int]()
    for _, entry in [(b"", root), *walk(root, store)]:
        names[entry.file_id] += 1
        links[entry.file_id] = entry.nlink
        if entry.is_dir:
            below = list(iter_entries(entry.subtree, store))
            assert entry.nlink == 2 + sum(one.is_dir for one in below)
            links[entry.file_id] = 1
    assert names == links


@pytest.mark.parametrize("seed", range(RUNS))
def test_selection_is_the_base_with_what_is_selected(seed: int) -> None:
    """Or it is refused; a tree that contradicts itself is never made."""
    rng = random.Random(seed)
    store, base = MemoryObjects(), Files()
    work(base, rng, 25)
    theirs = base.fork(5000)
    work(theirs, rng, rng.choice([2, 6, 12]))
    before, after = base.tree(store), theirs.tree(store)
    selected = [random_path(rng) for _ in range(rng.choice([1, 1, 2]))]

    try:
        root = select_changes(before, after, selected, store, store, tree_params=TREES)
    except (RefusedError, NotFoundError):
        return

    check_sound(root, store)
    old, new, found = (show(tree, store) for tree in (before, after, root))
    expected = {path: data for path, data in old.items() if not is_below(path, selected)}
    expected |= {path: data for path, data in new.items() if is_below(path, selected)}
    made = found.keys() - expected.keys()
    assert {path: found[path] for path in found.keys() - made} == expected
    # Only directories that lead to what is selected are there besides.
    for path in made:
        assert found[path] == b"/"
        assert any(one.startswith(path + b"/") for one in expected if is_below(one, selected))


def test_most_selections_are_made() -> None:
    """The runs above say something."""
    made = 0
    for seed in range(200):
        rng = random.Random(seed)
        store, base = MemoryObjects(), Files()
        work(base, rng, 25)
        theirs = base.fork(5000)
        work(theirs, rng, 6)
        try:
            select_changes(
                base.tree(store), theirs.tree(store), [random_path(rng)], store, store,
                tree_params=TREES,
            )  # fmt: skip
            made += 1
        except (RefusedError, NotFoundError):
            continue

    assert made > 20


def test_paths_are_read_as_people_write_them() -> None:
    """Slashes at the ends and dots mean nothing."""
    assert check_paths(["/a//b/", "./c", "d"]) == [b"a/b", b"c", b"d"]
