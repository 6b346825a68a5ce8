"""Telling programs that watch files of a mount (inotify) what changed beneath them.

The kernel tells watchers of what programs do in the mount, and nothing of what a file system does
by itself. So this process does something there: it sets the times of what changed to what they are,
which changes nothing, and is an event of kind IN_ATTRIB for the file and for its directory. Of
names that are gone, the directory is touched so. Source: inotify(7); fs/attr.c, notify_change.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Final

from workspacefs.objects.entry import Entry
from workspacefs.trees.diff import diff_trees
from workspacefs_daemon.background.own_mount import asking_own_mount
from workspacefs_daemon.mounted import Mounted

PATHS_MAX: Final = 10_000
"""Of more changes, the rest is not told of: about 50 µs each."""


def tell_watchers(mounted: Mounted, before: Entry, after: Entry) -> int:
    """Have those who watch what differs between two trees hear of it; blocking. Return how many
    paths were told of. What is not there any more, or cannot be told, is passed over.
    """
    paths = _changed_paths(mounted, before, after)
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
    return len(paths)


def _changed_paths(mounted: Mounted, before: Entry, after: Entry) -> list[bytes]:
    """Return where the mount shows what differs: directories of what came and went, too."""
    top = os.fsencode(mounted.spec.subpath or "").strip(b"/")
    prefix = top + b"/" if top else b""
    found: dict[bytes, None] = {}
    for change in diff_trees(before, after, mounted.workspace.store):
        if len(found) >= PATHS_MAX:
            break
        if change.new is not None:
            found[change.path] = None
        if change.old is None or change.new is None:
            found[change.path.rpartition(b"/")[0]] = None
    mountpoint = os.fsencode(mounted.spec.mountpoint)
    return [
        os.path.join(mountpoint, path.removeprefix(prefix)) if path != top else mountpoint
        for path in found
        if path == top or path.startswith(prefix)
    ]


def _touch(path: bytes) -> None:
    status = os.lstat(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
