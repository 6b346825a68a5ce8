"""The handlers: unpack, call the vfs, pack.

Source: pyfuse3 documentation of Operations; linux/fuse.h.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import pyfuse3
import trio
from pyfuse3 import (
    EntryAttributes,
    FileHandleT,
    FileInfo,
    FileNameT,
    FlagT,
    InodeT,
    ModeT,
    ReaddirToken,
    RequestContext,
    SetattrFields,
    StatvfsData,
    XAttrNameT,
)

from workspacefs.layers.layer import Layer
from workspacefs_daemon.background.hops import Blocking
from workspacefs_daemon.bindings.fuse.attributes import absent_entry, entry_of
from workspacefs_daemon.bindings.fuse.boundary import (
    HiddenNode,
    handler,
    unanswered_handler,
    waiting_handler,
)
from workspacefs_daemon.bindings.fuse.hidden import HiddenOperations
from workspacefs_daemon.bindings.fuse.listing import OpenDirectory, send_names
from workspacefs_daemon.vfs.filesystem import FileSystem
from workspacefs_daemon.vfs.inode import Inode
from workspacefs_daemon.vfs.marks import KnownProcess
from workspacefs_daemon.vfs.namespace import HIDDEN_NAME, device_content
from workspacefs_daemon.vfs.past import FIRST_NODE
from workspacefs_daemon.vfs.refusal import Refusal
from workspacefs_daemon.vfs.writers import WriteHandle

T = TypeVar("T")

SESSION_XATTR: Final = b"user.workspacefs.session"
"""Hidden: answers on every inode, is listed on none. It says whom the mount belongs to."""
_ROOT_NODE: Final = pyfuse3.ROOT_INODE
_FIRST_HANDLE: Final = 3 << 62
"""Handles of files that are open for writing are numbered from here: no node has such a number. A
handle of any other file is the number of its node."""
_CAPABILITY: Final = b"security.capability"
"""Source: capabilities(7), file capabilities."""


class Operations(pyfuse3.Operations):
    """Serves one mount."""

    supports_dot_lookup = False
    enable_writeback_cache = False
    enable_acl = False

    def __init__(
        self,
        fs: FileSystem,
        blocking: Blocking,
        *,
        describe: Callable[[], bytes],
        hidden: HiddenOperations | None = None,
    ) -> None:
        """Serve `fs`, and what is `hidden` in it."""
        super().__init__()
        self.fs = fs
        self.has_begun = trio.Event()
        """The kernel has agreed with us: requests are answered from now on."""
        self._hidden = hidden
        self.counts: dict[str, int] = defaultdict(int)
        self._blocking = blocking
        self._describe = describe
        self._absent = absent_entry()
        self._file_info = FileInfo()
        self._writers = fs.services.writers
        self._handles: dict[int, WriteHandle] = {}
        self._next_handle = _FIRST_HANDLE
        self._directories: dict[int, OpenDirectory] = {}
        self._next_directory = 1

    def init(self) -> None:
        """Hear that the first message, FUSE_INIT, is being answered (fuse(4))."""
        self.has_begun.set()

    # -- what the boundary needs -------------------------------------------------------------

    async def load(self, call: Callable[[], object]) -> None:
        """Run a blocking load on a thread."""
        await self._blocking.load(call)

    async def send_on(self, op: str, args: Sequence[object]) -> object:
        """Have the hidden directory answer; what it has no answer for would be a change."""
        answer = getattr(self._hidden, op, None)
        if answer is None:
            raise pyfuse3.FUSEError(errno.EROFS)
        return await answer(*args)

    async def make_room(self) -> bool:
        """Sync, so that bodies which are dead give their space back."""
        return await self.fs.make_room()

    def run_blocking(self, call: Callable[[], T]) -> T:
        """Run an operation with loads on the spot."""
        return self.fs.overlay.resident.run_blocking(call)

    def _inode(self, number: int) -> Inode:
        inode = self.fs.overlay.inodes.get(number)
        if inode is None:
            raise HiddenNode if number >= FIRST_NODE else Refusal(errno.ESTALE)
        return inode

    def _begin(self, ctx: RequestContext) -> KnownProcess | None:
        """Take what comes next, up to the next await, for the work of whoever asks."""
        if self._writers is None:
            return None
        return self._writers.begin(ctx.pid, self.fs.services.live)

    def _handle(
        self, inode: Inode, number: int, opener: KnownProcess | None, layer: Layer | None = None
    ) -> FileHandleT:
        """Return a handle for writing to a file; `layer`: where that it is by the opener is noted
        already.
        """
        if opener is None:
            return FileHandleT(inode.file_id)
        handle = self._next_handle
        self._next_handle = handle + 1
        noted = layer if opener.is_settled else None
        self._handles[handle] = WriteHandle(inode, number, opener, noted)
        return FileHandleT(handle)

    def _file(self, fh: int) -> Inode:
        handle = self._handles.get(fh)
        return self._inode(fh) if handle is None else handle.inode

    # -- names -------------------------------------------------------------------------------

    @handler
    def lookup(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> EntryAttributes:
        """Find a name."""
        overlay = self.fs.overlay
        inode = overlay.find_child(self._inode(parent_inode), name)
        if inode is None:
            if name == HIDDEN_NAME and self._hidden is not None and parent_inode == _ROOT_NODE:
                return self._hidden.entry()
            return self._absent
        entry = entry_of(inode)
        overlay.remember(inode)
        return entry

    @unanswered_handler
    def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        """Give up references; the kernel expects no answer."""
        for number, count in inode_list:
            if number < FIRST_NODE:
                self.fs.forget(number, count)
            elif self._hidden is not None:
                self._hidden.forget(number, count)

    @handler
    def create(
        self,
        parent_inode: InodeT,
        name: FileNameT,
        mode: ModeT,
        flags: FlagT,
        ctx: RequestContext,
    ) -> tuple[FileInfo, EntryAttributes]:
        """Create and open a regular file."""
        fs = self.fs
        opener = self._begin(ctx)
        kind = stat.S_IFREG | stat.S_IMODE(mode)
        inode = fs.namespace.create(self._inode(parent_inode), name, kind, ctx.uid, ctx.gid)
        fs.overlay.remember(inode)
        inode.opens += 1
        info = self._file_info
        info.fh = self._handle(inode, ctx.pid, opener, fs.services.live)
        return info, entry_of(inode)

    @handler
    def mknod(
        self,
        parent_inode: InodeT,
        name: FileNameT,
        mode: ModeT,
        rdev: int,
        ctx: RequestContext,
    ) -> EntryAttributes:
        """Create a file of any kind but a directory or a link."""
        return self._made(parent_inode, name, mode, ctx, rdev=rdev)

    @handler
    def mkdir(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, ctx: RequestContext
    ) -> EntryAttributes:
        """Create a directory."""
        return self._made(parent_inode, name, mode, ctx)

    def _made(
        self, parent: int, name: bytes, mode: int, ctx: RequestContext, *, rdev: int = 0
    ) -> EntryAttributes:
        self._begin(ctx)
        inode = self.fs.namespace.create(
            self._inode(parent), name, mode, ctx.uid, ctx.gid, content=device_content(mode, rdev)
        )
        self.fs.overlay.remember(inode)
        return entry_of(inode)

    @handler
    def symlink(
        self, parent_inode: InodeT, name: FileNameT, target: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        """Create a symbolic link."""
        self._begin(ctx)
        inode = self.fs.namespace.create(
            self._inode(parent_inode), name, stat.S_IFLNK | 0o777, ctx.uid, ctx.gid,
            content=bytes(target), size_bytes=len(target),
        )  # fmt: skip
        self.fs.overlay.remember(inode)
        return entry_of(inode)

    @handler
    def link(
        self,
        inode: InodeT,
        new_parent_inode: InodeT,
        new_name: FileNameT,
        ctx: RequestContext,
    ) -> EntryAttributes:
        """Give a file one more name."""
        self._begin(ctx)
        found = self._inode(inode)
        self.fs.namespace.link(found, self._inode(new_parent_inode), new_name)
        self.fs.overlay.remember(found)
        return entry_of(found)

    @handler
    def unlink(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        """Take a name away."""
        self._begin(ctx)
        self.fs.unlink(self._inode(parent_inode), name)

    @handler
    def rmdir(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        """Remove an empty directory."""
        self._begin(ctx)
        self.fs.namespace.rmdir(self._inode(parent_inode), name)

    @handler
    def rename(
        self,
        parent_inode_old: InodeT,
        name_old: FileNameT,
        parent_inode_new: InodeT,
        name_new: FileNameT,
        flags: FlagT,
        ctx: RequestContext,
    ) -> None:
        """Move a name."""
        self._begin(ctx)
        self.fs.rename(
            self._inode(parent_inode_old), name_old,
            self._inode(parent_inode_new), name_new, flags,
        )  # fmt: skip

    @handler
    def readlink(self, inode: InodeT, ctx: RequestContext) -> FileNameT:
        """Return where a link points."""
        content = self._inode(inode).content
        if type(content) is not bytes:
            raise Refusal(errno.EINVAL)
        return FileNameT(content)

    # -- directories -------------------------------------------------------------------------

    @handler
    def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        """Begin a listing."""
        found = self._inode(inode)
        found.opens += 1
        number = self._next_directory
        self._next_directory += 1
        above = found if inode == _ROOT_NODE else found.parent or found
        self._directories[number] = OpenDirectory(found, above)
        return FileHandleT(number)

    @handler
    def releasedir(self, fh: FileHandleT) -> None:
        """End a listing."""
        inode = self._directory(fh).inode
        del self._directories[fh]
        inode.opens -= 1
        self.fs.overlay.drop_unused(inode)

    @handler
    def readdir(self, fh: FileHandleT, start_id: int, token: ReaddirToken) -> None:
        """Answer with as many names as fit, attributes included."""
        send_names(token, self._directory(fh), start_id, self.fs.overlay)

    def _directory(self, fh: int) -> OpenDirectory:
        listing = self._directories.get(fh)
        if listing is None:
            raise HiddenNode
        return listing

    # -- files -------------------------------------------------------------------------------

    @handler
    def open(self, inode: InodeT, flags: FlagT, ctx: RequestContext) -> FileInfo:
        """Open a file; the kernel leaves O_TRUNC to us."""
        found = self._inode(inode)
        is_for_writing = flags & (os.O_ACCMODE | os.O_TRUNC)
        opener = self._begin(ctx) if is_for_writing else None
        if flags & os.O_TRUNC and found.size_bytes:
            self.fs.files.resize(found, 0)
        found.opens += 1
        info = self._file_info
        info.fh = self._handle(found, ctx.pid, opener)
        return info

    @handler
    def release(self, fh: FileHandleT) -> None:
        """Close the last descriptor of a handle."""
        handle = self._handles.pop(fh, None)
        self.fs.close(self._inode(fh) if handle is None else handle.inode)

    @handler
    def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        """Return bytes; fewer than `size` only at the end of the file."""
        return self.fs.files.read(self._file(fh), off, size)

    @handler
    def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        """Write all of `buf`."""
        handle = self._handles.get(fh)
        if handle is None:
            return self.fs.files.write(self._inode(fh), off, buf)
        live = self.fs.services.live
        assert self._writers is not None  # it has made the handle
        if handle.layer is live:
            self._writers.begin_noted()
            return self.fs.files.write(handle.inode, off, buf)
        self._writers.begin_write(handle, live)
        written = self.fs.files.write(handle.inode, off, buf)
        handle.layer = live
        return written

    async def flush(self, fh: FileHandleT) -> None:
        """Say once that there is nothing to flush: the kernel then stops asking."""
        raise pyfuse3.FUSEError(errno.ENOSYS)

    @waiting_handler
    async def fsync(self, fh: FileHandleT, datasync: bool) -> None:
        """Make the session survive power loss."""
        await self.fs.sync()

    @waiting_handler
    async def fsyncdir(self, fh: FileHandleT, datasync: bool) -> None:
        """Make the session survive power loss."""
        await self.fs.sync()

    # -- attributes --------------------------------------------------------------------------

    @handler
    def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes:
        """Return the attributes of an inode."""
        return entry_of(self._inode(inode))

    @handler
    def setattr(
        self,
        inode: InodeT,
        attr: EntryAttributes,
        fields: SetattrFields,
        fh: FileHandleT | None,
        ctx: RequestContext,
    ) -> EntryAttributes:
        """Change attributes."""
        found = self._inode(inode)
        if ctx.pid in self.fs.services.announcers:
            return entry_of(found)  # watchers.py: for the sake of who watches, not for a change
        self._begin(ctx)
        if fields.update_size:
            self.fs.files.resize(found, attr.st_size)
        if (
            fields.update_mode
            or fields.update_uid
            or fields.update_gid
            or fields.update_atime
            or fields.update_mtime
        ):
            self.fs.files.set_attributes(
                found,
                mode=attr.st_mode if fields.update_mode else None,
                uid=attr.st_uid if fields.update_uid else None,
                gid=attr.st_gid if fields.update_gid else None,
                atime_ns=attr.st_atime_ns if fields.update_atime else None,
                mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
            )
        return entry_of(found)

    @handler
    def getxattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> bytes:
        """Return an extended attribute."""
        if name == _CAPABILITY and not self._inode(inode).xattrs:
            # The kernel asks before every write; raised here it costs a tenth of a Refusal.
            raise pyfuse3.FUSEError(errno.ENODATA)
        if name == SESSION_XATTR:
            return self._describe()
        return self.fs.files.get_xattr(self._inode(inode), name)

    @handler
    def setxattr(self, inode: InodeT, name: XAttrNameT, value: bytes, ctx: RequestContext) -> None:
        """Set an extended attribute."""
        if name == SESSION_XATTR:
            raise Refusal(errno.EPERM)
        self._begin(ctx)
        self.fs.files.set_xattr(self._inode(inode), name, value)

    @handler
    def listxattr(self, inode: InodeT, ctx: RequestContext) -> Sequence[XAttrNameT]:
        """Return the names of extended attributes."""
        return [XAttrNameT(name) for name in self.fs.files.list_xattrs(self._inode(inode))]

    @handler
    def removexattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> None:
        """Remove an extended attribute."""
        self._begin(ctx)
        self.fs.files.remove_xattr(self._inode(inode), name)

    @handler
    def statfs(self, ctx: RequestContext) -> StatvfsData:
        """Return the space of the disk that the layers are on, and the count of files."""
        figures = self.fs.statistics()
        stats = StatvfsData()
        stats.f_bsize = figures.block_bytes
        stats.f_frsize = figures.block_bytes
        stats.f_blocks = figures.blocks
        stats.f_bfree = figures.blocks_free
        stats.f_bavail = figures.blocks_available
        stats.f_files = figures.files
        stats.f_ffree = stats.f_favail = figures.files_free
        stats.f_namemax = figures.name_max_bytes
        return stats

    async def access(self, inode: InodeT, mode: ModeT, ctx: RequestContext) -> bool:
        """Say yes: with default_permissions the kernel decides, and does not ask."""
        return True


class SubpathOperations(Operations):
    """Serves one mount that shows a directory of a workspace: to the kernel, that is the root."""

    def _inode(self, number: int) -> Inode:
        # The workspace's own root has the kernel's number; it must not be found by it.
        return super()._inode(self.fs.namespace.top_id if number == _ROOT_NODE else number)
