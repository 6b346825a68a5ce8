"""One operation's changes: to inodes in memory and to rows in the live layer, all or nothing."""

from __future__ import annotations

from types import TracebackType

from workspacefs.errors import NoSpaceError
from workspacefs.layers.layer import Layer
from workspacefs.layers.rows import encode_name, inode_key, name_key
from workspacefs_daemon.vfs.inode import Inode
from workspacefs_daemon.vfs.marks import Mark


class Step:
    """Collects changes; leaving the block commits them in one transaction.

    touch() an inode before changing its fields: its row is written, and if anything fails all
    fields go back to what they were. No await may come between entering and leaving.

    Raises:
        NoSpaceError: On leaving, when the disk is full; nothing has changed. A step that
            `frees_space` first gets the space that the layer held back.
    """

    __slots__ = ("_frees_space", "_layer", "_marks", "_rows", "_saved", "_writers")

    def __init__(self, layer: Layer, *, frees_space: bool = False) -> None:
        self._layer = layer
        self._frees_space = frees_space
        self._saved: dict[Inode, tuple[object, ...]] = {}
        self._marks: list[tuple[Inode, int]] = []
        self._rows: list[tuple[bytes, bytes | None]] = []
        self._writers: tuple[tuple[Inode, Mark | None], ...] = ()

    def touch(self, inode: Inode) -> None:
        """Announce a change of an inode. Its place and its ancestors' are marked as changed."""
        if inode not in self._saved:
            self._saved[inode] = inode.save()
            inode.attrs = None
            if inode.marked != self._layer.number:
                self.mark(inode)

    def mark(self, inode: Inode) -> None:
        """Ensure name rows from this inode up to the root: see layers/rows.py."""
        number = self._layer.number
        while inode.marked != number:
            parent = inode.parent
            self._marks.append((inode, inode.marked))
            inode.marked = number
            if parent is None:
                return
            self._rows.append((name_key(parent.file_id, inode.name), encode_name(inode.file_id)))
            inode = parent

    def set_row(self, key: bytes, value: bytes) -> None:
        """Put a row."""
        self._rows.append((key, value))

    def drop_row(self, key: bytes) -> None:
        """Delete a row."""
        self._rows.append((key, None))

    def set_writers(self, inode: Inode, writers: Mark | None) -> None:
        """Have an inode remember, once this is done, which writers the layer notes of it."""
        self._writers += ((inode, writers),)

    def __enter__(self) -> Step:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._roll_back()
            return
        try:
            try:
                self._commit()
            except NoSpaceError:
                if not (self._frees_space and self._layer.drop_ballast()):
                    raise
                self._commit()
        except BaseException:
            self._roll_back()
            raise
        for inode, writers in self._writers:
            inode.writers = writers

    def _commit(self) -> None:
        rows, layer = self._rows, self._layer
        inodes: list[tuple[bytes, bytes | None]] = [
            (
                inode_key(inode.file_id),
                inode.to_row() if inode.nlink else layer.row_of_gone(inode.file_id),
            )
            for inode in self._saved
        ]
        layer.rows.commit(rows + inodes)

    def _roll_back(self) -> None:
        for inode, saved in self._saved.items():
            inode.restore(saved)
        for inode, marked in self._marks:
            inode.marked = marked
