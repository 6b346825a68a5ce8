"""Changing names: create, link, unlink, rename. Rules of POSIX that the kernel leaves to us.

The kernel has checked permissions, name lengths, that a directory is not moved into itself, and
that types fit (rename(2), unlink(2), rmdir(2)); what depends on content is checked here.

Source: rename(2), link(2), unlink(2), rmdir(2), mknod(2), inode(7) for the timestamps.
"""

from __future__ import annotations

import errno
import stat
from typing import Final

from workspacefs.ids import ROOT_FILE_ID, FileId
from workspacefs.layers.bodies import BodyContent, OwnFile, Run
from workspacefs.layers.layer import Layer
from workspacefs.layers.rows import WHITEOUT, encode_name, name_key
from workspacefs.objects.entry import Device, Subtree
from workspacefs_daemon.vfs.inode import Inode
from workspacefs_daemon.vfs.overlay import Overlay
from workspacefs_daemon.vfs.refusal import Refusal
from workspacefs_daemon.vfs.services import Services
from workspacefs_daemon.vfs.step import Step

HIDDEN_NAME: Final = b".workspacefs"
"""Of a directory at the top through which a mount shows its past. It is in no tree, unless somebody
imported one of that name: then that is there, and the past is not.
"""
RENAME_NOREPLACE: Final = 1
RENAME_EXCHANGE: Final = 2
"""Source: linux/fs.h."""
_LINKS_MAX: Final = 2**31
_ROWS_MAX: Final = 2**31


