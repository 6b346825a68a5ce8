"""What one side did to the base, by identity; found in O(changes).

A file or directory is known by its file id. Where an id is gone for good, and its name leads to a
new file of the same kind, that is the same one, replaced: editors write a new file and rename it
over the old one, and programs remove a directory and make it afresh.
"""

from __future__ import annotations

import stat
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from workspacefs.errors import IntegrityError
from workspacefs.ids import FileId
from workspacefs.merge.differ import Differ
from workspacefs.merge.moves import find_moved
from workspacefs.merge.place import Place, Seen
from workspacefs.objects.entry import Entry, Subtree


@dataclass(frozen=True, slots=True)
class Side:
    """Identities whose rows or places differ between the base and one side, and directories above.

    The identity is the id in the base, or of what is new the id on the side. What is in neither map
    is the same in both trees.
    """

    base: dict[FileId, Seen] = field(default_factory=dict)
    now: dict[FileId, Seen] = field(default_factory=dict)
    replaced: dict[FileId, FileId] = field(default_factory=dict)
    """Ids on the side that took the place of others: identity by id."""


def compare_side(
    base: Entry, root: Entry, differ: Differ, *, separate: AbstractSet[FileId] = frozenset()
) -> Side:
    """Return what a side did.

    Args:
        base: Root of the base.
        root: Root of the side.
        differ: Compares their directories; for one side only.
        separate: New ids that take the place of no other, because the other side knows both.

    Raises:
        IntegrityError: A tree has one directory twice, or names of one file that say different.
    """
    return _Comparison(base, root, differ, separate).run()


def kind_of(entry: Entry) -> int:
    """Return what kind of file this is, as in st_mode."""
    return stat.S_IFMT(entry.mode)


class _Comparison:
    def __init__(
        self, base: Entry, root: Entry, differ: Differ, separate: AbstractSet[FileId]
    ) -> None:
        self._differ = differ
        self._separate = separate
        self._moved = find_moved(base.subtree, root.subtree, differ)
        self._side = Side()
        self._replaceable: set[tuple[FileId, FileId]] = set()
        self._pairs: list[tuple[FileId, Subtree, Subtree]] = []
        self._begin(base, root)

    def _begin(self, base: Entry, root: Entry) -> None:
        self._side.base[base.file_id] = Seen(base)
        self._side.now[root.file_id] = Seen(root)
        if base.file_id != root.file_id:
            self._side.replaced[root.file_id] = base.file_id
        self._push(base.file_id, base.subtree, root.subtree)

    def run(self) -> Side:
        while self._pairs:
            pairs, self._pairs = self._pairs, []
            subtrees = [(old, new) for _, old, new in pairs]
            for number, rows in self._differ.compare_all(subtrees):
                for before, after in rows:
                    self._visit(pairs[number][0], before, after)
        self._add_unseen()
        self._find_replaced()
        side = self._side
        now = {side.replaced.get(file_id, file_id): seen for file_id, seen in side.now.items()}
        return Side(side.base, now, side.replaced)

    def _visit(self, directory: FileId, before: Entry | None, after: Entry | None) -> None:
        if before is not None:
            _note(self._side.base, before, directory)
        if after is not None:
            _note(self._side.now, after, directory)
        old = before if before is not None and before.is_dir else None
        new = after if after is not None and after.is_dir else None
        if old is not None and new is not None and self._is_same_directory(old, new):
            self._push(old.file_id, old.subtree, new.subtree)
            return
        if old is not None and old.file_id not in self._moved:
            self._push(old.file_id, old.subtree, Subtree())
        if new is not None:
            self._push(new.file_id, self._moved.get(new.file_id, Subtree()), new.subtree)
        if before is not None and after is not None and old is None and new is None:
            self._note_replaceable(before, after)

    def _is_same_directory(self, old: Entry, new: Entry) -> bool:
        if old.file_id == new.file_id:
            return True
        if old.file_id in self._moved or new.file_id in self._moved:
            return False
        if new.file_id in self._separate:
            return False
        self._side.replaced[new.file_id] = old.file_id
        return True

    def _push(self, directory: FileId, old: Subtree, new: Subtree) -> None:
        if old.root != new.root:
            self._pairs.append((directory, old, new))

    def _note_replaceable(self, before: Entry, after: Entry) -> None:
        if before.file_id != after.file_id and kind_of(before) == kind_of(after):
            self._replaceable.add((before.file_id, after.file_id))

    def _add_unseen(self) -> None:
        """Keep files that lost a name without a word of it in their rows: others are left."""
        for file_id, seen in self._side.base.items():
            has_others = not seen.entry.is_dir and seen.entry.nlink > len(seen.places)
            if has_others and file_id not in self._side.now:
                self._side.now[file_id] = Seen(seen.entry)

    def _find_replaced(self) -> None:
        """Decide which new files took the place of which that are gone.

        In order of id, so that it does not depend on the walk when files had several names.
        """
        side, taken = self._side, set[FileId]()
        for old, new in sorted(self._replaceable):
            is_gone = old not in side.now and old not in taken
            is_new = new not in side.base and new not in side.replaced
            if is_gone and is_new and new not in self._separate:
                side.replaced[new] = old
                taken.add(old)


def _note(seen_by_id: dict[FileId, Seen], entry: Entry, directory: FileId) -> None:
    place = Place(directory, entry.name)
    seen = seen_by_id.get(entry.file_id)
    if seen is None:
        seen_by_id[entry.file_id] = Seen(entry, {place})
        return
    if entry.is_dir or entry[1:] != seen.entry[1:]:
        raise IntegrityError(
            f"file id {entry.file_id} stands for different files, the one called "
            f"{entry.name!r} and the one called {seen.entry.name!r}; the stored tree is damaged",
            kind="tree.inconsistent",
            file_id=entry.file_id,
        )
    seen.places.add(place)
