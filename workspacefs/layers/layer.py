"""One layer: a database of rows, an append-only segment, and own files, in one directory.

    data.mdb lock.mdb   rows: database.py, rows.py
    segment             bodies of small files, one run each: segment.py
    files/<file id>     sparse bodies of large or rewritten files: own_files.py
    journal             what power loss must not take: journal.py
    ballast             space held back for deletes on a full disk

One process opens a layer for writing, once; never across a fork. Once it is frozen, others may open
it for reading. Within a process a layer is open once, whoever reads it: LMDB wants it so.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from workspacefs.ids import FileId
from workspacefs.layers.database import Database, Snapshot
from workspacefs.layers.disk import explained, from_os_error
from workspacefs.layers.own_files import OwnFiles
from workspacefs.layers.rows import gone_row, inode_key
from workspacefs.layers.segment import Segment

_BALLAST_BYTES: Final = 4 << 20
"""Held back so that deleting still works on a full disk: a delete writes database pages too."""

_PLENTY_BYTES: Final = 1 << 30

Doomed = FileId | tuple[int, int]
"""A body to be freed: an own file, or a run of the segment as (offset, length)."""


class Layer:
    """A layer that is open in this process."""

    def __init__(self, directory: Path, *, number: int, is_frozen: bool = False) -> None:
        """Open a layer; a frozen one for reading alone, whoever else has it open."""
        self.directory = directory
        self.number = number
        self.doomed: list[Doomed] = []
        """Bodies that no row names any more. They go when the journal says so too: power loss may
        bring back the rows that named them."""
        self.readers = 0
        """Views of rows that are being read beside us: what they name is not buried yet."""
        self._to_bury: list[Doomed] = []
        self.beneath: Sequence[Layer] = ()
        """Those that rows here hide rows of."""
        with explained(f"layer {directory} cannot be opened"):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_new = not (directory / "segment").exists()
        self.rows = Database(directory, is_frozen=is_frozen)
        self.own = OwnFiles(directory / "files")
        self.segment = Segment(directory / "segment")
        self.own.names_are_dirty = is_new
        self._users = 1
        with _sharing:
            _open_layers[directory] = self

    @staticmethod
    def find_open(directory: Path) -> Layer | None:
        """Return the layer at `directory` if this process has it open, for one more user; each of
        them closes it.
        """
        with _sharing:
            layer = _open_layers.get(directory)
            if layer is not None:
                layer._users += 1
            return layer

    @property
    def is_dirty(self) -> bool:
        """Whether power loss would take something that was done in this layer."""
        return bool(self.rows.dirty_keys or self.own.dirty or self.segment.is_dirty or self.doomed)

    def snapshot(self) -> Snapshot:
        """Return a view of the rows as they are now; close it soon, it keeps old pages alive."""
        return self.rows.snapshot()

    def row_of_gone(self, file_id: FileId) -> bytes | None:
        """Return the inode row that a file without a name has here, or None: it needs none, since
        no layer beneath would show an older one.
        """
        key = inode_key(file_id)
        return gone_row() if any(one.rows.get(key) for one in self.beneath) else None

    def bury(self, doomed: list[Doomed]) -> None:
        """Free the space of bodies whose end is durable; see `doomed`. While there are readers it
        only takes note. On one thread at a time, whichever: no row that can be read from now on
        names them.
        """
        self._to_bury += doomed
        if self.readers:
            return
        doomed, self._to_bury = self._to_bury, []
        for body in doomed:
            if isinstance(body, tuple):
                self.segment.bury(*body)
            else:
                self.own.remove(body)

    def distrust_bodies(self) -> None:
        """Have the next sync put every body on disk: after a crash nobody knows which ones are."""
        self.segment.is_dirty = self.own.names_are_dirty = True
        self.own.dirty.update(self.own.iter_ids())

    def sweep_own_files(self) -> int:
        """Remove own files that no row names: what a crash left. Return how many."""
        orphans = [
            file_id for file_id in self.own.iter_ids() if self.rows.get(inode_key(file_id)) is None
        ]
        for file_id in orphans:
            self.own.remove(file_id)
        return len(orphans)

    def ensure_ballast(self) -> None:
        """Hold back disk space for deletes on a full disk, if there is room for it now. A layer in
        which nothing has changed takes none while there is plenty: a hundred forks cost nothing.
        """
        path = self.directory / "ballast"
        if path.exists():
            return
        is_empty = not (self.rows.has_rows(b"I") or self.rows.has_rows(b"D"))
        if is_empty and _free_bytes(self.directory) > _PLENTY_BYTES:
            return
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, _BALLAST_BYTES)
        except OSError as exc:
            path.unlink()
            if exc.errno != errno.ENOSPC:
                raise from_os_error(exc, f"{path} cannot be written") from exc
        finally:
            os.close(fd)

    def drop_ballast(self) -> bool:
        """Free the space that was held back; tell whether there was any."""
        path = self.directory / "ballast"
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    def close(self) -> None:
        """Close every descriptor, unless others use the layer still; nothing is synced."""
        with _sharing:
            self._users -= 1
            if self._users > 0:
                return
            _open_layers.pop(self.directory, None)
            self.own.close()
            self.segment.close()
            self.rows.close()


def _free_bytes(directory: Path) -> int:
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize


_open_layers: Final[WeakValueDictionary[Path, Layer]] = WeakValueDictionary()
_sharing: Final = threading.Lock()