class Namespace:
    """Operations on names. Each is one step: done and kept on return, or not done at all."""

    def __init__(self, overlay: Overlay, services: Services) -> None:
        self._overlay = overlay
        self._services = services
        self._writers = services.writers
        self.top_id: FileId = ROOT_FILE_ID
        """The directory that is shown as the root."""

    def create(
        self,
        parent: Inode,
        name: bytes,
        mode: int,
        uid: int,
        gid: int,
        *,
        content: BodyContent = None,
        size_bytes: int = 0,
    ) -> Inode:
        """Make a file of any kind (the kind stands in `mode`) and return its inode, unregistered.

        Raises:
            Refusal: EEXIST, ENAMETOOLONG, ENOENT in a directory that was removed, or EPERM for
                HIDDEN_NAME at the top; so do all others here.
        """
        live = self._services.writable()
        if parent.nlink == 0:
            raise Refusal(errno.ENOENT)
        if self._overlay.find_child(parent, name) is not None:
            raise Refusal(errno.EEXIST)
        if name == HIDDEN_NAME:
            self._check_not_hidden(parent)
        is_dir = stat.S_ISDIR(mode)
        if parent.mode & stat.S_ISGID:
            # The kernel leaves setgid inheritance to the file system (inode(7)).
            gid = parent.gid
            if is_dir:
                mode |= stat.S_ISGID
        now = self._services.now_ns()
        inode = Inode(
            self._services.next_file_id(), mode, uid, gid, size_bytes, now, now, now,
            2 if is_dir else 1, Subtree() if is_dir else content, (),
        )  # fmt: skip
        inode.parent = parent
        inode.name = name
        with Step(live) as step:
            step.touch(parent)
            step.touch(inode)
            if self._writers is not None:
                self._writers.note_made(step, inode)
            parent.mtime_ns = parent.ctime_ns = now
            if is_dir:
                parent.nlink += 1
        return inode

    def link(self, inode: Inode, parent: Inode, name: bytes) -> None:
        """Give a file one more name.

        Raises:
            Refusal: EEXIST, ENOENT (the file or the directory has no name any more), EMLINK.
        """
        live = self._services.writable()
        if inode.nlink == 0 or parent.nlink == 0:
            raise Refusal(errno.ENOENT)
        if inode.nlink >= _LINKS_MAX:
            raise Refusal(errno.EMLINK)
        if self._overlay.find_child(parent, name) is not None:
            raise Refusal(errno.EEXIST)
        if name == HIDDEN_NAME:
            self._check_not_hidden(parent)
        now = self._services.now_ns()
        with Step(live) as step:
            step.touch(parent)
            step.touch(inode)
            step.set_row(name_key(parent.file_id, name), encode_name(inode.file_id))
            self._note(step, inode)
            inode.nlink += 1
            inode.ctime_ns = now
            parent.mtime_ns = parent.ctime_ns = now

    def unlink(self, parent: Inode, name: bytes) -> Inode:
        """Take a name from a file that is no directory; return its inode.

        Raises:
            Refusal: ENOENT, or EISDIR.
        """
        live = self._services.writable()
        inode = self._existing(parent, name)
        if inode.is_dir:
            raise Refusal(errno.EISDIR)
        hides = self._overlay.exists_below(parent, name)
        now = self._services.now_ns()
        with Step(live, frees_space=True) as step:
            step.touch(parent)
            self._take_name(step, inode, now)
            self._write_absence(step, parent, name, hides=hides)
            parent.mtime_ns = parent.ctime_ns = now
        self._left(parent, name, inode)
        return inode

    def rmdir(self, parent: Inode, name: bytes) -> Inode:
        """Remove an empty directory; return its inode.

        Raises:
            Refusal: ENOENT, ENOTDIR or ENOTEMPTY.
        """
        live = self._services.writable()
        inode = self._existing(parent, name)
        if not inode.is_dir:
            raise Refusal(errno.ENOTDIR)
        if not self._overlay.is_empty(inode):
            raise Refusal(errno.ENOTEMPTY)
        hides = self._overlay.exists_below(parent, name)
        now = self._services.now_ns()
        with Step(live, frees_space=True) as step:
            step.touch(parent)
            self._take_name(step, inode, now)
            self._write_absence(step, parent, name, hides=hides)
            for hidden, _ in live.rows.names_after(inode.file_id, b"", _ROWS_MAX):
                step.drop_row(name_key(inode.file_id, hidden))
            parent.mtime_ns = parent.ctime_ns = now
            parent.nlink -= 1
        self._left(parent, name, inode)
        return inode

    def rename(
        self, parent: Inode, name: bytes, new_parent: Inode, new_name: bytes, flags: int
    ) -> Inode | None:
        """Move a name, replacing what is there; return the inode that was replaced, if any.

        Raises:
            Refusal: ENOENT, EEXIST (NOREPLACE), ENOTEMPTY, EISDIR, ENOTDIR, EINVAL (flags).
        """
        live = self._services.writable()
        if new_parent.nlink == 0:
            raise Refusal(errno.ENOENT)
        inode = self._existing(parent, name)
        target = self._overlay.find_child(new_parent, new_name)
        if flags == RENAME_EXCHANGE:
            if target is None:
                raise Refusal(errno.ENOENT)
            self._exchange(live, parent, name, inode, new_parent, new_name, target)
            return None
        if flags == RENAME_NOREPLACE:
            if target is not None:
                raise Refusal(errno.EEXIST)
        elif flags:
            raise Refusal(errno.EINVAL)
        if target is None and new_name == HIDDEN_NAME:
            self._check_not_hidden(new_parent)
        if target is not None:
            if target.file_id == inode.file_id:
                return None  # two names of one file: nothing is to be done (rename(2))
            self._check_replaceable(inode, target)
        hides = self._overlay.exists_below(parent, name)
        now = self._services.now_ns()
        with Step(live, frees_space=target is not None) as step:
            step.touch(parent)
            step.touch(new_parent)
            step.touch(inode)
            if target is not None:
                self._take_name(step, target, now)
            self._write_absence(step, parent, name, hides=hides)
            step.set_row(name_key(new_parent.file_id, new_name), encode_name(inode.file_id))
            self._note(step, inode)
            for directory in (parent, new_parent):
                directory.mtime_ns = directory.ctime_ns = now
            inode.ctime_ns = now
            if inode.is_dir:
                parent.nlink -= 1
                new_parent.nlink += 1
            if target is not None and target.is_dir:
                new_parent.nlink -= 1
        if target is not None:
            self._left(new_parent, new_name, target)
        self._overlay.set_place(inode, new_parent, new_name)
        inode.marked = live.number
        return target

    def _exchange(
        self,
        live: Layer,
        parent: Inode,
        name: bytes,
        inode: Inode,
        new_parent: Inode,
        new_name: bytes,
        target: Inode,
    ) -> None:
        if target.file_id == inode.file_id:
            return
        now = self._services.now_ns()
        with Step(live) as step:
            for touched in (parent, new_parent, inode, target):
                step.touch(touched)
                touched.ctime_ns = now
            step.set_row(name_key(parent.file_id, name), encode_name(target.file_id))
            step.set_row(name_key(new_parent.file_id, new_name), encode_name(inode.file_id))
            parent.mtime_ns = new_parent.mtime_ns = now
            self._note(step, inode)
            self._note(step, target)
            moved = int(inode.is_dir) - int(target.is_dir)
            new_parent.nlink += moved
            parent.nlink -= moved
        self._overlay.set_place(inode, new_parent, new_name)
        self._overlay.set_place(target, parent, name)
        inode.marked = target.marked = live.number

    def release_body(self, inode: Inode) -> None:
        """Give up the body of a file that has no name and that nobody has open."""
        content = inode.content
        layer = self._overlay.live
        if layer is None or not isinstance(content, Run | OwnFile) or content.layer is not layer:
            return
        if type(content) is Run:
            layer.doomed.append((content.offset, content.capacity_bytes))
        elif type(content) is OwnFile:
            layer.doomed.append(content.file_id)
        inode.content = None

    def _existing(self, parent: Inode, name: bytes) -> Inode:
        inode = self._overlay.find_child(parent, name)
        if inode is None:
            if name == HIDDEN_NAME:
                self._check_not_hidden(parent)
            raise Refusal(errno.ENOENT)
        return inode

    def _check_not_hidden(self, parent: Inode) -> None:
        if parent.file_id == self.top_id:
            raise Refusal(errno.EPERM)

    def _check_replaceable(self, inode: Inode, target: Inode) -> None:
        if target.is_dir:
            if not inode.is_dir:
                raise Refusal(errno.EISDIR)
            if not self._overlay.is_empty(target):
                raise Refusal(errno.ENOTEMPTY)
        elif inode.is_dir:
            raise Refusal(errno.ENOTDIR)

    def _take_name(self, step: Step, inode: Inode, now_ns: int) -> None:
        # A file with more names lives on under one that we may not have seen. Its row says that
        # it changed, and a commit finds the name (see workspace changes: unreached rows).
        step.touch(inode)
        inode.nlink = 0 if inode.is_dir else inode.nlink - 1
        inode.ctime_ns = now_ns
        if self._writers is not None:
            self._writers.note_gone(step, inode, self._services.writable())

    def _note(self, step: Step, inode: Inode) -> None:
        if self._writers is not None:
            self._writers.note(step, inode)

    def _write_absence(self, step: Step, parent: Inode, name: bytes, *, hides: bool) -> None:
        # After the marks of the same step: the last row of a key counts.
        key = name_key(parent.file_id, name)
        if hides:
            step.set_row(key, WHITEOUT)
        else:
            step.drop_row(key)

    def _left(self, parent: Inode, name: bytes, inode: Inode) -> None:
        """Forget a place that an inode no longer has: it must not be marked as changed there."""
        if inode.parent is parent and inode.name == name:
            self._overlay.set_place(inode, None, b"")


def device_content(mode: int, rdev: int) -> BodyContent:
    """Return the content of a node that mknod(2) makes."""
    return Device(rdev) if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else None
