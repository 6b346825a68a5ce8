"""Building the tree of one directory from entries in order of name.

`TreeBuilder` is the one place that decides where nodes end. Editing feeds it unchanged nodes whole,
so an edited tree is the built tree by construction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workspacefs.errors import RefusedError
from workspacefs.names import are_file_names_in_order
from workspacefs.objects.encoding import OBJECT_MAX_BYTES
from workspacefs.objects.entry import Entry, Subtree, Totals
from workspacefs.objects.nodes import BranchItem, encode_branch, encode_leaf
from workspacefs.objects.refs import Child, Ref
from workspacefs.trees.nodes import NodeSink
from workspacefs.trees.parameters import TreeParameters


def build_directory(entries: Iterable[Entry], sink: NodeSink, params: TreeParameters) -> Subtree:
    """Write the nodes of a directory; return what its entry shall hold.

    Args:
        entries: In ascending order of name, each name once. Read lazily: memory is O(height).
        sink: Gets each node once, children before parents.
        params: Shape.

    Raises:
        RefusedError: A node would be too large to be read again.
    """
    directory = DirectoryWriter(sink, params)
    for entry in entries:
        directory.add(entry)
    return directory.finish()


class DirectoryWriter:
    """Takes the entries of one directory one by one, in ascending order of name.

    Holds at most `single_leaf_max` entries and one open node per level.
    """

    def __init__(self, sink: NodeSink, params: TreeParameters) -> None:
        self._sink = sink
        self._params = params
        self._few: list[Entry] = []
        self._many: TreeBuilder | None = None

    def add(self, entry: Entry) -> None:
        """Append one entry; its name is greater than all before it."""
        if self._many is not None:
            self._many.add_entry(entry)
            return
        self._few.append(entry)
        if len(self._few) > self._params.single_leaf_max:
            self._many = TreeBuilder(self._sink, self._params)
            for early in self._few:
                self._many.add_entry(early)
            self._few = []

    def finish(self) -> Subtree:
        """Write what is left; return what the directory's entry shall hold. Call once."""
        if self._many is None:
            if not self._few:
                return Subtree()
            top: BranchItem | None = write_leaf(self._few, self._sink)
        else:
            top, _ = self._many.finish()
        assert top is not None
        return Subtree(top.ref, top.totals)


class TreeBuilder:
    """Groups entries into leaves, leaves into branches, and so on; for large directories.

    `_entries` and `_items[k]` hold the children of the node of level 0 and k that is being filled.
    A node that is complete is written only when more follows, because the very last node of a
    level may turn out to be the root.
    """

    def __init__(self, sink: NodeSink, params: TreeParameters) -> None:
        self._sink = sink
        self._params = params
        self._entries: list[Entry] = []
        self._items: list[list[BranchItem]] = [[]]  # number 0 stays empty: entries stand there
        self._is_complete: list[bool] = [False]
        self._is_last_reused: list[bool] = [False]

    def add_entry(self, entry: Entry) -> None:
        """Append one entry; its name is greater than all before it."""
        if self._is_complete[0]:
            self._write(0)
        self._entries.append(entry)
        if self._params.levels_closed_by(entry.name):
            self._is_complete[0] = True

    def accepts_node(self, level: int) -> bool:
        """Tell whether a node of `level` from the old tree may follow whole.

        Call only when something will be added next: complete nodes are written now.
        """
        for lower in range(min(level + 1, len(self._items))):
            if self._is_complete[lower]:
                self._write(lower)
        if self._entries:
            return False
        return not any(self._items[1 : level + 1])

    def add_node(self, level: int, item: BranchItem, *, is_reused: bool) -> None:
        """Append a node whole; `accepts_node` must just have said yes.

        Args:
            is_reused: It is a node of the old tree, not one written just now.
        """
        self._push(level + 1, item, is_reused=is_reused)

    def finish(self) -> tuple[BranchItem | None, bool]:
        """Write what is left; return the top node, and whether it comes from the old tree."""
        if self._entries:
            self._write(0)
        level = 1
        while level < len(self._items):
            items = self._items[level]
            if level == len(self._items) - 1 and len(items) == 1:
                return items[0], self._is_last_reused[level]
            if items:
                self._write(level)
            level += 1
        return None, False

    def _push(self, level: int, item: BranchItem, *, is_reused: bool) -> None:
        while len(self._items) <= level:
            self._items.append([])
            self._is_complete.append(False)
            self._is_last_reused.append(False)
        if self._is_complete[level]:
            self._write(level)
        self._items[level].append(item)
        self._is_last_reused[level] = is_reused
        if self._params.levels_closed_by(item.last_name) > level:
            self._is_complete[level] = True

    def _write(self, level: int) -> None:
        if level == 0:
            item = write_leaf(self._entries, self._sink)
            self._entries = []
        else:
            item = _write_branch(level, self._items[level], self._sink)
            self._items[level] = []
        self._is_complete[level] = False
        self._push(level + 1, item, is_reused=False)


def write_leaf(entries: Sequence[Entry], sink: NodeSink) -> BranchItem:
    """Write one leaf of these entries, at least one."""
    assert are_file_names_in_order([entry.name for entry in entries])
    body, refs = encode_leaf(entries)
    return BranchItem(
        entries[-1].name, add_body(body, refs, sink), len(entries), sum_entries(entries)
    )


def sum_entries(entries: Iterable[Entry]) -> Totals:
    """Return the totals of a directory that holds these entries."""
    files = dirs = size_bytes = hardlinked = 0
    for entry in entries:
        content = entry.content
        if isinstance(content, Subtree):
            below = content.totals
            files += below.files
            dirs += below.dirs + 1
            size_bytes += below.size_bytes
            hardlinked += below.hardlinked
        else:
            files += 1
            size_bytes += entry.size_bytes
            hardlinked += entry.nlink > 1
    return Totals(files, dirs, size_bytes, hardlinked)


def _write_branch(level: int, items: Sequence[BranchItem], sink: NodeSink) -> BranchItem:
    body, refs = encode_branch(level, items)
    totals = Totals(*map(sum, zip(*(item.totals for item in items), strict=True)))
    entries = sum(item.entries for item in items)
    return BranchItem(items[-1].last_name, add_body(body, refs, sink), entries, totals)


def add_body(body: bytes, refs: Sequence[Child], sink: NodeSink) -> Ref:
    """Write one node.

    Raises:
        RefusedError: It would be too large to be read again.
    """
    if len(body) > OBJECT_MAX_BYTES:
        raise RefusedError(
            f"a directory node would take {len(body)} bytes, more than {OBJECT_MAX_BYTES}; "
            "remove extended attributes from its files",
            kind="tree.node_too_large",
            size_bytes=len(body),
        )
    return sink.add_node(body, refs)
