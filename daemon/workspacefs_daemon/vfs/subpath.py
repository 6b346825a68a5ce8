"""The directory of a tree that a mount shows, where it does not show all."""

from __future__ import annotations

from workspacefs_daemon.vfs.inode import Inode
from workspacefs_daemon.vfs.overlay import Overlay


def find_directory(overlay: Overlay, path: bytes) -> Inode | None:
    """Return the directory at `path`, and keep it for as long as the overlay; None: there is none.
    Links are not followed.

    Raises:
        NotResident: Nothing has happened yet.
    """
    inode = overlay.root
    for name in path.split(b"/"):
        if not name:
            continue
        child = overlay.find_child(inode, name)
        if child is None or not child.is_dir:
            return None
        inode = child
    overlay.remember(inode)
    return inode
