"""An inode in memory: the authority while the session runs; rows and trees are its shadow."""

from __future__ import annotations

import stat
from typing import Final

from workspacefs.ids import FileId
from workspacefs.layers.bodies import BodyContent, OwnFile, stored_content
from workspacefs.layers.rows import InodeRow, pack_inode
from workspacefs.objects.entry import Device, Entry, Subtree, Xattrs
from workspacefs_daemon.vfs.kept_content import KeptContent, give_content, keep_content
from workspacefs_daemon.vfs.marks import Mark

_MODES: Final[dict[int, int]] = {}
"""One integer object for each st_mode (at most 65,536), instead of one for each inode."""


class Inode:
    """One file, directory, link, fifo, socket or device that someone knows.

    The kernel's node id is `file_id`. `parent` and `name` say one place where it is linked, or
    None where none is known; of a directory they are the only one.
    """

    __slots__ = (
        "_content",
        "atime_ns",
        "attrs",
        "children",
        "ctime_ns",
        "file_id",
        "generation",
        "gid",
        "is_pinning",
        "lookups",
        "marked",
        "mode",
        "mtime_ns",
        "name",
        "nlink",
        "opens",
        "parent",
        "size_bytes",
        "uid",
        "writers",
        "xattrs",
    )

    def __init__(
        self,
        file_id: FileId,
        mode: int,
        uid: int,
        gid: int,
        size_bytes: int,
        mtime_ns: int,
        ctime_ns: int,
        atime_ns: int,
        nlink: int,
        content: BodyContent,
        xattrs: Xattrs,
    ) -> None:
        self.file_id = file_id
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.size_bytes = size_bytes
        self.mtime_ns = mtime_ns
        self.ctime_ns = ctime_ns
        self.atime_ns = atime_ns
        self.nlink = nlink
        self._content: KeptContent = keep_content(content)
        self.xattrs = xattrs
        self.parent: Inode | None = None
        self.name = b""
        self.marked = -1
        """Number of the newest layer with a name row for this place; -1: no layer has one, so
        that no layer has a row below it either."""
        self.lookups = 0
        """References that the kernel holds."""
        self.opens = 0
        """Open handles."""
        self.children = 0
        """Registered inodes whose parent this is; keeps it registered."""
        self.is_pinning = False
        """Whether this is one of its parent's `children`."""
        self.generation = 0
        """Tells the kernel apart what had the same id: see vfs/switching.py."""
        self.writers: Mark | None = None
        """What a layer notes of who changes it, once that is known: see vfs/writers.py."""
        self.attrs: object | None = None
        """The binding's prepared answer; None when a field has changed since, or when newer
        ones took its room."""

    @classmethod
    def from_entry(cls, entry: Entry) -> Inode:
        """Return the inode of a file that no layer has touched; trees keep no atime."""
        _, mode, uid, gid, size, mtime_ns, ctime_ns, file_id, nlink, content, xattrs = entry
        mode = _MODES.setdefault(mode, mode)
        if ctime_ns == mtime_ns:
            ctime_ns = mtime_ns  # one object
        return cls(
            file_id, mode, uid, gid, size, mtime_ns, ctime_ns, mtime_ns, nlink, content, xattrs
        )

    @classmethod
    def from_row(cls, file_id: FileId, row: InodeRow, content: BodyContent) -> Inode:
        """Return the inode that a layer's row describes."""
        return cls(file_id, *row[:8], content, row.xattrs)

    def to_row(self) -> bytes:
        """Return the inode row for this state."""
        return pack_inode(
            (
                self.mode,
                self.uid,
                self.gid,
                self.size_bytes,
                self.mtime_ns,
                self.ctime_ns,
                self.atime_ns,
                self.nlink,
                stored_content(self.content, self.file_id),
                [part for pair in self.xattrs for part in pair],
            )
        )

    def save(self) -> tuple[object, ...]:
        """Return every field that an operation may change, for restore()."""
        return (
            self.mode,
            self.uid,
            self.gid,
            self.size_bytes,
            self.mtime_ns,
            self.ctime_ns,
            self.atime_ns,
            self.nlink,
            self._content,
            self.xattrs,
            self.parent,
            self.name,
            self.marked,
        )

    def restore(self, saved: tuple[object, ...]) -> None:
        """Go back to a saved state; the operation that changed it did not come through."""
        (
            self.mode,
            self.uid,
            self.gid,
            self.size_bytes,
            self.mtime_ns,
            self.ctime_ns,
            self.atime_ns,
            self.nlink,
            self._content,
            self.xattrs,
            self.parent,
            self.name,
            self.marked,
        ) = saved  # type: ignore[assignment]  # made by save() alone
        self.attrs = None

    @property
    def content(self) -> BodyContent:
        """What the file or directory consists of; see layers/bodies.py."""
        return give_content(self._content)

    @content.setter
    def content(self, content: BodyContent) -> None:
        self._content = keep_content(content)

    @property
    def own_file(self) -> OwnFile | None:
        """The content, where that is an own file."""
        return self._content if type(self._content) is OwnFile else None

    @property
    def is_dir(self) -> bool:
        """Whether this is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_regular(self) -> bool:
        """Whether this is a regular file."""
        return stat.S_ISREG(self.mode)

    @property
    def base(self) -> Subtree:
        """What a directory shows of the base commit."""
        assert type(self._content) is Subtree
        return self._content

    @property
    def device(self) -> int:
        """st_rdev."""
        return self._content.number if type(self._content) is Device else 0
