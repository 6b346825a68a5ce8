"""Looking up and listing: one directory, one path, or everything below a directory.

Listings and walks have a far source bring the next nodes together, so many at a time that a round
trip is worth it, and so few that a reader who stops early has not paid for much.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

from workspacefs.errors import IntegrityError, NotFoundError
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.objects.nodes import BranchNode, LeafNode
from workspacefs.trees.nodes import FarNodeSource, NodeSource, open_child, open_root

_LEAVES_AHEAD: Final = 16
"""Of one directory: about 512 KB of plain nodes."""
_DIRECTORIES_AHEAD: Final = 128


def find_entry(subtree: Subtree, name: bytes, source: NodeSource) -> Entry | None:
    """Return the entry called `name` in a directory, or None."""
    if subtree.root is None:
        return None
    node = open_root(source, subtree.root)
    while isinstance(node, BranchNode):
        index = bisect_left(node.last_names, name)
        if index == len(node.items):
            return None
        node = open_child(source, node, index)
    return node.find(name)


def iter_entries(subtree: Subtree, source: NodeSource, *, after: bytes = b"") -> Iterator[Entry]:
    """Yield the entries of a directory whose names are greater than `after`, in order of name.

    Nodes are loaded as the iteration reaches them.
    """
    for leaf, start in iter_leaves(subtree, source, after=after):
        yield from leaf.iter_entries(start)


def iter_leaves(
    subtree: Subtree, source: NodeSource, *, after: bytes = b""
) -> Iterator[tuple[LeafNode, int]]:
    """Yield the leaves that hold names greater than `after`, each with its first such row."""
    if subtree.root is None:
        return
    node = open_root(source, subtree.root)
    open_branches: list[tuple[BranchNode, int]] = []
    previous = b""
    while True:
        if isinstance(node, BranchNode):
            index = bisect_right(node.last_names, after)
            if index < len(node.items):
                open_branches.append((node, index + 1))
                _bring_children(source, node, index)
                node = open_child(source, node, index)
                continue
        else:
            if node.names[0] <= previous:
                raise IntegrityError(
                    f"a directory lists {node.names[0]!r} twice or out of order; "
                    "the stored tree is damaged",
                    kind="tree.inconsistent",
                )
            previous = node.names[-1]
            if (start := bisect_right(node.names, after)) < len(node):
                yield node, start
        while open_branches:
            branch, index = open_branches.pop()
            if index < len(branch.items):
                open_branches.append((branch, index + 1))
                if index % _LEAVES_AHEAD == 0:
                    _bring_children(source, branch, index)
                node = open_child(source, branch, index)
                break
        else:
            return


def iter_entries_to_enter(subtree: Subtree, source: NodeSource) -> Iterator[Entry]:
    """Yield the entries of a directory, for a walk that opens each directory as it comes to it."""
    if not isinstance(source, FarNodeSource) or not source.prefetch_nodes(()):
        yield from iter_entries(subtree, source)
        return
    for leaf, start in iter_leaves(subtree, source):
        entries = list(leaf.iter_entries(start))
        for first in range(0, len(entries), _DIRECTORIES_AHEAD):
            batch = entries[first : first + _DIRECTORIES_AHEAD]
            source.prefetch_nodes(
                entry.content.root
                for entry in batch
                if isinstance(entry.content, Subtree) and entry.content.root is not None
            )
            yield from batch


def walk(root: Entry, source: NodeSource) -> Iterator[tuple[bytes, Entry]]:
    """Yield (path, entry) of everything below `root`, depth first, a directory before its content.

    Paths are relative, names joined by "/". `root` itself is not yielded. Memory is O(depth).
    """
    pending: list[tuple[bytes, Iterator[Entry]]] = [
        (b"", iter_entries_to_enter(root.subtree, source))
    ]
    while pending:
        prefix, entries = pending[-1]
        for entry in entries:
            path = prefix + entry.name
            yield path, entry
            if isinstance(entry.content, Subtree) and entry.content.root is not None:
                pending.append((path + b"/", iter_entries_to_enter(entry.content, source)))
                break
        else:
            pending.pop()


def resolve_path(root: Entry, path: bytes, source: NodeSource) -> Entry:
    """Return the entry at `path` below `root`; links are not followed, empty parts are skipped.

    Raises:
        NotFoundError: Nothing is there; the message names the first part that is missing.
    """
    entry, seen = root, b""
    for name in path.split(b"/"):
        if not name:
            continue
        if not isinstance(entry.content, Subtree):
            raise NotFoundError(
                f"{_show(seen)} is not a directory, so {_show(path)} does not exist",
                kind="path.absent",
            )
        found = find_entry(entry.content, name, source)
        seen = seen + b"/" + name if seen else name
        if found is None:
            raise NotFoundError(f"there is no {_show(seen)} in this tree", kind="path.absent")
        entry = found
    return entry


def _bring_children(source: NodeSource, branch: BranchNode, index: int) -> None:
    if isinstance(source, FarNodeSource):
        stop = index - index % _LEAVES_AHEAD + _LEAVES_AHEAD
        source.prefetch_nodes(item.ref for item in branch.items[index:stop])


def _show(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
