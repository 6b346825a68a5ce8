"""Nodes on the way to names, for sources far away: a round trip a level, not one a node."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from workspacefs.objects.nodes import BranchNode
from workspacefs.objects.refs import Ref
from workspacefs.trees.nodes import FarNodeSource, NodeSource

AHEAD_NAMES: Final = 128
"""Names whose ways are held at once: the node of a large directory takes 200 KB decoded."""


class Way(NamedTuple):
    """From a node to some of the names below it."""

    ref: Ref
    names: Sequence[bytes]
    """Ascending."""
    low: int
    """The way leads to names[low:high]."""
    high: int


def prefetch_ways(source: NodeSource, ways: Sequence[Way]) -> bool:
    """Have all nodes at hand that lie on these ways; False: the source is near, nothing was done.

    Costs as many round trips as the highest of the trees has levels. Descends only into what it
    has at hand afterwards, so what cannot be prefetched is left to whoever loads it.
    """
    if not isinstance(source, FarNodeSource):
        return False
    if not source.prefetch_nodes(way.ref for way in ways):
        return False
    level_above = 1 << 30
    while True:
        below: list[Way] = []
        levels = [0]
        for way in ways:
            node = source.load_node(way.ref)
            # Whoever wrote the tree may have written nonsense: down means down.
            if isinstance(node, BranchNode) and node.level < level_above:
                levels.append(node.level)
                below += (
                    Way(node.items[index].ref, way.names, low, high)
                    for index, low, high in iter_children(node, way.names, way.low, way.high)
                )
        if not below:
            return True
        ways, level_above = below, max(levels)
        source.prefetch_nodes(way.ref for way in ways)


def iter_children(
    node: BranchNode, names: Sequence[bytes], low: int, high: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (number, low, high) of each child of a branch that some of names[low:high] fall to.

    What is past the last name falls to the last child.
    """
    last_names = node.last_names
    at = low
    while at < high:
        index = min(bisect_left(last_names, names[at]), len(last_names) - 1)
        until = high
        if index < len(last_names) - 1:
            until = bisect_right(names, last_names[index], at, high)
        yield index, at, until
        at = until
