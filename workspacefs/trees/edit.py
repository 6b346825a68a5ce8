"""Changing some entries of a directory without reading the others.

The old tree is walked in order. A node without changes is handed on whole wherever the new tree has
a node boundary in the same place, which is everywhere but next to a change; so nodes read and
written are O(changes · height).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from workspacefs.objects.entry import Entry, Subtree
from workspacefs.objects.nodes import BranchItem, BranchNode, LeafNode, Node
from workspacefs.trees.build import TreeBuilder, build_directory
from workspacefs.trees.nodes import (
    NodeSink,
    NodeSource,
    count_entries,
    last_name_of,
    open_child,
    open_root,
)
from workspacefs.trees.parameters import TreeParameters
from workspacefs.trees.walk import iter_entries


def edit_directory(
    base: Subtree,
    changes: Mapping[bytes, Entry | None],
    source: NodeSource,
    sink: NodeSink,
    params: TreeParameters,
) -> Subtree:
    """Return `base` with `changes` applied: byte for byte what building the result would give.

    Args:
        base: The directory as it is.
        changes: New entry by name (the entry bears the same name), or None to remove the name; a
            name that is not there is removed silently.
        source: Gives nodes of `base`.
        sink: Gets the new nodes, children before parents; nothing that did not change, except by
            coincidence.
        params: Shape; the same that `base` was built with.
    """
    if not changes:
        return base
    if base.root is None:
        return build_directory(_kept(sorted(changes), changes), sink, params)
    root = open_root(source, base.root)
    entries = count_entries(root)
    removals = sum(1 for entry in changes.values() if entry is None)
    if entries - removals <= params.single_leaf_max:
        if isinstance(root, LeafNode) and not _changes_leaf(root, changes, changes):
            return base
        merged = merge_entries(iter_entries(base, source), sorted(changes), changes)
        return build_directory(merged, sink, params)
    return _Edit(changes, source, sink, params).run(base, root, entries)


def merge_entries(
    entries: Iterator[Entry], names: Sequence[bytes], changes: Mapping[bytes, Entry | None]
) -> Iterator[Entry]:
    """Yield `entries` with the changes under `names` (sorted) applied, in order of name."""
    at = 0
    for entry in entries:
        while at < len(names) and names[at] < entry.name:
            if (added := changes[names[at]]) is not None:
                yield added
            at += 1
        if at < len(names) and names[at] == entry.name:
            if (changed := changes[names[at]]) is not None:
                yield changed
            at += 1
        else:
            yield entry
    yield from _kept(names[at:], changes)


class _Edit:
    def __init__(
        self,
        changes: Mapping[bytes, Entry | None],
        source: NodeSource,
        sink: NodeSink,
        params: TreeParameters,
    ) -> None:
        self._changes = changes
        self._names = sorted(changes)
        self._source = source
        self._builder = TreeBuilder(sink, params)

    def run(self, base: Subtree, root: Node, entries: int) -> Subtree:
        assert base.root is not None
        item = BranchItem(last_name_of(root), base.root, entries, base.totals)
        self._feed(root, item, 0, len(self._names))
        top, is_reused = self._builder.finish()
        assert top is not None  # more entries are left than fit a single leaf
        if is_reused:
            top = self._lowest_single(top)
        return Subtree(top.ref, top.totals)

    def _feed(self, node: Node, item: BranchItem, low: int, high: int) -> None:
        """Pass on one node that must be opened; changes number low to high fall to it."""
        if isinstance(node, LeafNode):
            self._feed_leaf(node, item, self._names[low:high])
            return
        last = len(node.items) - 1
        for index, child in enumerate(node.items):
            # What is past the last name goes to the last child: it may only be past the whole
            # directory, because the parent cut at this node's last name.
            until = high
            if index < last:
                until = bisect_right(self._names, child.last_name, low, high)
            if low == until and self._builder.accepts_node(node.level - 1):
                self._builder.add_node(node.level - 1, child)
            else:
                # Depth is that of one directory's tree: at most LEVELS_MAX.
                self._feed(open_child(self._source, node, index), child, low, until)
            low = until

    def _feed_leaf(self, leaf: LeafNode, item: BranchItem, names: Sequence[bytes]) -> None:
        if not _changes_leaf(leaf, names, self._changes) and self._builder.accepts_node(0):
            self._builder.add_node(0, item)
            return
        for entry in merge_entries(leaf.iter_entries(), names, self._changes):
            self._builder.add_entry(entry)

    def _lowest_single(self, top: BranchItem) -> BranchItem:
        node = open_root(self._source, top.ref)
        while isinstance(node, BranchNode) and len(node.items) == 1:
            top = node.items[0]
            node = open_child(self._source, node, 0)
        return top


def _kept(names: Sequence[bytes], changes: Mapping[bytes, Entry | None]) -> Iterator[Entry]:
    for name in names:
        if (entry := changes[name]) is not None:
            yield entry


def _changes_leaf(
    leaf: LeafNode,
    names: Sequence[bytes] | Mapping[bytes, Entry | None],
    changes: Mapping[bytes, Entry | None],
) -> bool:
    return any(leaf.find(name) != changes[name] for name in names)
