"""Listing directories: which names go into an answer, and where the next one goes on.

Source: pyfuse3 documentation of readdir_reply; linux/fuse.h, FUSE_READDIRPLUS; telldir(3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyfuse3

from workspacefs.errors import WorkspaceError
from workspacefs_daemon.bindings.fuse.attributes import entry_of
from workspacefs_daemon.vfs.inode import Inode
from workspacefs_daemon.vfs.overlay import Overlay
from workspacefs_daemon.vfs.residency import NotResident

_FIRST_LIST: Final = 48


class OpenDirectory:
    """A directory that is being listed. Offsets are 0 ".", 1 "..", then names in their order."""

    __slots__ = ("above", "inode", "names", "per_call")

    def __init__(self, inode: Inode, above: Inode) -> None:
        self.inode = inode
        self.above = above
        """What ".." is; of the top it is the top."""
        self.names: list[bytes] = []
        """Name at each offset that was handed out, so that seekdir(3) finds its place."""
        self.per_call = _FIRST_LIST
        """Names that fitted into an answer lately."""


def send_names(
    token: pyfuse3.ReaddirToken,
    listing: OpenDirectory,
    start_id: int,
    overlay: Overlay,
    entry_of: Callable[[Inode], pyfuse3.EntryAttributes] = entry_of,
) -> None:
    """Answer with as many names as fit, attributes included.

    Names are looked up now, not kept from an earlier call: the kernel keeps what it is told for
    ever, so it must not be told of a name that has been removed meanwhile.

    Raises:
        NotResident: Before anything was sent.
    """
    inode = listing.inode
    at = max(0, start_id - 2)
    del listing.names[at:]
    wanted = listing.per_call
    after = listing.names[-1] if listing.names else b""
    # Before anything is sent: this may have to wait and start over.
    batch = overlay.list_after(inode, after, wanted) if inode.nlink else []
    if start_id == 0 and not pyfuse3.readdir_reply(token, b".", entry_of(inode), 1):
        return
    if start_id <= 1 and not pyfuse3.readdir_reply(token, b"..", entry_of(listing.above), 2):
        return
    sent = 0
    while batch:
        for name, child in batch:
            if not pyfuse3.readdir_reply(token, name, entry_of(child), at + 3):
                listing.per_call = max(_FIRST_LIST, sent + 1)
                return
            overlay.remember(child)
            listing.names.append(name)
            at += 1
            sent += 1
        try:
            batch = overlay.list_after(inode, batch[-1][0], wanted)
        except (NotResident, WorkspaceError):
            return  # what was sent counts for the kernel; it asks again from there
