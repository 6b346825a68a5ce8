"""Telling programs that watch files of a mount (inotify) what changed beneath them.

The kernel tells watchers of what programs do in the mount, and nothing of what a file system does
by itself. So this process does something there: it sets the times of what changed to what they are,
which changes nothing, and is an event of kind IN_ATTRIB for the file and for its directory. Of
names that are gone, the directory is touched so. Source: inotify(7); fs/attr.c, notify_change.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from workspacefs.workspace.difference import Difference
from workspacefs_daemon.background.own_mount import asking_own_mount
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.vfs.inode import Inode

PATHS_MAX: Final = 10_000
"""Of more changes, the rest is not told of: about 50 µs each."""


def watched_paths(mounted: Mounted, difference: Difference) -> list[bytes]:
    """Return where the mount shows what a switch changed and somebody may watch: what lies in
    directories that the kernel knows, and those of which names came or went. On the event loop.
    """
    overlay, found = mounted.overlay, dict[bytes, None]()
    for place in difference.places.values():
        directory = _path_of(mounted, overlay.inodes.get(place.directory_id))
        if directory is not None:
            found[os.path.join(directory, place.name)] = None
    for directory_id, _ in difference.names:
        directory = _path_of(mounted, overlay.inodes.get(directory_id))
        if directory is not None:
            found[directory] = None
    return list(islice(found, PATHS_MAX))


def tell_watchers(mounted: Mounted, paths: Sequence[bytes]) -> None:
    """Have those who watch these paths hear of them; blocking. What is not there any more, or
    cannot be told, is passed over.
    """
    announcers = mounted.services.announcers

    def touch_all() -> None:
        thread_id = threading.get_native_id()
        announcers.add(thread_id)
        try:
            for path in paths:
                with suppress(OSError):
                    _touch(path)
        finally:
            announcers.discard(thread_id)

    if paths:
        with asking_own_mount() as ask:
            ask(touch_all)


def _path_of(mounted: Mounted, inode: Inode | None) -> bytes | None:
    """Return where the mount shows a directory that the kernel knows; None: nowhere."""
    top_id, parts = mounted.fs.namespace.top_id, list[bytes]()
    while inode is not None and inode.file_id != top_id:
        parts.append(inode.name)
        inode = inode.parent
    if inode is None:
        return None
    return os.path.join(os.fsencode(mounted.spec.mountpoint), *reversed(parts))


def _touch(path: bytes) -> None:
    status = os.lstat(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
