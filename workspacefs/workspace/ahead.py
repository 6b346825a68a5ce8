"""Changed names of directories, the nodes that they need brought from far away in few round trips.

A walk over the changes opens one directory after another, and 100 changes in 100 directories would
be 100 round trips. So the walk is run through ahead of its reader, breadth first, a window of
directories at a time: a window costs as many round trips as the tree is high.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol, TypeAlias, runtime_checkable

from workspacefs.ids import FileId
from workspacefs.objects.entry import Entry, LongContent
from workspacefs.objects.refs import Ref
from workspacefs.trees.ahead import AHEAD_NAMES, Way, prefetch_ways
from workspacefs.trees.nodes import FarNodeSource
from workspacefs.workspace.pending import Pending, PendingFile

_WINDOW_BYTES: Final = 1536 * 1024
"""Of the root nodes of a window, plain; decoded they take seven times as much."""

ChangedNames: TypeAlias = list[tuple[bytes, PendingFile | None, Entry | None]]


@runtime_checkable
class FarContentSource(Protocol):
    """A source where many chunk lists at once take no longer than one."""

    def prefetch_chunk_lists(self, refs: Iterable[Ref]) -> bool:
        """Have chunk lists at hand that will be loaded soon; False: each is near."""
        ...


class ChangesAhead:
    """Answers what Pending.changed_names answers, for a walk in depth-first order of names.

    Memory: the answers and nodes of one window.
    """

    def __init__(self, pending: Pending) -> None:
        self._pending = pending
        source = pending.source
        self._is_far = isinstance(source, FarNodeSource) and source.prefetch_nodes(())
        self._found: dict[FileId, ChangedNames] = {}
        self._frontier: list[PendingFile] = []
        """Directories that were seen and not looked into, the next one of the walk last."""

    def changed_names(self, directory: PendingFile) -> ChangedNames:
        """Return (name, file or None, base entry or None) of every name with a row, in order."""
        if not self._is_far:
            return self._pending.changed_names(directory)
        if directory.file_id not in self._found:
            self._look_ahead(directory)
        return self._found.pop(directory.file_id)

    def _look_ahead(self, directory: PendingFile) -> None:
        if not self._frontier or self._frontier[-1].file_id != directory.file_id:
            self._frontier = [directory]  # the walk left out what we saw: begin where it is
        left = _Room()
        level = left.take(self._frontier, self._pending)
        while level:
            below: list[PendingFile] = []
            lists: list[Ref] = []
            for one in level:
                names = self._found[one.file_id] = self._pending.changed_names(one)
                for _, file, base in names:
                    if file is None:
                        continue
                    if file.is_dir:
                        below.append(file)
                    elif base is not None and isinstance(base.content, LongContent):
                        lists.append(base.content.ref)
            source = self._pending.source
            if isinstance(source, FarContentSource):
                source.prefetch_chunk_lists(lists[:AHEAD_NAMES])
            # All of these come before the rest of the frontier: they are below what was before it.
            below.reverse()
            self._frontier += below
            level = left.take(self._frontier, self._pending, at_most=len(below))


class _Room:
    """What is left of a window."""

    def __init__(self) -> None:
        self._names = AHEAD_NAMES
        self._size_bytes = _WINDOW_BYTES

    def take(
        self, frontier: list[PendingFile], pending: Pending, at_most: int | None = None
    ) -> list[PendingFile]:
        """Take directories off the end of `frontier`, and have the nodes for their names at hand.

        The first window takes one directory at least.
        """
        taken: list[PendingFile] = []
        ways: list[Way] = []
        limit = len(frontier) if at_most is None else at_most
        while len(taken) < limit:
            directory = frontier[-1]
            names = pending.names_in(directory)
            root = directory.subtree.root
            size = 0 if root is None or root.locator is None else root.locator.inner_bytes
            is_forced = at_most is None and not taken
            if not is_forced and (len(names) > self._names or size > self._size_bytes):
                break
            self._names -= len(names)
            self._size_bytes -= size
            taken.append(frontier.pop())
            if root is not None:
                ways.append(Way(root, names, 0, min(len(names), AHEAD_NAMES)))
        prefetch_ways(pending.source, ways)
        return taken
