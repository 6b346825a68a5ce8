"""Importing a directory tree: from a disk to one root entry, in one pass and bounded memory.

Files are read in depth-first path order, so that neighbours share frames. Nothing here moves a
ref: the caller publishes what comes out.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from workspacefs.chunking.parameters import ChunkParameters
from workspacefs.errors import WorkspaceError
from workspacefs.ids import ROOT_FILE_ID, FileId
from workspacefs.objects.commits import ChangeCounts
from workspacefs.objects.entry import Device, Entry, Xattrs
from workspacefs.trees.build import DirectoryWriter
from workspacefs.trees.diff import is_same_directory
from workspacefs.trees.nodes import NodeSink
from workspacefs.trees.parameters import TreeParameters
from workspacefs.workspace.attributes import entry_of, read_xattrs
from workspacefs.workspace.base import BaseDirectory, BaseStore, KnownObjects
from workspacefs.workspace.content import ContentSink
from workspacefs.workspace.directories import OpenDirectories
from workspacefs.workspace.ignore import IgnoreRules
from workspacefs.workspace.imported import ImportedTree, ImportOptions, Progress
from workspacefs.workspace.readahead import ReadAhead
from workspacefs.workspace.scan import (
    Inode,
    count_source,
    inode_of,
    list_directory,
    open_source,
)
from workspacefs.workspace.source_files import SourceReadError, read_source_file

__all__ = ["ImportOptions", "ImportSink", "ImportedTree", "Progress", "import_tree"]

_PROGRESS_BYTES: Final = 8 * 1024 * 1024
_PROGRESS_FILES: Final = 256
_NEVER_SKIPPED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR))


class ImportSink(NodeSink, ContentSink, Protocol):
    """Takes all objects of an import."""


@dataclass(slots=True)
class _Frame:
    """A directory being imported."""

    prefix: bytes
    name: bytes
    status: os.stat_result
    file_id: FileId
    xattrs: Xattrs
    pending: Iterator[tuple[bytes, os.DirEntry[str]]]
    rules: IgnoreRules
    base: BaseDirectory
    writer: DirectoryWriter
    subdirs: int = 0


def import_tree(
    source: str | bytes | os.PathLike[str],
    sink: ImportSink,
    *,
    allocate_id: Callable[[], FileId],
    tree_params: TreeParameters,
    chunk_params: ChunkParameters,
    options: ImportOptions,
    base: Entry | None = None,
    base_store: BaseStore | None = None,
    known: KnownObjects | None = None,
    avoid: Inode | None = None,
    progress: Progress | None = None,
) -> ImportedTree:
    """Write a directory tree to `sink`; return its root and what was met.

    Args:
        source: The directory; what it holds becomes the root of the workspace.
        sink: Gets chunks and nodes; the caller finishes it.
        allocate_id: Gives ids to files that the base does not have.
        options: How to read.
        base: Root of the commit before. Files at equal paths keep their ids; unchanged content
            is recognised by its chunk ids (all is read and hashed unless `trust_mtime`).
        base_store: Where nodes of `base` are read.
        known: Learns locators of the base's objects as they become likely to be met again; the
            sink should ask it.
        avoid: Device and inode of a directory to leave out: the store itself.
        progress: Told how far it is.

    Raises:
        WorkspaceError: `source` is no directory, or something cannot be read (kind
            "import.unreadable"; the message names it) and `skip_unreadable` is off.
    """
    rules = IgnoreRules.of_patterns(options.exclude)
    root_fd = open_source(source, avoid)
    with OpenDirectories(root_fd) as directories, ReadAhead() as read_ahead:
        counts = count_source(os.dup(root_fd), rules, avoid)
        work = _Import(
            sink,
            directories,
            allocate_id=allocate_id,
            tree_params=tree_params,
            chunk_params=chunk_params,
            options=options,
            base_store=base_store,
            known=known if known is not None else KnownObjects(),
            avoid=avoid,
            links=counts.links,
            files_total=counts.files,
            progress=progress,
            read_ahead=read_ahead,
        )
        return work.run(rules, base)


class _Import:
    def __init__(
        self,
        sink: ImportSink,
        directories: OpenDirectories,
        *,
        allocate_id: Callable[[], FileId],
        tree_params: TreeParameters,
        chunk_params: ChunkParameters,
        options: ImportOptions,
        base_store: BaseStore | None,
        known: KnownObjects,
        avoid: Inode | None,
        links: dict[Inode, int],
        files_total: int,
        progress: Progress | None,
        read_ahead: ReadAhead,
    ) -> None:
        self._sink = sink
        self._directories = directories
        self._allocate_id = allocate_id
        self._tree_params = tree_params
        self._chunk_params = chunk_params
        self._options = options
        self._base_store = base_store
        self._known = known
        self._avoid = avoid
        self._links = links
        self._linked: dict[Inode, Entry] = {}
        self._shared_ids: dict[FileId, Inode] = {}
        self._progress = progress
        self._read_ahead = read_ahead
        self._files_total = files_total
        self._files = self._dirs = self._bytes = self._excluded = 0
        self._added = self._modified = 0
        self._told_files = self._told_bytes = 0
        self._skipped: list[tuple[bytes, str]] = []
        self._unsteady: list[bytes] = []
        self._removed = 0

    def run(self, rules: IgnoreRules, base: Entry | None) -> ImportedTree:
        root = self._open_frame(b"", b"", ROOT_FILE_ID, rules, base)
        assert root is not None
        stack = [root]
        while True:
            frame = stack[-1]
            for name, found in frame.pending:
                below = self._visit(frame, name, found)
                if below is not None:
                    stack.append(below)
                    break
            else:
                entry = self._close_frame(frame)
                stack.pop()
                if not stack:
                    return self._result(entry)
                self._directories.leave()
                stack[-1].subdirs += 1
                self._dirs += 1
                self._emit(stack[-1], entry, frame.base.entry)

    def _result(self, root: Entry) -> ImportedTree:
        self._tell(is_last=True)
        return ImportedTree(
            root=root,
            changes=ChangeCounts(added=self._added, modified=self._modified, removed=self._removed),
            files=self._files,
            dirs=self._dirs,
            size_bytes=self._bytes,
            excluded=self._excluded,
            skipped=self._skipped,
            unsteady=self._unsteady,
        )

    def _open_frame(
        self, prefix: bytes, name: bytes, file_id: FileId, rules: IgnoreRules, base: Entry | None
    ) -> _Frame | None:
        """Begin the directory that is the deepest open one; None if it cannot be read."""
        fd = self._directories.fd
        try:
            status = os.fstat(fd)
            listing = list_directory(fd, os.fsdecode(prefix), rules)
            xattrs = read_xattrs(fd)
        except OSError as exc:
            self._skip(prefix.rstrip(b"/") or b".", exc)
            return None
        self._excluded += listing.excluded
        if self._read_ahead.is_wanted:
            self._fetch_ahead(fd, listing.names)
        return _Frame(
            prefix=prefix,
            name=name,
            status=status,
            file_id=file_id,
            xattrs=xattrs,
            pending=iter(listing.names),
            rules=listing.rules,
            base=BaseDirectory(base, self._base_store, self._known),
            writer=DirectoryWriter(self._sink, self._tree_params),
        )

    def _fetch_ahead(self, fd: int, names: list[tuple[bytes, os.DirEntry[str]]]) -> None:
        files = [name for name, found in names if found.is_file(follow_symlinks=False)]
        self._read_ahead.files(fd, files)
        self._read_ahead.directories(
            fd, [name for name, found in names if found.is_dir(follow_symlinks=False)]
        )

    def _close_frame(self, frame: _Frame) -> Entry:
        frame.base.finish()
        self._removed += frame.base.removed
        subtree = frame.writer.finish()
        return entry_of(
            frame.name,
            frame.status,
            frame.file_id,
            2 + frame.subdirs,
            subtree,
            xattrs=frame.xattrs,
        )

    def _visit(self, frame: _Frame, name: bytes, found: os.DirEntry[str]) -> _Frame | None:
        """Import one name; return the frame of a directory to descend into."""
        base = frame.base.find(name)
        path = frame.prefix + name
        entry = None
        try:
            if found.is_dir(follow_symlinks=False):
                below = self._enter(frame, name, base)
                if below is not None:
                    return below
            else:
                entry = self._read(path, name, found, base)
        except SourceReadError as exc:
            self._skip(path, exc.cause)
        except OSError as exc:
            self._skip(path, exc)
        if entry is not None:
            self._files += 1
            self._bytes += entry.size_bytes
            self._emit(frame, entry, base)
            self._tell()
        elif base is not None:
            frame.base.note_removed(base)
        return None

    def _enter(self, frame: _Frame, name: bytes, base: Entry | None) -> _Frame | None:
        if inode_of(self._directories.enter(name)) == self._avoid:
            self._directories.leave()
            return None
        file_id = base.file_id if base is not None and base.is_dir else self._allocate_id()
        below = self._open_frame(frame.prefix + name + b"/", name, file_id, frame.rules, base)
        if below is None:
            self._directories.leave()
        return below

    def _emit(self, frame: _Frame, entry: Entry, base: Entry | None) -> None:
        """Add a finished entry to its directory, and count how it differs from the base."""
        if base is None:
            self._added += 1
        elif entry != base and not is_same_directory(base, entry):
            self._modified += 1
        if base is not None and base.is_dir and not entry.is_dir:
            frame.base.note_emptied(base)
        frame.writer.add(entry)

    def _read(self, path: bytes, name: bytes, found: os.DirEntry[str], base: Entry | None) -> Entry:
        """Return the entry of anything but a directory, its content stored."""
        directory_fd = self._directories.fd
        if found.is_file(follow_symlinks=False):
            return self._read_regular(path, name, base)
        status = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFREG:
            return self._read_regular(path, name, base)
        if kind == stat.S_IFDIR:
            raise OSError(errno.EAGAIN, "became a directory while it was read")
        if (again := self._linked_entry(status, name)) is not None:
            return again
        file_id, nlink = self._identity(status, base)
        xattrs = read_xattrs(b"/proc/self/fd/%d/%s" % (directory_fd, name))
        if kind == stat.S_IFLNK:
            target = os.readlink(name, dir_fd=directory_fd)
            entry = entry_of(name, status, file_id, nlink, target, len(target), xattrs)
        elif kind in (stat.S_IFCHR, stat.S_IFBLK):
            entry = entry_of(name, status, file_id, nlink, Device(status.st_rdev), 0, xattrs)
        else:
            entry = entry_of(name, status, file_id, nlink, None, 0, xattrs)
        self._remember_linked(status, entry)
        return entry

    def _read_regular(self, path: bytes, name: bytes, base: Entry | None) -> Entry:
        started_s = time.perf_counter()
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=self._directories.fd)
        try:
            opened_s = time.perf_counter() - started_s
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EAGAIN, "changed its kind while it was read")
            if (again := self._linked_entry(status, name)) is not None:
                return again
            if base is not None:
                if self._is_trusted(base, status):
                    content, size = base.content, base.size_bytes
                    file_id, nlink = self._identity(status, base)
                    return entry_of(name, status, file_id, nlink, content, size, read_xattrs(fd))
                if self._base_store is not None:
                    self._known.learn_content(base, self._base_store)
            got = read_source_file(fd, status, self._sink, self._chunk_params)
            if got.size_bytes <= self._chunk_params.whole_max_bytes:
                self._read_ahead.note(opened_s + got.waited_s)
            if got.is_unsteady:
                self._unsteady.append(path)
            xattrs = read_xattrs(fd)
        finally:
            os.close(fd)
        file_id, nlink = self._identity(got.status, base)
        entry = entry_of(name, got.status, file_id, nlink, got.content, got.size_bytes, xattrs)
        self._remember_linked(got.status, entry)
        return entry

    def _is_trusted(self, base: Entry, status: os.stat_result) -> bool:
        return (
            self._options.trust_mtime
            and base.is_regular
            and base.mtime_ns == status.st_mtime_ns
            and base.size_bytes == status.st_size
            and status.st_nlink == 1
        )

    def _linked_entry(self, status: os.stat_result, name: bytes) -> Entry | None:
        """Return the entry of another name of a file that was imported under its first."""
        if status.st_nlink == 1:
            return None
        first = self._linked.get((status.st_dev, status.st_ino))
        return None if first is None else first._replace(name=name)

    def _remember_linked(self, status: os.stat_result, entry: Entry) -> None:
        if entry.nlink > 1:
            self._linked[status.st_dev, status.st_ino] = entry

    def _identity(self, status: os.stat_result, base: Entry | None) -> tuple[FileId, int]:
        """Return file id and link count for the first name of a file."""
        inode = (status.st_dev, status.st_ino)
        nlink = self._links.get(inode, 1) if status.st_nlink > 1 else 1
        if base is None or stat.S_IFMT(base.mode) != stat.S_IFMT(status.st_mode):
            return self._allocate_id(), nlink
        if base.nlink > 1 and self._shared_ids.setdefault(base.file_id, inode) != inode:
            # Two names of one file in the base are two files now: the first keeps the id.
            return self._allocate_id(), nlink
        return base.file_id, nlink

    def _skip(self, path: bytes, exc: OSError) -> None:
        if exc.errno in _NEVER_SKIPPED:
            raise exc
        reason = exc.strerror or str(exc)
        if exc.errno != errno.ENOENT and not self._options.skip_unreadable:
            raise WorkspaceError(
                f"cannot read {os.fsdecode(path)}: {reason}; make it readable, exclude it, "
                "or leave out all such files with --skip-unreadable",
                kind="import.unreadable",
                path=os.fsdecode(path),
            ) from exc
        self._skipped.append((path, reason))

    def _tell(self, *, is_last: bool = False) -> None:
        if self._progress is None:
            return
        if (
            is_last
            or self._files - self._told_files >= _PROGRESS_FILES
            or self._bytes - self._told_bytes >= _PROGRESS_BYTES
        ):
            self._told_files, self._told_bytes = self._files, self._bytes
            self._progress(self._files, self._bytes, max(self._files_total, self._files))
