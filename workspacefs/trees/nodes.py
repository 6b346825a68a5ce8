"""Where tree nodes come from and go to, and the checks made on every step down.

A stored tree may be hostile even when every id is right (someone else wrote it), so a child must be
what its parent says: its level, its last name, its number of entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from workspacefs.errors import IntegrityError
from workspacefs.objects.nodes import BranchNode, LeafNode, Node
from workspacefs.objects.refs import Child, Ref


class NodeSource(Protocol):
    """Gives tree nodes by reference."""

    def load_node(self, ref: Ref) -> Node:
        """Return the node; whatever this raises passes through every function of trees/."""
        ...


@runtime_checkable
class FarNodeSource(NodeSource, Protocol):
    """A source where many nodes at once take no longer than one."""

    def prefetch_nodes(self, refs: Iterable[Ref]) -> bool:
        """Have nodes at hand that will be loaded soon; False: each is near, nothing was done."""
        ...


class NodeSink(Protocol):
    """Takes new tree nodes, children before parents."""

    def add_node(self, body: bytes, children: Sequence[Child]) -> Ref:
        """Store one node; `children` are its references in body order."""
        ...


def level_of(node: Node) -> int:
    """Return 0 for a leaf, the level of a branch otherwise."""
    return node.level if isinstance(node, BranchNode) else 0


def last_name_of(node: Node) -> bytes:
    """Return the greatest name below `node`."""
    return node.last_names[-1] if isinstance(node, BranchNode) else node.names[-1]


def count_entries(node: Node) -> int:
    """Return the number of names below `node` in this directory."""
    if isinstance(node, LeafNode):
        return len(node)
    return sum(item.entries for item in node.items)


def open_root(source: NodeSource, ref: Ref) -> Node:
    """Return the top node of a directory.

    Raises:
        IntegrityError: It is empty: an empty directory has no node.
    """
    node = source.load_node(ref)
    if isinstance(node, LeafNode) and not node.names:
        raise _wrong(ref, "has no entries")
    return node


def open_child(source: NodeSource, parent: BranchNode, index: int) -> Node:
    """Return child number `index` of `parent`.

    Raises:
        IntegrityError: The child is not what its parent says.
    """
    item = parent.items[index]
    node = source.load_node(item.ref)
    if level_of(node) != parent.level - 1:
        raise _wrong(item.ref, f"is of level {level_of(node)} below level {parent.level}")
    if count_entries(node) != item.entries or last_name_of(node) != item.last_name:
        raise _wrong(item.ref, "does not hold the names that its parent says")
    if index:
        first = node.names[0] if isinstance(node, LeafNode) else node.last_names[0]
        if first <= parent.last_names[index - 1]:
            raise _wrong(item.ref, "overlaps its neighbour")
    return node


def _wrong(ref: Ref, why: str) -> IntegrityError:
    return IntegrityError(
        f"tree node {ref.id.hex()} {why}; the stored tree is damaged",
        kind="tree.inconsistent",
        node_id=ref.id.hex(),
    )
