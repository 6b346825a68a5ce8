"""What must hold for every merge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from tests.unit.merge_files import TREES, read
from tests.unit.merge_three import Three
from workspacefs.ids import FileId
from workspacefs.merge.conflicts import Conflict, Version
from workspacefs.merge.trees import Merged
from workspacefs.objects.entry import Entry
from workspacefs.testing.objects import MemoryObjects
from workspacefs.trees.build import build_directory
from workspacefs.trees.parameters import TreeParameters
from workspacefs.trees.walk import iter_entries, walk


def check_tree(root: Entry, store: MemoryObjects, params: TreeParameters = TREES) -> None:
    """Check that a tree could have been built from its files: ids, links, totals, node shapes."""
    names: dict[FileId, list[Entry]] = {root.file_id: [root]}
    directories = [root]
    for _, entry in walk(root, store):
        names.setdefault(entry.file_id, []).append(entry)
        if entry.is_dir:
            directories.append(entry)
    for entries in names.values():
        assert len({entry._replace(name=b"") for entry in entries}) == 1
        assert entries[0].is_dir or entries[0].nlink == len(entries)
        assert not entries[0].is_dir or len(entries) == 1
    for directory in directories:
        rows = list(iter_entries(directory.subtree, store))
        assert directory.nlink == 2 + sum(row.is_dir for row in rows)
        assert directory.subtree == build_directory(rows, store, params)


def facts(conflict: Conflict) -> tuple[object, ...]:
    return conflict.kind.value, conflict.base, conflict.ours, conflict.theirs


def mirrored(merged: Merged) -> Counter[tuple[object, ...]]:
    return Counter(facts(conflict.mirrored()) for conflict in merged.conflicts)


def words_by_id(root: Entry, store: MemoryObjects) -> dict[FileId, set[bytes]]:
    """Return the lines of each file, or the target of each link."""
    found: dict[FileId, set[bytes]] = {}
    for _, entry in [(b"", root), *(walk(root, store) if root.is_dir else ())]:
        if entry.is_regular or entry.is_symlink:
            words = read(entry, store).replace(b"\0", b"").split(b"\n")
            found[entry.file_id] = set(words) - {b""}
    return found


def words_in(root: Entry, store: MemoryObjects) -> set[bytes]:
    """Return every line of every file, and every target of a link."""
    return set().union(*words_by_id(root, store).values())


def check_nothing_lost(merged: Merged, three: Three) -> None:
    """Check that what a side wrote, and what both kept, is in the result or named by a conflict."""
    base, ours, theirs = (words_by_id(root, three.store) for root in three.roots())
    left = words_in(merged.root, three.store)
    for version in versions_of(merged.conflicts):
        left |= words_in(version.entry, three.store)
    old = set().union(*base.values())
    for side in (ours, theirs):
        assert set().union(*side.values()) - old <= left
    for file_id in ours.keys() & theirs.keys():
        assert ours[file_id] & theirs[file_id] <= left


def versions_of(conflicts: Iterable[Conflict]) -> Iterator[Version]:
    for conflict in conflicts:
        for version in (conflict.base, conflict.ours, conflict.theirs):
            if version is not None:
                yield version


def check_both_ways(three: Three) -> None:
    """Check that a merge and the one in the other direction are sound and say the same."""
    merged, other = three.merge(), three.merge(swapped=True)
    for one in (merged, other):
        check_tree(one.root, three.store)
        check_nothing_lost(one, three)
    assert Counter(facts(conflict) for conflict in merged.conflicts) == mirrored(other)
    if merged.is_clean:
        assert merged.root == other.root
