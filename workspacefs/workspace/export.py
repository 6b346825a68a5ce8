"""Writing a tree to a directory on disk.

The tree is untrusted, and so is whoever else can write where it goes: each step is one name below
an open directory, nothing is opened through a link, files are made with O_EXCL, and what gives
rights (set-id bits, devices) is dropped unless asked for.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from workspacefs.errors import BusyError, NoSpaceError, WorkspaceError
from workspacefs.objects.entry import Device, Entry
from workspacefs.trees.walk import iter_entries
from workspacefs.workspace.content import iter_content
from workspacefs.workspace.directories import DIRECTORY_FLAGS, OpenDirectories
from workspacefs.workspace.first_names import FirstNames
from workspacefs.workspace.imported import Progress
from workspacefs.workspace.listing import TreeStore

SET_ID_BITS: Final = stat.S_ISUID | stat.S_ISGID
_HOLE_BYTES: Final = 64 * 1024
_ZEROS: Final = bytes(_HOLE_BYTES)
_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
_XATTR_TOO_LARGE: Final = frozenset((errno.ENOSPC, errno.E2BIG, errno.ERANGE))


@dataclass(slots=True)
class ExportResult:
    """What was written, and what could not be written as it was."""

    files: int = 0
    dirs: int = 0
    size_bytes: int = 0
    dropped: list[tuple[bytes, str]] = field(default_factory=list)
    """(path, what is missing there) of set-id bits, devices, owners and xattrs not written."""
    collisions: list[bytes] = field(default_factory=list)
    """Paths that the target cannot tell from a neighbour written before (folded case, Unicode)."""


@dataclass(slots=True)
class _Frame:
    prefix: bytes
    entry: Entry
    rest: Iterator[Entry]


def export_tree(
    root: Entry,
    store: TreeStore,
    target: str | bytes | os.PathLike[str],
    *,
    keep_special: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Write what lies below `root` to the directory `target`.

    Modes, nanosecond times, extended attributes and hard links are kept; owners when we are root;
    long runs of zeros become holes. Nothing is synced to disk.

    Args:
        root: A directory.
        store: Gives nodes and chunks.
        target: Absent (its parent exists) or an empty directory.
        keep_special: Keep set-user-id and set-group-id bits of files, and devices.
        progress: Told how far it is.

    Raises:
        BusyError: `target` is not empty (kind "export.not_empty").
        NoSpaceError: The disk is full; what was written stays.
        IntegrityError: Stored data is damaged; what was written stays.
    """
    with OpenDirectories(_open_target(target)) as directories:
        work = _Export(store, directories, keep_special=keep_special, progress=progress)
        try:
            return work.run(root)
        except OSError as exc:
            raise _failed(work.path, exc) from exc
        finally:
            work.close()


