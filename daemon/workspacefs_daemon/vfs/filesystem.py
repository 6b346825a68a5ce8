"""One session's file system: the overlay, the operations on it, and what spans both."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from workspacefs.errors import NoSpaceError
from workspacefs.names import NAME_MAX_BYTES
from workspacefs_daemon.vfs.files import Files
from workspacefs_daemon.vfs.inode import Inode
from workspacefs_daemon.vfs.namespace import Namespace
from workspacefs_daemon.vfs.overlay import Overlay
from workspacefs_daemon.vfs.services import Services

_FILE_IDS_FREE: Final = 1 << 40
"""File ids do not run out before anything else does."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """What statfs(2) tells; blocks are of the disk that holds the layers."""

    block_bytes: int
    blocks: int
    blocks_free: int
    blocks_available: int
    files: int
    files_free: int
    name_max_bytes: int


class FileSystem:
    """What a binding serves."""

    def __init__(
        self,
        overlay: Overlay,
        services: Services,
        *,
        disk: str,
        sync: Callable[[], Awaitable[None]],
    ) -> None:
        """Serve `overlay`; `disk` is any path on the disk of the layers."""
        self.overlay = overlay
        self.services = services
        self.files = Files(overlay.resident, services)
        self.namespace = Namespace(overlay, services)
        self.sync = sync
        self._disk = disk

    @property
    def top(self) -> Inode:
        """The directory that is shown as the root."""
        return self.overlay.inodes[self.namespace.top_id]

    def show(self, top: Inode) -> None:
        """Let this directory, which somebody keeps, be all that can be reached."""
        self.namespace.top_id = top.file_id

    async def make_room(self) -> bool:
        """Free what dead bodies hold; tell whether there was any."""
        live = self.overlay.live
        if live is None or not live.doomed:
            return False
        try:
            await self.sync()
        except NoSpaceError:
            # To free space the journal must first say so, which takes a little space itself.
            if not live.drop_ballast():
                raise
            await self.sync()
        return True

    def forget(self, number: int, count: int) -> None:
        """Give up `count` references that the kernel held on an inode."""
        inode = self.overlay.inodes.get(number)
        if inode is None:
            return
        inode.lookups -= count
        self._let_go(inode)

    def close(self, inode: Inode) -> None:
        """Close one handle of a file."""
        inode.opens -= 1
        self._let_go(inode)

    def unlink(self, parent: Inode, name: bytes) -> None:
        """Take a name from a file."""
        self._let_go(self.namespace.unlink(parent, name))

    def rename(
        self, parent: Inode, name: bytes, new_parent: Inode, new_name: bytes, flags: int
    ) -> None:
        """Move a name."""
        replaced = self.namespace.rename(parent, name, new_parent, new_name, flags)
        if replaced is not None:
            self._let_go(replaced)

    def statistics(self) -> Statistics:
        """Return the figures of statfs(2)."""
        disk = os.statvfs(self._disk)
        totals = self.top.base.totals
        files = totals.files + totals.dirs + 1
        return Statistics(
            block_bytes=disk.f_frsize,
            blocks=disk.f_blocks,
            blocks_free=disk.f_bfree,
            blocks_available=disk.f_bavail,
            files=files + _FILE_IDS_FREE,
            files_free=_FILE_IDS_FREE,
            name_max_bytes=NAME_MAX_BYTES,
        )

    def _let_go(self, inode: Inode) -> None:
        if inode.lookups or inode.opens:
            if inode.nlink == 0 and not inode.is_dir:
                self.overlay.orphans.add(inode)
            return
        if inode.nlink == 0 and not inode.is_dir:
            self.overlay.orphans.discard(inode)
            self.namespace.release_body(inode)
        self.overlay.drop_unused(inode)
