"""Comparing two directories or two whole trees; equal nodes are skipped unread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from workspacefs.objects.entry import Entry, Subtree
from workspacefs.objects.nodes import BranchNode, LeafNode, Node
from workspacefs.objects.refs import Ref
from workspacefs.trees.nodes import NodeSource, open_child, open_root


class Change(NamedTuple):
    """One path that differs between two trees."""

    path: bytes
    old: Entry | None
    """None: the path was added."""
    new: Entry | None
    """None: the path was removed."""


def diff_directory(
    old: Subtree, new: Subtree, source: NodeSource
) -> Iterator[tuple[Entry | None, Entry | None]]:
    """Yield (old, new) for every name whose entry differs, in order of name; None where absent."""
    if old.root == new.root:
        return
    left, right = _Cursor(old, source), _Cursor(new, source)
    while not (left.is_done or right.is_done):
        if left.level != right.level:
            (left if left.level > right.level else right).open()
        elif left.level >= 0:
            if left.ref == right.ref:
                left.skip()
                right.skip()
            else:
                left.open()
                right.open()
        elif left.ends_with(right):
            yield from left.diff_leaf(right)
            left.skip_leaf()
            right.skip_leaf()
        elif left.name < right.name:
            yield left.entry(), None
            left.skip()
        elif left.name > right.name:
            yield None, right.entry()
            right.skip()
        else:
            if not left.is_same_row(right):
                yield left.entry(), right.entry()
            left.skip()
            right.skip()
    while not left.is_done:
        if left.level >= 0:
            left.open()
        else:
            yield left.entry(), None
            left.skip()
    while not right.is_done:
        if right.level >= 0:
            right.open()
        else:
            yield None, right.entry()
            right.skip()


def diff_trees(old_root: Entry, new_root: Entry, source: NodeSource) -> Iterator[Change]:
    """Yield every path that differs below two roots, a directory before what is in it.

    A directory is reported when it was added or removed or its own attributes differ, not because
    of its content. The roots themselves are not reported. Memory is O(depth).
    """
    pending = [(b"", diff_directory(old_root.subtree, new_root.subtree, source))]
    while pending:
        prefix, pairs = pending[-1]
        for old, new in pairs:
            named = old or new
            assert named is not None
            path = prefix + named.name
            if not (old and new and is_same_directory(old, new)):
                yield Change(path, old, new)
            below_old = _subtree_of(old)
            below_new = _subtree_of(new)
            if below_old.root != below_new.root:
                pending.append((path + b"/", diff_directory(below_old, below_new, source)))
                break
        else:
            pending.pop()


def is_same_directory(old: Entry, new: Entry) -> bool:
    """Tell whether both are directories with equal attributes, whatever lies in them."""
    return old.is_dir and new.is_dir and old._replace(content=None) == new._replace(content=None)


def _subtree_of(entry: Entry | None) -> Subtree:
    return entry.content if entry and isinstance(entry.content, Subtree) else Subtree()


class _Cursor:
    """Stands on a node not yet opened (level >= 0) or on a row of a leaf (level -1)."""

    def __init__(self, subtree: Subtree, source: NodeSource) -> None:
        self._source = source
        self._above: list[tuple[BranchNode, int]] = []
        self._root: Node | None = None
        self._leaf: LeafNode | None = None
        self._row = 0
        self.is_done = subtree.root is None
        self.level = -1
        self.ref = Ref(b"")
        if subtree.root is not None:
            self._root = open_root(source, subtree.root)
            self.ref = subtree.root
            self.level = self._root.level if isinstance(self._root, BranchNode) else 0

    @property
    def name(self) -> bytes:
        """The name of the row it stands on."""
        assert self._leaf is not None
        return self._leaf.names[self._row]

    def entry(self) -> Entry:
        """Return the row it stands on."""
        assert self._leaf is not None
        return self._leaf.entry(self._row)

    def ends_with(self, other: _Cursor) -> bool:
        """Tell whether both stand at the first rows of leaves that end with the same name, or with
        the last name of all: then what differs in one leaf is in the other.
        """
        assert self._leaf is not None
        assert other._leaf is not None
        if self._row or other._row:
            return False
        if self._leaf.names[-1] == other._leaf.names[-1]:
            return True
        return self._is_last_leaf() and other._is_last_leaf()

    def diff_leaf(self, other: _Cursor) -> Iterator[tuple[Entry | None, Entry | None]]:
        """Yield what differs between two leaves."""
        leaf, other_leaf = self._leaf, other._leaf
        assert leaf is not None
        assert other_leaf is not None
        for at, other_at in leaf.iter_changed_rows(other_leaf):
            yield (
                None if at is None else leaf.entry(at),
                None if other_at is None else other_leaf.entry(other_at),
            )

    def skip_leaf(self) -> None:
        """Step past the leaf whose row it stands on."""
        assert self._leaf is not None
        self._row = len(self._leaf) - 1
        self.skip()

    def _is_last_leaf(self) -> bool:
        return all(index + 1 == len(branch.items) for branch, index in self._above)

    def is_same_row(self, other: _Cursor) -> bool:
        """Tell whether both rows are equal, without building entries."""
        assert self._leaf is not None
        assert other._leaf is not None
        return self._leaf.is_same_row(self._row, other._leaf, other._row)

    def open(self) -> None:
        """Step from a node to its first child or row."""
        if self._root is not None:
            node, self._root = self._root, None
        else:
            branch, index = self._above[-1]
            node = open_child(self._source, branch, index)
        if isinstance(node, BranchNode):
            self._above.append((node, 0))
            self.level = node.level - 1
            self.ref = node.items[0].ref
        else:
            self._leaf, self._row, self.level = node, 0, -1

    def skip(self) -> None:
        """Step past the node or row."""
        if self._leaf is not None:
            self._row += 1
            if self._row < len(self._leaf):
                return
            self._leaf = None
        self._root = None
        while self._above:
            branch, index = self._above.pop()
            if index + 1 < len(branch.items):
                self._above.append((branch, index + 1))
                self.level = branch.level - 1
                self.ref = branch.items[index + 1].ref
                return
        self.is_done = True
