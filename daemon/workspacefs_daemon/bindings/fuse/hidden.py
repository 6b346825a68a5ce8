"""The directory `.workspacefs`, through which a mount shows its past.

    .workspacefs/at/<rev>/           the tree of a revision
    .workspacefs/checkpoints/<name>/ the session as it was at a checkpoint
    .workspacefs/conflicts/<number>.<side>/   what one side of a conflict has, by its name

Operations sends here what is about these directories and what lies below; whatever is not answered
here would be a change, and is refused. A name below `at` or `checkpoints` may lead elsewhere the
next moment, so the kernel asks for it each time; what it leads to never changes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import pyfuse3
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
    XAttrNameT,
)

from workspacefs_daemon.background.hops import Blocking
from workspacefs_daemon.bindings.fuse.attributes import FOREVER_S, absent_entry, entry_of
from workspacefs_daemon.bindings.fuse.boundary import handler, waiting_handler
from workspacefs_daemon.bindings.fuse.listing import OpenDirectory, send_names
from workspacefs_daemon.browsing import Browsing, Era, TreeName
from workspacefs_daemon.vfs.inode import Inode
from workspacefs_daemon.vfs.past import FIRST_NODE, PastTree
from workspacefs_daemon.vfs.refusal import Refusal

T = TypeVar("T")

HIDDEN_NODE: Final = FIRST_NODE
_ERA_NODES: Final = {
    Era.AT: FIRST_NODE + 1,
    Era.CHECKPOINTS: FIRST_NODE + 2,
    Era.CONFLICTS: FIRST_NODE + 3,
}
_ERAS: Final = {number: era for era, number in _ERA_NODES.items()}
_DIRECTORY: Final = stat.S_IFDIR | 0o755


@dataclass(slots=True)
class _OpenNames:
    """A listing of one of the directories that are nobody's but ours."""

    number: int
    above: int
    era: Era | None
    names: list[bytes] = field(default_factory=list)


