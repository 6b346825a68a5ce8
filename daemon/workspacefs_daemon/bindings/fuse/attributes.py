"""From inodes to the structures that pyfuse3 sends."""

from __future__ import annotations

from collections import deque
from typing import Final

import pyfuse3

from workspacefs_daemon.vfs.files import allocated_blocks
from workspacefs_daemon.vfs.inode import Inode

FOREVER_S: Final = 1e9
"""A session's tree has one writer, the kernel's own mount: what it has seen stays true."""
_BLOCK_BYTES: Final = 4096
_BUILT_MAX: Final = 16_384
"""As many inodes keep what was built for them (210 bytes each), the latest ones: a directory that
is listed again. The kernel itself remembers attributes for ever."""
_built: Final[deque[Inode]] = deque()


def entry_of(inode: Inode) -> pyfuse3.EntryAttributes:
    """Return the attributes of an inode; kept for a while, until a field changes."""
    made = inode.attrs
    if type(made) is pyfuse3.EntryAttributes:
        return made
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = pyfuse3.InodeT(inode.file_id)
    entry.generation = inode.generation
    entry.st_mode = pyfuse3.ModeT(inode.mode)
    entry.st_nlink = inode.nlink
    entry.st_uid = inode.uid
    entry.st_gid = inode.gid
    entry.st_size = inode.size_bytes
    entry.st_blocks = allocated_blocks(inode)
    entry.st_blksize = _BLOCK_BYTES
    entry.st_rdev = inode.device
    entry.st_atime_ns = inode.atime_ns
    entry.st_mtime_ns = inode.mtime_ns
    entry.st_ctime_ns = inode.ctime_ns
    entry.entry_timeout = FOREVER_S
    entry.attr_timeout = FOREVER_S
    inode.attrs = entry
    _built.append(inode)
    if len(_built) > _BUILT_MAX:
        _built.popleft().attrs = None
    return entry


def absent_entry() -> pyfuse3.EntryAttributes:
    """Return the answer that lets the kernel remember that a name does not exist."""
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = pyfuse3.InodeT(0)
    entry.entry_timeout = FOREVER_S
    return entry
