"""Finding directories that moved, without reading what is in them.

A comparison shows that a directory is gone from one place, and that one has come to another. What
has neither must be looked for: it may have moved into a directory that is new, or out of one that
is gone. Those are listed, one leaf of each side in turn, until all is found; so a large directory
that moved whole costs no more than what is really new or gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from workspacefs.ids import FileId
from workspacefs.merge.differ import Differ
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.objects.nodes import LeafNode
from workspacefs.trees.nodes import NodeSource
from workspacefs.trees.walk import iter_leaves


def find_moved(old: Subtree, new: Subtree, differ: Differ) -> dict[FileId, Subtree]:
    """Return by file id what directories held in `old` that stand at another place in `new`.

    Cost is that of the difference, whatever the size of what moved.
    """
    return _Search(differ).run(old, new)


class _Search:
    def __init__(self, differ: Differ) -> None:
        self._differ = differ
        self._old = _Listing(differ.source)
        self._new = _Listing(differ.source)
        self._pairs: list[tuple[Subtree, Subtree]] = []
        self._moved: dict[FileId, Subtree] = {}

    def run(self, old: Subtree, new: Subtree) -> dict[FileId, Subtree]:
        self._pairs = [(old, new)]
        while True:
            self._compare()
            if not self._old.waiting or not self._new.waiting:
                return self._moved
            found_new, found_old = self._new.read_leaf(), self._old.read_leaf()
            if found_new is None and found_old is None:
                return self._moved
            for here, there, found in (
                (self._new, self._old, found_new),
                (self._old, self._new, found_old),
            ):
                for above, entry in found or ():
                    if above in here.waiting:
                        self._note(entry, here, there, above)

    def _compare(self) -> None:
        while self._pairs:
            pairs, self._pairs = self._pairs, []
            for _, rows in self._differ.compare_all(pairs):
                for left, right in rows:
                    self._note_pair(left, right)

    def _note_pair(self, left: Entry | None, right: Entry | None) -> None:
        old = left if left is not None and left.is_dir else None
        new = right if right is not None and right.is_dir else None
        if old is not None and new is not None and old.file_id == new.file_id:
            if old.subtree.root != new.subtree.root:
                self._pairs.append((old.subtree, new.subtree))
            return
        if old is not None:
            self._note(old, self._old, self._new)
        if new is not None:
            self._note(new, self._new, self._old)

    def _note(
        self, entry: Entry, here: _Listing, there: _Listing, above: FileId | None = None
    ) -> None:
        """Take in a directory that one tree has somewhere, and the other not at that place."""
        if entry.file_id in self._moved:
            return
        match = there.take(entry.file_id)
        if match is None:
            here.add(entry, above)
            return
        old, new = (entry, match) if here is self._old else (match, entry)
        self._moved[entry.file_id] = old.subtree
        if old.subtree.root != new.subtree.root:
            self._pairs.append((old.subtree, new.subtree))


class _Listing:
    """Directories of one tree that the other does not seem to have, listed leaf by leaf."""

    def __init__(self, source: NodeSource) -> None:
        self._source = source
        self.waiting: dict[FileId, Entry] = {}
        """Those that no match is known of, whether listed or not."""
        self._below: dict[FileId, list[FileId]] = {}
        self._queue: deque[FileId] = deque()
        self._current: FileId | None = None
        self._leaves: Iterator[tuple[LeafNode, int]] = iter(())

    def add(self, entry: Entry, above: FileId | None) -> None:
        """Note a directory; `above` is the listed directory that it was found in."""
        self.waiting[entry.file_id] = entry
        self._queue.append(entry.file_id)
        if above is not None:
            self._below.setdefault(above, []).append(entry.file_id)

    def take(self, file_id: FileId) -> Entry | None:
        """Return a directory that is no more waiting, if it was.

        What was found below it is forgotten: it was only listed because nothing was known yet.
        """
        entry = self.waiting.get(file_id)
        stack = [file_id] if entry is not None else []
        while stack:
            gone = stack.pop()
            self.waiting.pop(gone, None)
            stack += self._below.pop(gone, ())
        return entry

    def read_leaf(self) -> list[tuple[FileId, Entry]] | None:
        """Return the directories in the next leaf, each with the one it is in; None at the end."""
        while True:
            if self._current is not None and self._current in self.waiting:
                leaf, _ = next(self._leaves, (None, 0))
                if leaf is not None:
                    above = self._current
                    return [(above, entry) for entry in leaf.iter_entries() if entry.is_dir]
            if not self._queue:
                return None
            self._current = self._queue.popleft()
            if self._current in self.waiting:
                self._leaves = iter_leaves(self.waiting[self._current].subtree, self._source)
