"""What decides the shape of a directory's tree; fixed when a workspace is made.

The shape is a function of the set of names alone: editing an entry never moves a boundary, and two
writers that reach the same names reach the same nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from xxhash import xxh3_64_intdigest

LEVELS_MAX: Final = 14
"""A tree is never higher: a name closes at most this many levels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeParameters:
    """Keyed boundary hash and node sizes."""

    seed: int
    """64-bit key of the name hash; random per workspace, so names cannot be chosen to unbalance."""
    boundary_bits: int = 8
    """A name closes a node of level k with probability 2**-(boundary_bits * (k + 1))."""
    single_leaf_max: int = 512
    """A directory of at most this many names is one leaf, whatever they are."""

    def levels_closed_by(self, name: bytes) -> int:
        """Return how many nodes end with `name`: 0 none, 1 its leaf, 2 the branch above too …"""
        digest = xxh3_64_intdigest(name, self.seed)
        if digest & ((1 << self.boundary_bits) - 1):
            return 0
        zeros = (digest & -digest).bit_length() - 1 if digest else 64
        return min(zeros // self.boundary_bits, LEVELS_MAX)