class _Export:
    def __init__(
        self,
        store: TreeStore,
        directories: OpenDirectories,
        *,
        keep_special: bool,
        progress: Progress | None,
    ) -> None:
        self._store = store
        self._directories = directories
        self._keep_special = keep_special
        self._progress = progress
        self._is_root = os.geteuid() == 0
        self._total = 0
        self._result = ExportResult()
        self.path = b""
        """What is being written; for messages."""
        self._links = FirstNames(directories.fd)

    def run(self, root: Entry) -> ExportResult:
        self._total = root.subtree.totals.files
        stack = [_Frame(b"", root, iter_entries(root.subtree, self._store))]
        while True:
            frame = stack[-1]
            for entry in frame.rest:
                self.path = frame.prefix + entry.name
                if self._write(entry):
                    rest = iter_entries(entry.subtree, self._store)
                    stack.append(_Frame(self.path + b"/", entry, rest))
                    break
            else:
                # Last, because making and removing names changes a directory's time.
                self.path = frame.prefix
                self._set_attributes(self._directories.fd, frame.entry)
                stack.pop()
                if not stack:
                    self._tell(is_last=True)
                    return self._result
                self._directories.leave()

    def close(self) -> None:
        """Let go of what it holds open itself."""
        self._links.close()

    def _write(self, entry: Entry) -> bool:
        """Write one entry; True: it is a directory, entered, to be filled."""
        above = self._directories.fd
        if entry.is_dir:
            try:
                os.mkdir(entry.name, 0o700, dir_fd=above)
            except FileExistsError:
                self._result.collisions.append(self.path)
                return False
            self._directories.enter(entry.name)
            self._result.dirs += 1
            return True
        try:
            if entry.nlink == 1 or not self._links.link(entry, above):
                if not self._make(entry, above):
                    return False
                if entry.nlink > 1:
                    self._links.remember(entry, self.path, above)
        except FileExistsError:
            self._result.collisions.append(self.path)
            return False
        self._count(entry)
        return False

    def _count(self, entry: Entry) -> None:
        self._result.files += 1
        self._result.size_bytes += entry.size_bytes
        self._tell()

    def _make(self, entry: Entry, above: int) -> bool:
        """Make a new file of any kind but a directory; False: it was dropped."""
        match stat.S_IFMT(entry.mode):
            case stat.S_IFREG:
                self._make_file(entry, above)
                return True
            case stat.S_IFLNK:
                assert isinstance(entry.content, bytes)
                os.symlink(entry.content, entry.name, dir_fd=above)
            case stat.S_IFIFO | stat.S_IFSOCK as kind:
                os.mknod(entry.name, kind | 0o600, dir_fd=above)
            case kind:
                if not self._keep_special:
                    self._drop("device")
                    return False
                assert isinstance(entry.content, Device)
                try:
                    os.mknod(entry.name, kind | 0o600, entry.content.number, dir_fd=above)
                except PermissionError:
                    self._drop("device")
                    return False
        self._set_special_attributes(entry, above)
        return True

    def _make_file(self, entry: Entry, above: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(entry.name, flags, 0o600, dir_fd=above)
        try:
            written = 0
            for chunk in iter_content(entry, self._store):
                _write_chunk(fd, chunk)
                written += len(chunk)
            if written >= _HOLE_BYTES:
                os.ftruncate(fd, written)  # a hole at the end was only skipped
            self._set_attributes(fd, entry)
        finally:
            os.close(fd)

    def _set_attributes(self, fd: int, entry: Entry) -> None:
        """Set owner, mode, xattrs and times of an open file or directory, in this order."""
        if self._is_root:
            os.fchown(fd, entry.uid, entry.gid)
        mode = stat.S_IMODE(entry.mode)
        if mode & SET_ID_BITS and not entry.is_dir and not self._keep_special:
            self._drop("set-id bits")
            mode &= ~SET_ID_BITS
        os.fchmod(fd, mode)
        for name, value in entry.xattrs:
            try:
                os.setxattr(fd, name, value)
            except OSError as exc:
                self._drop_xattr(name, value, exc)
        os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))

    def _set_special_attributes(self, entry: Entry, above: int) -> None:
        """Set attributes of what cannot be opened; never through a link."""
        name = entry.name
        if self._is_root:
            os.chown(name, entry.uid, entry.gid, dir_fd=above, follow_symlinks=False)
        if not entry.is_symlink:
            # Linux has no lchmod. We made the name in a directory that is ours; if it was swapped
            # for a link meanwhile, this fails.
            path_fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            try:
                if stat.S_IFMT(os.fstat(path_fd).st_mode) == stat.S_IFMT(entry.mode):
                    mode = stat.S_IMODE(entry.mode) & ~SET_ID_BITS
                    Path(f"/proc/self/fd/{path_fd}").chmod(mode)
            finally:
                os.close(path_fd)
        for xattr, value in entry.xattrs:
            try:
                path = b"/proc/self/fd/%d/%s" % (above, name)
                os.setxattr(path, xattr, value, follow_symlinks=False)
            except OSError as exc:
                self._drop_xattr(xattr, value, exc)
        os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=above, follow_symlinks=False)

    def _drop(self, what: str) -> None:
        self._result.dropped.append((self.path, what))

    def _drop_xattr(self, name: bytes, value: bytes, exc: OSError) -> None:
        """List an attribute as dropped, unless the reason is that the disk is full."""
        if exc.errno in _FULL and self._is_disk_full(exc, len(value)):
            raise exc
        reason = exc.strerror
        if exc.errno in _XATTR_TOO_LARGE:
            reason = f"the target cannot hold its {len(value):,} bytes"
        self._drop(f"attribute {name.decode('utf-8', 'backslashreplace')} ({reason})")

    def _is_disk_full(self, exc: OSError, size_bytes: int) -> bool:
        # ext4 answers ENOSPC also for attributes beyond one block per file, on an empty disk.
        disk = os.statvfs(self._directories.fd)
        free_bytes = disk.f_bavail * disk.f_frsize
        return exc.errno != errno.ENOSPC or free_bytes < size_bytes + disk.f_bsize

    def _tell(self, *, is_last: bool = False) -> None:
        if self._progress is not None and (is_last or self._result.files % 256 == 0):
            self._progress(self._result.files, self._result.size_bytes, self._total)


def _write_chunk(fd: int, chunk: bytes) -> None:
    """Append a chunk; blocks of zeros are skipped, which leaves holes."""
    if len(chunk) < _HOLE_BYTES or (chunk[0] and chunk[-1]):
        _write_all(fd, chunk)
        return
    view = memoryview(chunk)
    start = 0  # of what is not written yet
    for at in range(0, len(chunk), _HOLE_BYTES):
        if chunk[at] == 0 and view[at : at + _HOLE_BYTES] == _ZEROS:
            _write_all(fd, view[start:at])
            os.lseek(fd, _HOLE_BYTES, os.SEEK_CUR)
            start = at + _HOLE_BYTES
    _write_all(fd, view[start:])


def _write_all(fd: int, data: bytes | memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _open_target(target: str | bytes | os.PathLike[str]) -> int:
    shown = os.fsdecode(target)
    try:
        try:
            Path(shown).mkdir(0o700)
        except FileExistsError:
            pass
        # The target itself may be a link: the user named it.
        fd = os.open(target, DIRECTORY_FLAGS & ~os.O_NOFOLLOW)
    except OSError as exc:
        raise WorkspaceError(
            f"cannot export to {shown}: {exc.strerror}; give a directory that is empty or can "
            "be made",
            kind="export.target",
            path=shown,
        ) from exc
    with os.scandir(fd) as scan:
        is_empty = next(scan, None) is None
    if not is_empty:
        os.close(fd)
        raise BusyError(
            f"{shown} is not empty; export to a new directory", kind="export.not_empty", path=shown
        )
    return fd


def _failed(path: bytes, exc: OSError) -> WorkspaceError:
    shown = os.fsdecode(path)
    if exc.errno in _FULL:
        return NoSpaceError(f"no space to write {shown}: {exc.strerror}; free some and export anew")
    return WorkspaceError(f"cannot write {shown}: {exc.strerror}", kind="export.failed", path=shown)
