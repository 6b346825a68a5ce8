"""Noting which processes change which files, in the rows of the steps that change them.

A request says whom it comes from by begin() or begin_write(); what it then changes is noted as
theirs, in the same transaction. The next request begins anew. See layers/writers.py for the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from workspacefs.errors import NoSpaceError
from workspacefs.layers.layer import Layer
from workspacefs.layers.rows import inode_key
from workspacefs.layers.writers import (
    FILE_MARK,
    FileWriters,
    Process,
    ProcessId,
    SeenProcess,
    decode_file,
    decode_process,
    encode_process,
    process_key,
    writer_key,
)
from workspacefs_daemon.vfs.inode import Inode
from workspacefs_daemon.vfs.marks import KnownProcess, Mark
from workspacefs_daemon.vfs.step import Step

_MARKS_MAX: Final = 4096


class Processes(Protocol):
    """Knows processes by the numbers that requests come with."""

    def find(self, number: int) -> KnownProcess:
        """Return the process that a request comes from."""

    def find_later(self, number: int, before: KnownProcess) -> KnownProcess:
        """Return what has become of it, if it is the same process still."""

    def find_by_id(self, process_id: ProcessId) -> Process | None:
        """Return one that was found before, or is the parent of such a one."""


class WriteHandle:
    """A file that somebody opened for writing. Writes come without a process: they are by this
    one, whoever has the descriptor since.
    """

    __slots__ = ("inode", "layer", "number", "opener")

    def __init__(
        self, inode: Inode, number: int, opener: KnownProcess, layer: Layer | None = None
    ) -> None:
        self.inode = inode
        self.number = number
        self.opener = opener
        self.layer = layer
        """In which the writer is noted."""


class Writers:
    """Notes for one session. No await may come between a begin() and the step that it is for."""

    def __init__(self, processes: Processes, now_ns: Callable[[], int]) -> None:
        self._processes = processes
        self._find = processes.find
        self._now_ns = now_ns
        self._layer: Layer | None = None
        self._shared: dict[FileWriters, Mark] = {}
        self._told: set[ProcessId] = set()
        self._current: Mark | None = None

    def begin(self, number: int, live: Layer | None) -> KnownProcess:
        """Take what comes next for the work of this process, which is returned."""
        found = self._find(number)
        mark = found.mark
        if mark is None or mark.layer is not live:
            mark = self._mark(found, live)
        self._current = mark
        return found

    def begin_write(self, handle: WriteHandle, live: Layer | None) -> None:
        """Take what comes next for a write through this handle, in which nothing is noted yet."""
        self._current = None
        found = handle.opener
        if not found.is_settled:
            found = self._processes.find_later(handle.number, found)
        noted = handle.inode.writers
        if noted is not None and noted.layer is live and found.id in noted.writers.processes:
            return
        handle.opener = found
        self._current = self._mark(found, live)

    def begin_noted(self) -> None:
        """Take what comes next for what is noted already."""
        self._current = None

    def note_made(self, step: Step, inode: Inode) -> None:
        """Note that the file is made in this step; if that fails, nobody has the inode."""
        mark = self._current
        if mark is not None:
            made = mark.made
            if made is None:
                made = mark.made = Mark(mark.layer, FileWriters(True, mark.writers.processes))
            step.set_row(inode_key(inode.file_id) + FILE_MARK, made.row)
            inode.writers = made

    def note(self, step: Step, inode: Inode) -> None:
        """Note that a file is changed in this step. Of one without a name nobody needs to know."""
        if inode.nlink:
            self._note(step, inode)

    def _note(self, step: Step, inode: Inode) -> None:
        mark = self._current
        if mark is None:
            return
        before = inode.writers
        if before is mark:
            return
        known = self._known(inode, mark.layer)
        if known is None:
            self._put(step, inode, mark)
        elif mark.writers.processes[0] not in known.processes:
            joined = known.joined(mark.writers)
            self._put(step, inode, self._share(mark.layer, joined))
        elif before is None or before.layer is not mark.layer:
            step.set_writers(inode, self._share(mark.layer, known))

    def note_gone(self, step: Step, inode: Inode, live: Layer) -> None:
        """Note that a name of a file is taken away in this step. Of one that was made in the live
        layer, and has no name any more, nothing needs to be known.
        """
        if inode.nlink == 0:
            known = self._known(inode, live)
            if known is not None and known.is_made:
                step.drop_row(writer_key(inode.file_id))
                step.set_writers(inode, None)
                return
        self._note(step, inode)

    def _known(self, inode: Inode, live: Layer) -> FileWriters | None:
        """Return what the live layer says of a file."""
        before = inode.writers
        if before is not None and before.layer is live:
            return before.writers
        row = live.rows.get(writer_key(inode.file_id))
        return None if row is None else decode_file(row)

    def _put(self, step: Step, inode: Inode, mark: Mark) -> None:
        step.set_row(writer_key(inode.file_id), mark.row)
        step.set_writers(inode, mark)

    def _mark(self, found: KnownProcess, live: Layer | None) -> Mark | None:
        if live is None:
            return None
        if live is not self._layer:
            self._layer = live
            self._shared.clear()
            self._told.clear()
        if found.mark is None or found.mark.layer is not live:
            try:
                self._tell(found, live)
            except NoSpaceError:
                return None  # what is done matters more than who did it
            found.mark = Mark(live, FileWriters(False, (found.id,)))
        return found.mark

    def _tell(self, found: KnownProcess, live: Layer) -> None:
        """Have the layer name a process, and those that it comes from."""
        rows: list[tuple[bytes, bytes | None]] = []
        told = [found.id]
        if self._first_ns(live, found.id) == 0:
            seen = SeenProcess(found.process, self._now_ns())
            rows.append((process_key(found.id), encode_process(seen)))
        above = found.process.parent
        while above is not None and above not in self._told and above not in told:
            process = self._processes.find_by_id(above)
            if process is None:
                break
            key = process_key(above)
            if live.rows.get(key) is None:
                rows.append((key, encode_process(SeenProcess(process, 0))))
            told.append(above)
            above = process.parent
        if rows:
            live.rows.commit(rows)
        self._told.update(told)

    def _first_ns(self, live: Layer, process_id: ProcessId) -> int:
        row = live.rows.get(process_key(process_id))
        return 0 if row is None else decode_process(row).first_ns

    def _share(self, layer: Layer, writers: FileWriters) -> Mark:
        mark = self._shared.get(writers)
        if mark is None:
            if len(self._shared) >= _MARKS_MAX:
                self._shared.clear()
            mark = self._shared[writers] = Mark(layer, writers)
        return mark
