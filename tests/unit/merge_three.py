"""A base and two sides of it, and their merge."""

from __future__ import annotations

from tests.unit.merge_files import CHUNKS, TREES, Files
from workspacefs.merge.lines import Labels
from workspacefs.merge.trees import Merged, merge_trees
from workspacefs.objects.entry import Entry
from workspacefs.testing.objects import MemoryObjects
from workspacefs.trees.parameters import TreeParameters

TIME_NS = 1_000_000
LABELS = Labels(ours="ours", theirs="theirs")


class Three:
    """A base and two sides of it, in one store."""

    def __init__(self, base: Files | None = None) -> None:
        self.store = MemoryObjects()
        self.base = base or Files()
        self.ours = self.base.fork(1000)
        self.theirs = self.base.fork(2000)

    def roots(self, params: TreeParameters = TREES) -> tuple[Entry, Entry, Entry]:
        """Store all three; return their roots."""
        base, ours, theirs = (
            files.tree(self.store, params) for files in (self.base, self.ours, self.theirs)
        )
        return base, ours, theirs

    def merge(self, *, swapped: bool = False, params: TreeParameters = TREES) -> Merged:
        """Merge them, or them the other way round."""
        base, ours, theirs = self.roots(params)
        return merge(
            self.store, base, *((theirs, ours) if swapped else (ours, theirs)), params=params
        )


def merge(
    store: MemoryObjects,
    base: Entry,
    ours: Entry,
    theirs: Entry,
    *,
    params: TreeParameters = TREES,
    labels: Labels = LABELS,
) -> Merged:
    """Merge three trees of one store."""
    return merge_trees(
        base,
        ours,
        theirs,
        store,
        store,
        tree_params=params,
        chunk_params=CHUNKS,
        time_ns=TIME_NS,
        labels=labels,
    )