class HiddenOperations:
    """Answers requests about the past; each as Operations would."""

    def __init__(
        self, browsing: Browsing, blocking: Blocking, *, top: Callable[[], Inode], began_ns: int
    ) -> None:
        """Show what `browsing` finds; `top` returns the directory in which all this is hidden."""
        self.counts: dict[str, int] = defaultdict(int)
        """Of what was answered here; Operations counts everything."""
        self._browsing = browsing
        self._nodes = browsing.nodes
        self._blocking = blocking
        self._top = top
        self._began_ns = began_ns
        self._absent = absent_entry()
        self._names: dict[int, _OpenNames] = {}
        self._directories: dict[int, tuple[PastTree, OpenDirectory]] = {}
        self._next_handle = FIRST_NODE
        browsing.on_crowded = _have_forgotten

    # -- what the boundary needs -------------------------------------------------------------

    async def load(self, call: Callable[[], object]) -> None:
        """Run a blocking load on a thread."""
        await self._blocking.load(call)

    async def send_on(self, op: str, args: Sequence[object]) -> object:
        """Refuse: there is nobody behind."""
        raise pyfuse3.FUSEError(errno.ESTALE)

    async def make_room(self) -> bool:
        """Say no: nothing here takes disk space."""
        return False

    def run_blocking(self, call: Callable[[], T]) -> T:
        """Run an operation with loads on the spot."""
        return self._browsing.resident.run_blocking(call)

    # -- names -------------------------------------------------------------------------------

    def entry(self) -> EntryAttributes:
        """Return the attributes of the hidden directory. Its name is not the kernel's to keep: one
        day the workspace may have something of that name.
        """
        return self._own_entry(HIDDEN_NODE, entry_timeout_s=0)

    @waiting_handler
    async def lookup(
        self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        """Find a name."""
        if parent_inode == HIDDEN_NODE:
            numbers = [n for one, n in _ERA_NODES.items() if one.value.encode("ascii") == name]
            return self._own_entry(numbers[0]) if numbers else self._absent
        era = _ERAS.get(parent_inode)
        if era is None:
            return await self._lookup_below(parent_inode, name)
        tree = await self._browsing.find(TreeName(era, name))
        if tree is None:
            raise Refusal(errno.ENOENT)  # an answer that is not kept
        # No await: the tree is the kernel's before anyone can find that nobody holds it.
        return self._told_top(tree)

    @handler
    def _lookup_below(self, parent: int, name: bytes) -> EntryAttributes:
        tree, directory = self._nodes.find(parent)
        inode = tree.overlay.find_child(directory, name)
        if inode is None:
            return self._absent
        entry = self._entry_in(tree, inode)
        tree.overlay.remember(inode)
        return entry

    def forget(self, number: int, count: int) -> None:
        """Give up references."""
        self._nodes.forget(number, count)

    @handler
    def readlink(self, inode: InodeT, ctx: RequestContext) -> FileNameT:
        """Return where a link points."""
        content = self._nodes.find(inode)[1].content
        assert type(content) is bytes  # the kernel asks of links alone
        return FileNameT(content)

    # -- directories -------------------------------------------------------------------------

    @waiting_handler
    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        """Begin a listing."""
        handle = self._next_handle
        self._next_handle += 1
        if inode == HIDDEN_NODE:
            names = [era.value.encode("ascii") for era in Era]
            self._names[handle] = _OpenNames(inode, self._top().file_id, None, names)
        elif (era := _ERAS.get(inode)) is not None:
            names = await self._browsing.list_names(era)
            self._names[handle] = _OpenNames(inode, HIDDEN_NODE, era, names)
        else:
            tree, found = self._nodes.find(inode)
            found.opens += 1
            above = found if found is tree.top else found.parent or found
            self._directories[handle] = tree, OpenDirectory(found, above)
        return FileHandleT(handle)

    @handler
    def releasedir(self, fh: FileHandleT) -> None:
        """End a listing."""
        if self._names.pop(fh, None) is None:
            tree, listing = self._directories.pop(fh)
            self._nodes.close(self._nodes.number_of(tree, listing.inode))

    @handler
    def readdir(self, fh: FileHandleT, start_id: int, token: ReaddirToken) -> None:
        """Answer with as many names as fit, attributes included."""
        names = self._names.get(fh)
        if names is not None:
            self._send_names(token, names, start_id)
            return
        tree, listing = self._directories[fh]
        if tree.is_closed:
            raise Refusal(errno.ESTALE)
        send_names(token, listing, start_id, tree.overlay, partial(self._entry_in, tree))

    def _send_names(self, token: ReaddirToken, listing: _OpenNames, start_id: int) -> None:
        rows = [(b".", listing.number), (b"..", listing.above)]
        for at, (name, number) in enumerate(rows[start_id:], start_id):
            if not pyfuse3.readdir_reply(token, name, self._own_entry(number), at + 1):
                return
        first = max(0, start_id - 2)
        for at, name in enumerate(listing.names[first:], first + 3):
            tree = None
            if listing.era is None:
                entry = self._own_entry(_ERA_NODES[Era(name.decode("ascii"))])
            else:
                tree = self._browsing.find_shown(TreeName(listing.era, name))
                # Where a name leads is not looked up to list it. The number means nothing: it is
                # asked for again, by name, before anyone gets to it.
                entry = (
                    self._own_entry(self._nodes.draw(), entry_timeout_s=0, attr_timeout_s=0)
                    if tree is None
                    else self._top_entry(tree)
                )
            if not pyfuse3.readdir_reply(token, name, entry, at):
                return
            if tree is not None:
                tree.overlay.remember(tree.top)

    # -- files -------------------------------------------------------------------------------

    @handler
    def open(self, inode: InodeT, flags: FlagT, ctx: RequestContext) -> FileInfo:
        """Open a file for reading."""
        if flags & (os.O_ACCMODE | os.O_TRUNC):
            raise Refusal(errno.EROFS)
        self._nodes.find(inode)[1].opens += 1
        return FileInfo(fh=FileHandleT(inode))

    @handler
    def release(self, fh: FileHandleT) -> None:
        """Close the last descriptor of a handle."""
        self._nodes.close(fh)

    @handler
    def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        """Return bytes; fewer than `size` only at the end of the file."""
        tree, inode = self._nodes.find(fh)
        return tree.files.read(inode, off, size)

    # -- attributes --------------------------------------------------------------------------

    @handler
    def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes:
        """Return the attributes of an inode."""
        if inode == HIDDEN_NODE or inode in _ERAS:
            return self._own_entry(inode)
        return self._entry_in(*self._nodes.find(inode))

    @handler
    def getxattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> bytes:
        """Return an extended attribute."""
        if inode == HIDDEN_NODE or inode in _ERAS:
            raise Refusal(errno.ENODATA)
        tree, found = self._nodes.find(inode)
        return tree.files.get_xattr(found, name)

    @handler
    def listxattr(self, inode: InodeT, ctx: RequestContext) -> Sequence[XAttrNameT]:
        """Return the names of extended attributes."""
        if inode == HIDDEN_NODE or inode in _ERAS:
            return []
        tree, found = self._nodes.find(inode)
        return [XAttrNameT(name) for name in tree.files.list_xattrs(found)]

    # -- packing -----------------------------------------------------------------------------

    def _entry_in(self, tree: PastTree, inode: Inode) -> EntryAttributes:
        entry = entry_of(inode)
        entry.st_ino = InodeT(self._nodes.number_of(tree, inode))
        return entry

    def _top_entry(self, tree: PastTree) -> EntryAttributes:
        entry = self._entry_in(tree, tree.top)
        entry.entry_timeout = 0
        return entry

    def _told_top(self, tree: PastTree) -> EntryAttributes:
        entry = self._top_entry(tree)
        tree.overlay.remember(tree.top)
        return entry

    def _own_entry(
        self, number: int, *, entry_timeout_s: float = FOREVER_S, attr_timeout_s: float = FOREVER_S
    ) -> EntryAttributes:
        top = self._top()
        entry = EntryAttributes()
        entry.st_ino = InodeT(number)
        entry.st_mode = ModeT(_DIRECTORY)
        entry.st_nlink = 2
        entry.st_uid = top.uid
        entry.st_gid = top.gid
        entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = self._began_ns
        entry.entry_timeout = entry_timeout_s
        entry.attr_timeout = attr_timeout_s
        return entry


def _have_forgotten(name: TreeName) -> None:
    """Have the kernel let go of what nobody uses below a name; asked from a thread of pyfuse3."""
    pyfuse3.invalidate_entry_async(
        InodeT(_ERA_NODES[name.era]), FileNameT(name.name), ignore_enoent=True
    )
