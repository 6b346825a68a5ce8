"""Comparing directories, each pair but once: first to find what moved, then to see what changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from workspacefs.objects.entry import Entry, Subtree
from workspacefs.trees.diff import diff_directory
from workspacefs.trees.nodes import FarNodeSource, NodeSource

_ROOTS_AHEAD: Final = 128
"""Pairs of directories whose top nodes are held at once."""

Rows: TypeAlias = tuple[Entry | None, Entry | None]
"""Of one name: as in the old directory and as in the new one; None where it is not."""


class Differ:
    """Remembers what differs between directories: memory is O(changes)."""

    def __init__(self, source: NodeSource) -> None:
        self.source = source
        self._known: dict[tuple[bytes | None, bytes | None], list[Rows]] = {}

    def compare_all(
        self, pairs: Sequence[tuple[Subtree, Subtree]]
    ) -> Iterator[tuple[int, list[Rows]]]:
        """Yield the number of each pair, and the rows of names that differ, in order of name.

        From a far source the top nodes of many are brought at once.
        """
        for first in range(0, len(pairs), _ROOTS_AHEAD):
            batch = pairs[first : first + _ROOTS_AHEAD]
            if isinstance(self.source, FarNodeSource):
                unknown = [pair for pair in batch if _key(*pair) not in self._known]
                self.source.prefetch_nodes(
                    subtree.root for pair in unknown for subtree in pair if subtree.root is not None
                )
            for number, (old, new) in enumerate(batch, first):
                yield number, self._compare(old, new)

    def _compare(self, old: Subtree, new: Subtree) -> list[Rows]:
        key = _key(old, new)
        rows = self._known.get(key)
        if rows is None:
            rows = self._known[key] = list(diff_directory(old, new, self.source))
        return rows


def _key(old: Subtree, new: Subtree) -> tuple[bytes | None, bytes | None]:
    return old.root.id if old.root else None, new.root.id if new.root else None
