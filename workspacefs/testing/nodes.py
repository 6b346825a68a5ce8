"""Tree nodes in a dict, with counts of what was read and written."""

from __future__ import annotations

from collections.abc import Sequence

from workspacefs.ids import node_id_of
from workspacefs.objects.nodes import Node, decode_node
from workspacefs.objects.refs import Child, Ref


class MemoryNodes:
    """A NodeSource and NodeSink."""

    def __init__(self) -> None:
        self.bodies: dict[bytes, bytes] = {}
        self.loads = 0
        self.adds = 0

    def add_node(self, body: bytes, children: Sequence[Child]) -> Ref:
        """Keep one node."""
        self.adds += 1
        node_id = node_id_of(body)
        self.bodies[node_id] = body
        return Ref(node_id)

    def load_node(self, ref: Ref) -> Node:
        """Return the node, decoded afresh.

        Raises:
            KeyError: It was never added.
        """
        self.loads += 1
        return decode_node(self.bodies[ref.id], (), what=f"tree node {ref.id.hex()[:12]}")
