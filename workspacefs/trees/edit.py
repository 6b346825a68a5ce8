"""Changing some entries of a directory without reading the others.

The old tree is walked in order. A node without changes is handed on whole wherever the new tree has
a node boundary in the same place, which is everywhere but next to a change; so nodes read and
written are O(changes · height).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from workspacefs.objects.entry import Entry, Subtree, Totals
from workspacefs.objects.nodes import BranchItem, BranchNode, LeafNode, Node
from workspacefs.trees.ahead import AHEAD_NAMES, Way, prefetch_ways
from workspacefs.trees.build import TreeBuilder, add_body, build_directory, sum_entries
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
    if isinstance(root, LeafNode) and entries <= params.single_leaf_max:
        real = _real_changes(root, sorted(changes), changes)
        if not real:
            return base
        if 0 < entries + sum(map(_growth, real)) <= params.single_leaf_max:
            item = _write_patched(root, base.totals, real, sink)
            return Subtree(item.ref, item.totals)
    if entries - removals <= params.single_leaf_max:
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


class _RealChange(NamedTuple):
    name: bytes
    old: Entry | None
    new: Entry | None


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
        self._sink = sink
        self._params = params
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
        ahead = low
        for index, child in enumerate(node.items):
            if ahead <= low < high:
                ahead = min(low + AHEAD_NAMES, high)
                prefetch_ways(self._source, [Way(item.ref, self._names, low, ahead)])
            # What is past the last name goes to the last child: it may only be past the whole
            # directory, because the parent cut at this node's last name.
            until = high
            if index < last:
                until = bisect_right(self._names, child.last_name, low, high)
            if low == until and self._builder.accepts_node(node.level - 1):
                self._builder.add_node(node.level - 1, child, is_reused=True)
            else:
                # Depth is that of one directory's tree: at most LEVELS_MAX.
                self._feed(open_child(self._source, node, index), child, low, until)
            low = until

    def _feed_leaf(self, leaf: LeafNode, item: BranchItem, names: Sequence[bytes]) -> None:
        real = _real_changes(leaf, names, self._changes)
        if not real and self._builder.accepts_node(0):
            self._builder.add_node(0, item, is_reused=True)
        elif self._keeps_bounds(leaf, real) and self._builder.accepts_node(0):
            patched = _write_patched(leaf, item.totals, real, self._sink)
            self._builder.add_node(0, patched, is_reused=False)
        else:
            for entry in merge_entries(leaf.iter_entries(), names, self._changes):
                self._builder.add_entry(entry)

    def _keeps_bounds(self, leaf: LeafNode, real: Sequence[_RealChange]) -> bool:
        """Tell whether the leaf still begins and ends where it did: the common case."""
        closes = self._params.levels_closed_by
        return (
            bool(real)
            and len(leaf) + sum(map(_growth, real)) > 0
            and not any(_growth(change) and closes(change.name) for change in real)
            and (real[-1].name <= leaf.names[-1] or not closes(leaf.names[-1]))
        )

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


def _real_changes(
    leaf: LeafNode, names: Sequence[bytes], changes: Mapping[bytes, Entry | None]
) -> list[_RealChange]:
    """Return those of the changes under `names` (ascending) that change the leaf."""
    found = []
    for name in names:
        old, new = leaf.find(name), changes[name]
        if old != new:
            found.append(_RealChange(name, old, new))
    return found


def _growth(change: _RealChange) -> int:
    return (change.new is not None) - (change.old is not None)


def _write_patched(
    leaf: LeafNode, totals: Totals, real: Sequence[_RealChange], sink: NodeSink
) -> BranchItem:
    """Write the leaf with changes; what it shows of its rows is neither built nor added up."""
    body, refs, names = leaf.encode_patched(
        [change.name for change in real], {change.name: change.new for change in real}
    )
    new = sum_entries(change.new for change in real if change.new is not None)
    old = sum_entries(change.old for change in real if change.old is not None)
    sums = (max(t + n - o, 0) for t, n, o in zip(totals, new, old, strict=True))
    totals = Totals(*sums)
    return BranchItem(names[-1], add_body(body, refs, sink), len(names), totals)
