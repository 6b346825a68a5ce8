"""Reading and changing what is in a file, and its attributes.

Source: write(2), ftruncate(2), chmod(2), chown(2), utimensat(2), setxattr(2), inode(7).
"""

from __future__ import annotations

import errno
import stat
from typing import Final

from workspacefs.layers.bodies import BodyContent, OwnFile, read_body
from workspacefs.layers.layer import Layer
from workspacefs.layers.rows import block_key
from workspacefs.layers.writing import Change, resize_body, write_body
from workspacefs_daemon.vfs.inode import Inode
from workspacefs_daemon.vfs.refusal import Refusal
from workspacefs_daemon.vfs.residency import Resident
from workspacefs_daemon.vfs.services import Services
from workspacefs_daemon.vfs.step import Step

_SIZE_MAX: Final = 2**63 - 1
_XATTRS_MAX_BYTES: Final = 60 * 1024
"""All attributes of one file together. They travel in every inode row and tree entry; 512 entries
make one tree node, and a node is at most 32 MiB."""
_TIME_MAX_NS: Final = 2**63 - 1
"""What a tree entry holds: the year 2262."""
_SELINUX_LABEL: Final = b"security.selinux"
_SET_ID: Final = stat.S_ISUID | stat.S_ISGID


class Files:
    """Operations on one inode. Each is done and kept on return, or not done at all."""

    def __init__(self, resident: Resident, services: Services) -> None:
        self._resident = resident
        self._services = services
        self._writers = services.writers
        self.written_bytes = 0
        """By all writes so far."""

    def read(self, inode: Inode, offset: int, length: int) -> bytes:
        """Return the bytes from `offset`, `length` of them or up to the end of the file."""
        length = min(length, inode.size_bytes - offset)
        if length <= 0:
            return b""
        return read_body(inode.content, offset, length, self._resident)

    def write(self, inode: Inode, offset: int, data: bytes) -> int:
        """Write all of `data` at `offset`; return how much that was.

        Raises:
            NoSpaceError: Nothing was written.
        """
        if not data:
            return 0
        live = self._services.writable()
        end = offset + len(data)
        if end > _SIZE_MAX:
            raise Refusal(errno.EFBIG)
        change = write_body(
            live, inode.file_id, inode.content, inode.size_bytes, data, offset, self._resident
        )
        now = self._services.now_ns()
        with Step(live) as step:
            step.touch(inode)
            if self._writers is not None:
                self._writers.note(step, inode)
            inode.mtime_ns = inode.ctime_ns = now
            if end > inode.size_bytes:
                inode.size_bytes = end
            if inode.mode & _SET_ID:
                inode.mode = _without_set_id(inode.mode)
            if change.content is not inode.content:
                self._put_change(step, inode, change)
            for key, value in change.rows:
                step.set_row(key, value)
        self._finish(live, inode, change)
        self.written_bytes += len(data)
        return len(data)

    def resize(self, inode: Inode, size_bytes: int) -> None:
        """Cut a file or extend it with zeros.

        Raises:
            NoSpaceError: Nothing has changed.
        """
        live = self._services.writable()
        change = resize_body(
            live, inode.file_id, inode.content, inode.size_bytes, size_bytes, self._resident
        )
        now = self._services.now_ns()
        with Step(live, frees_space=size_bytes < inode.size_bytes) as step:
            step.touch(inode)
            if self._writers is not None:
                self._writers.note(step, inode)
            inode.mtime_ns = inode.ctime_ns = now
            inode.size_bytes = size_bytes
            if inode.mode & _SET_ID:
                inode.mode = _without_set_id(inode.mode)
            self._put_change(step, inode, change)
            for key, value in change.rows:
                step.set_row(key, value)
        self._finish(live, inode, change)

    def set_attributes(
        self,
        inode: Inode,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        atime_ns: int | None = None,
        mtime_ns: int | None = None,
    ) -> None:
        """Change permission bits, owner or times; None keeps a field."""
        live = self._services.writable()
        now = self._services.now_ns()
        with Step(live) as step:
            step.touch(inode)
            if self._writers is not None:
                self._writers.note(step, inode)
            if mode is not None:
                inode.mode = stat.S_IFMT(inode.mode) | stat.S_IMODE(mode)
            if uid is not None:
                inode.uid = uid
            if gid is not None:
                inode.gid = gid
            if (uid is not None or gid is not None) and mode is None and not inode.is_dir:
                inode.mode = _without_set_id(inode.mode)
            if atime_ns is not None:
                inode.atime_ns = _kept_time(atime_ns)
            if mtime_ns is not None:
                inode.mtime_ns = _kept_time(mtime_ns)
            inode.ctime_ns = now

    def get_xattr(self, inode: Inode, name: bytes) -> bytes:
        """Return the value of an extended attribute.

        Raises:
            Refusal: ENODATA; EOPNOTSUPP for the kernel's own attributes, ACLs among them.
        """
        _check_xattr_space(name)
        for known, value in inode.xattrs:
            if known == name:
                return value
        # ls asks for the label of every file, until it hears that the device has none.
        raise Refusal(errno.EOPNOTSUPP if name == _SELINUX_LABEL else errno.ENODATA)

    def list_xattrs(self, inode: Inode) -> list[bytes]:
        """Return the names of all extended attributes."""
        return [name for name, _ in inode.xattrs]

    def set_xattr(self, inode: Inode, name: bytes, value: bytes) -> None:
        """Set an extended attribute.

        Raises:
            Refusal: ENOSPC when all of them would be larger than 60 KiB; EOPNOTSUPP.
        """
        _check_xattr_space(name)
        live = self._services.writable()
        pairs = dict(inode.xattrs)
        pairs[name] = value
        if sum(len(key) + len(pair) for key, pair in pairs.items()) > _XATTRS_MAX_BYTES:
            raise Refusal(errno.ENOSPC)
        now = self._services.now_ns()
        with Step(live) as step:
            step.touch(inode)
            if self._writers is not None:
                self._writers.note(step, inode)
            inode.xattrs = tuple(sorted(pairs.items()))
            inode.ctime_ns = now

    def remove_xattr(self, inode: Inode, name: bytes) -> None:
        """Remove an extended attribute.

        Raises:
            Refusal: ENODATA or EOPNOTSUPP.
        """
        self.get_xattr(inode, name)
        live = self._services.writable()
        now = self._services.now_ns()
        with Step(live) as step:
            step.touch(inode)
            if self._writers is not None:
                self._writers.note(step, inode)
            inode.xattrs = tuple(pair for pair in inode.xattrs if pair[0] != name)
            inode.ctime_ns = now

    def _put_change(self, step: Step, inode: Inode, change: Change) -> None:
        old = inode.content
        inode.content = change.content
        if type(old) is OwnFile and old is not change.content and old.lower_bytes:
            _drop_bitmaps(step, old, change.content)

    def _finish(self, live: Layer, inode: Inode, change: Change) -> None:
        """Do what may only be done now that the rows have changed; see layers/bodies.py."""
        content = change.content
        if type(content) is OwnFile:
            content.copied.update(change.groups)
            if change.cut_to is not None:
                live.own.truncate(inode.file_id, change.cut_to)
        if change.dead is not None:
            live.doomed.append((change.dead.offset, change.dead.capacity_bytes))


def allocated_blocks(inode: Inode) -> int:
    """Return st_blocks: what the body takes, in units of 512 bytes (stat(2))."""
    own = inode.own_file
    if own is not None and own.lower is None:
        return own.layer.own.blocks(own.file_id)
    return (inode.size_bytes + 511) // 512


def _without_set_id(mode: int) -> int:
    # Mandatory locking's mark, setgid without group execute, stays (inode(7)).
    if mode & stat.S_IXGRP:
        mode &= ~stat.S_ISGID
    return mode & ~stat.S_ISUID


def _kept_time(time_ns: int) -> int:
    # As file systems do with times that they cannot store (utimensat(2), s_time_max).
    return max(-_TIME_MAX_NS - 1, min(time_ns, _TIME_MAX_NS))


def _check_xattr_space(name: bytes) -> None:
    if name.startswith(b"system."):
        raise Refusal(errno.EOPNOTSUPP)


def _drop_bitmaps(step: Step, old: OwnFile, new: BodyContent) -> None:
    """Drop bitmap rows that a shorter body no longer reads."""
    if type(new) is OwnFile and new.lower_bytes:
        return
    for group in old.copied:
        step.drop_row(block_key(old.file_id, group))
