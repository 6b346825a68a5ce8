"""What is mounted where, as this process sees it.

Source: proc_pid_mountinfo(5).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import Final, NamedTuple

MOUNTINFO_PATH: Final = "/proc/self/mountinfo"
DEAD_ERRNOS: Final = frozenset((errno.ENOTCONN, errno.ECONNABORTED))
"""What the kernel answers in place of a server that is gone."""
_ESCAPES: Final = ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\"))


class Mount(NamedTuple):
    """One mount."""

    mountpoint: str
    """Absolute path, decoded as os.fsdecode does."""
    device: str
    """"major:minor" of st_dev."""
    kind: str
    """File system type, such as "fuse.workspacefs"."""
    source: str

    @property
    def is_fuse(self) -> bool:
        """Whether a user-space process serves it."""
        return self.kind == "fuse" or self.kind.startswith("fuse.")


def load_mounts(path: str = MOUNTINFO_PATH) -> list[Mount]:
    """Return all mounts in the order they were made; a later one hides an earlier one."""
    with open(path, "rb") as file:
        return parse_mounts(file.read().splitlines())


def parse_mounts(lines: Iterable[bytes]) -> list[Mount]:
    """Return the mounts that the lines of a mountinfo file tell of."""
    mounts = []
    for line in lines:
        front, _, back = line.partition(b" - ")
        fields, rest = front.split(b" "), back.split(b" ")
        mounts.append(
            Mount(
                os.fsdecode(_unescaped(fields[4])),
                fields[2].decode(),
                rest[0].decode(),
                os.fsdecode(_unescaped(rest[1])),
            )
        )
    return mounts


def find_mount(mountpoint: str, mounts: Iterable[Mount] | None = None) -> Mount | None:
    """Return the topmost mount exactly at `mountpoint`, or None."""
    found = None
    for mount in load_mounts() if mounts is None else mounts:
        if mount.mountpoint == mountpoint:
            found = mount
    return found


def find_mount_above(path: str, mounts: Iterable[Mount] | None = None) -> Mount | None:
    """Return the mount that `path`, absolute and free of links, lies in."""
    found = None
    for mount in load_mounts() if mounts is None else mounts:
        if is_inside(path, mount.mountpoint) and (
            found is None or len(mount.mountpoint) >= len(found.mountpoint)
        ):
            found = mount
    return found


def is_dead_mount(mountpoint: str) -> bool:
    """Tell whether the process that served a FUSE mount is gone.

    Asks for the free space, which is never answered from the kernel's caches: a stat of a dead
    mount can go well for as long as the attributes were promised to hold.
    """
    try:
        os.statvfs(mountpoint)
    except OSError as exc:
        return exc.errno in DEAD_ERRNOS
    return False


def is_inside(path: str, directory: str) -> bool:
    """Tell whether `path` is `directory` or lies below it; both absolute and normal."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _unescaped(field: bytes) -> bytes:
    if b"\\" in field:
        for escape, byte in _ESCAPES:
            field = field.replace(escape, byte)
    return field
