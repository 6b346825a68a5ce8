"""Attributes of files on disk: from stat and xattrs to the fields of an entry."""

from __future__ import annotations

import errno
import os
import stat

from workspacefs.ids import FileId
from workspacefs.objects.entry import Content, Entry, Xattrs

_KEPT_XATTRS = (b"user.", b"security.", b"system.posix_acl_")
_XATTR_ABSENT = frozenset(
    (errno.ENODATA, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.ENOENT, errno.EINVAL)
)


def entry_of(
    name: bytes,
    status: os.stat_result,
    file_id: FileId,
    nlink: int,
    content: Content,
    size_bytes: int = 0,
    xattrs: Xattrs = (),
) -> Entry:
    """Return the entry of a file with this status; size and content come from the caller."""
    return Entry(
        name,
        status.st_mode,
        status.st_uid,
        status.st_gid,
        size_bytes,
        status.st_mtime_ns,
        status.st_ctime_ns,
        file_id,
        nlink,
        content,
        xattrs,
    )


def is_same_state(before: os.stat_result, after: os.stat_result) -> bool:
    """Tell whether a file's content cannot have changed between two stats."""
    return (
        before.st_mtime_ns == after.st_mtime_ns
        and before.st_size == after.st_size
        and before.st_ctime_ns == after.st_ctime_ns
    )


def read_xattrs(target: int | bytes) -> Xattrs:
    """Return the extended attributes that are kept: user.*, security.* and POSIX ACLs.

    Args:
        target: An open file, or a path whose last link is not followed. What may not be read,
            or is not supported, is left out.
    """
    follow = not isinstance(target, bytes)
    try:
        names = os.listxattr(target, follow_symlinks=follow)
    except OSError as exc:
        if exc.errno in _XATTR_ABSENT:
            return ()
        raise
    if not names:
        return ()
    pairs = []
    for text in names:
        name = os.fsencode(text)
        if not name.startswith(_KEPT_XATTRS):
            continue
        try:
            pairs.append((name, os.getxattr(target, name, follow_symlinks=follow)))
        except OSError as exc:
            if exc.errno not in _XATTR_ABSENT:
                raise
    return tuple(sorted(pairs))


def kind_name(mode: int) -> str:
    """Return a word for the kind of file: "file", "directory", "link" …"""
    return {
        stat.S_IFREG: "file",
        stat.S_IFDIR: "directory",
        stat.S_IFLNK: "link",
        stat.S_IFIFO: "fifo",
        stat.S_IFSOCK: "socket",
        stat.S_IFCHR: "character device",
        stat.S_IFBLK: "block device",
    }[stat.S_IFMT(mode)]
