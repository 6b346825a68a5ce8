"""Looking for all names of files that have more than one."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from itertools import pairwise

from workspacefs.ids import FileId
from workspacefs.merge.place import Place
from workspacefs.objects.entry import Entry
from workspacefs.trees.nodes import NodeSource
from workspacefs.trees.walk import iter_entries


def iter_names(
    root: Entry, ids: AbstractSet[FileId], source: NodeSource
) -> Iterator[tuple[Place, Entry]]:
    """Yield each name of these files, after the directories that lead to it.

    Only directories are read that have a file of several names below them.
    """
    stack = [(root, iter_entries(root.subtree, source))]
    while stack:
        for entry in stack[-1][1]:
            if entry.file_id in ids and not entry.is_dir:
                way = [*(directory for directory, _ in stack), entry]
                for above, below in pairwise(way):
                    yield Place(above.file_id, below.name), below
            if entry.is_dir and entry.subtree.totals.hardlinked:
                stack.append((entry, iter_entries(entry.subtree, source)))
                break
        else:
            stack.pop()
