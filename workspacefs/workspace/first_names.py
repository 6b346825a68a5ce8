"""Hard links while exporting: further names are linked to the first, found again safely."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from workspacefs.ids import FileId
from workspacefs.objects.entry import Entry
from workspacefs.workspace.directories import DIRECTORY_FLAGS


@dataclass(frozen=True, slots=True)
class _First:
    entry: Entry
    directory: bytes
    device: int
    inode: int


class FirstNames:
    """First names of files that have several. Owns a descriptor of its own; close it."""

    def __init__(self, root_fd: int) -> None:
        self._root_fd = os.dup(root_fd)
        self._places: dict[FileId, _First] = {}

    def close(self) -> None:
        """Close the root."""
        os.close(self._root_fd)

    def remember(self, entry: Entry, path: bytes, above: int) -> None:
        """Note where the first name of a file was just written."""
        status = os.stat(entry.name, dir_fd=above, follow_symlinks=False)
        directory = path.rpartition(b"/")[0]
        self._places[entry.file_id] = _First(entry, directory, status.st_dev, status.st_ino)

    def link(self, entry: Entry, above: int) -> bool:
        """Make `entry` another name of the file written before; False: it must be written itself.

        A tree may be hostile: only a name that agrees in everything is linked.

        Raises:
            OSError: The first name was moved or replaced meanwhile.
        """
        first = self._places.get(entry.file_id)
        if first is None or not entry.same_state(first.entry):
            return False
        directory = self._open(first.directory)
        try:
            os.link(
                first.entry.name,
                entry.name,
                src_dir_fd=directory,
                dst_dir_fd=above,
                follow_symlinks=False,
            )
        except OSError as exc:
            if exc.errno == errno.EMLINK:
                return False
            raise
        finally:
            os.close(directory)
        status = os.stat(entry.name, dir_fd=above, follow_symlinks=False)
        if (status.st_dev, status.st_ino) != (first.device, first.inode):
            os.unlink(entry.name, dir_fd=above)
            raise OSError(errno.ESTALE, "its first name was replaced while it was exported")
        return True

    def _open(self, path: bytes) -> int:
        fd = os.dup(self._root_fd)
        for name in filter(None, path.split(b"/")):
            try:
                below = os.open(name, DIRECTORY_FLAGS, dir_fd=fd)
            finally:
                os.close(fd)
            fd = below
        return fd
