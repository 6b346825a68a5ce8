"""One layer: a database of rows, an append-only segment, and own files, in one directory.

    data.mdb lock.mdb   rows (see rows.py); LMDB with its own syncing off
    segment             bodies of small files, one run each
    files/<file id>     sparse bodies of large or rewritten files
    journal             what power loss must not take (see journal.py)

What a committed transaction holds survives kill -9 of the process: LMDB writes pages and then its
meta page with pwrite, and the page cache outlives us. Power loss is the journal's business.
One process opens a layer for writing, once; never across a fork. Methods are for one thread, but
a Snapshot may be read from any one other thread.

Source: LMDB documentation of MDB_NOSYNC and MDB_NOTLS; pwrite(2); fallocate(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

import lmdb

from workspacefs.errors import IntegrityError, NoSpaceError, WorkspaceError
from workspacefs.ids import FileId
from workspacefs.layers.rows import decode_name, inode_key, name_key

_MAP_BYTES: Final = 64 << 30
"""Address space, not memory or disk: some 200 million rows."""
_OPEN_FILES_MAX: Final = 256
_DISK_BLOCK_BYTES: Final = 4096
_FULL_BELOW_BYTES: Final = 64 * 1024
"""With less than this free, a database transaction has failed for want of space."""
_BALLAST_BYTES: Final = 4 << 20
"""Held back so that deleting still works on a full disk: a delete writes database pages too."""


class Layer:
    """A layer that is open in this process."""

    def __init__(self, directory: Path, *, number: int) -> None:
        self.directory = directory
        self.number = number
        self.dirty_keys: set[bytes] = set()
        """Keys changed since the journal was last written."""
        self.dirty_files: set[FileId] = set()
        """Own files written since the journal was last written."""
        self.segment_is_dirty = False
        self.names_are_dirty = not (directory / "segment").exists()
        """Whether files were created since the journal was last written."""
        self.readers = 0
        """Views of rows that are being read beside us: what they name is not buried yet."""
        self._to_bury: list[FileId | tuple[int, int]] = []
        self.doomed: list[FileId | tuple[int, int]] = []
        """Own files, and runs as (offset, length), that no row names any more. They go when the
        journal says so too: power loss may bring back the rows that named them."""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            (directory / "files").mkdir(mode=0o700, exist_ok=True)
            self._env = lmdb.open(
                str(directory),
                map_size=_MAP_BYTES,
                sync=False,
                metasync=False,
                max_spare_txns=4,
                mode=0o600,
            )
            self._segment = os.open(
                directory / "segment", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except lmdb.Error as exc:
            raise _from_lmdb(exc, directory) from exc
        except OSError as exc:
            raise from_os_error(exc, f"layer {directory} cannot be opened") from exc
        self._segment_end = os.fstat(self._segment).st_size
        self._files: OrderedDict[FileId, int] = OrderedDict()
        self._files_lock = threading.Lock()
        self._dead_starts: dict[int, int] = {}
        """End of each dead stretch of the segment, by its start; and the other way round."""
        self._dead_ends: dict[int, int] = {}

    @property
    def is_dirty(self) -> bool:
        """Whether power loss would take something that was done in this layer."""
        return bool(self.dirty_keys or self.dirty_files or self.segment_is_dirty or self.doomed)

    # -- rows ------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a row, or None."""
        value = self._env.begin().get(key)
        assert value is None or type(value) is bytes
        return value

    def find_name(self, parent_id: int, name: bytes) -> bytes | None:
        """Return the raw name row (WHITEOUT hides what is beneath), or None for silence."""
        return self.get(name_key(parent_id, name))

    def names_after(
        self, parent_id: int, after: bytes, limit: int
    ) -> list[tuple[bytes, FileId | None]]:
        """Return up to `limit` name rows of a directory past `after`, in order of name."""
        with self._env.begin() as txn:
            return list(_iter_names(txn, parent_id, after, limit))

    def keys_after(self, after: bytes, prefix: bytes, limit: int) -> list[bytes]:
        """Return up to `limit` keys greater than `after` that begin with `prefix`, in order."""
        found: list[bytes] = []
        with self._env.begin() as txn, txn.cursor() as cursor:
            if not cursor.set_range(after + b"\0"):
                return found
            for key in cursor.iternext(values=False):
                assert type(key) is bytes  # buffers are off
                if len(found) == limit or not key.startswith(prefix):
                    break
                found.append(key)
        return found

    def has_rows(self, prefix: bytes) -> bool:
        """Tell whether any row's key begins with `prefix`."""
        return bool(self.keys_after(prefix, prefix, 1))

    def commit_rows(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Put rows, or delete those of value None, as one transaction; the last of a key counts.

        The same as a Transaction, in half the time: this runs for every request that changes
        anything.

        Raises:
            NoSpaceError: The disk is full; nothing was changed.
        """
        try:
            with self._env.begin(write=True) as txn:
                for key, value in rows:
                    if value is None:
                        txn.delete(key)
                    else:
                        txn.put(key, value)
        except lmdb.Error as exc:
            raise _from_lmdb(exc, self.directory) from exc
        add = self.dirty_keys.add
        for key, _ in rows:
            add(key)

    def begin(self) -> Transaction:
        """Return a write transaction; at most one is open at a time, and none across an await."""
        return Transaction(self)

    def snapshot(self) -> Snapshot:
        """Return a view of the rows as they are now; close it soon, it keeps old pages alive."""
        return Snapshot(self._env, self.number)

    # -- segment ---------------------------------------------------------------------------

    @property
    def segment_fd(self) -> int:
        """Descriptor of the segment; it stays ours."""
        return self._segment

    @property
    def segment_end(self) -> int:
        """Where the next run begins, bytes."""
        return self._segment_end

    def append_run(self, data: bytes | memoryview, *, capacity_bytes: int = 0) -> int:
        """Write `data` at the end of the segment, leave room up to `capacity_bytes` for it to grow,
        and return its offset.
        """
        offset = self._segment_end
        self.write_segment(data, offset)
        if capacity_bytes > len(data):
            # The file's length must say so too: after a crash the end is found by it.
            try:
                os.ftruncate(self._segment, offset + capacity_bytes)
            except OSError as exc:
                raise from_os_error(exc, "a file body cannot be written") from exc
            self._segment_end = offset + capacity_bytes
        return offset

    def write_segment(self, data: bytes | memoryview, offset: int) -> None:
        """Write inside a run, or past the end when the caller extends the last run."""
        _write_all(self._segment, data, offset, end=self._segment_end)
        self.segment_is_dirty = True
        self._segment_end = max(self._segment_end, offset + len(data))

    def read_segment(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes of the segment.

        Raises:
            IntegrityError: The segment is shorter.
        """
        data = os.pread(self._segment, length, offset)
        if len(data) != length:
            raise IntegrityError(
                f"segment of layer {self.directory} is cut off at {offset + len(data)}",
                kind="layer.segment_short",
            )
        return data

    # -- own files -------------------------------------------------------------------------

    def own_path(self, file_id: FileId) -> Path:
        """Return where the own file of `file_id` is, whether or not it exists."""
        return self.directory / "files" / f"{file_id:016x}"

    def create_own(self, file_id: FileId) -> None:
        """Create an own file, empty; whatever a crash left under its name goes."""
        with self._files_lock, _explained("a file cannot be created"):
            os.ftruncate(self._own_fd(file_id, create=True), 0)
        self.dirty_files.add(file_id)
        self.names_are_dirty = True

    def own_blocks(self, file_id: FileId) -> int:
        """Return what an own file takes on disk, in units of 512 bytes."""
        with self._files_lock:
            return os.fstat(self._own_fd(file_id)).st_blocks

    def dup_own(self, file_id: FileId) -> int:
        """Return a descriptor of an own file that is the caller's to close."""
        with self._files_lock:
            return os.dup(self._own_fd(file_id))

    def read_own(self, file_id: FileId, offset: int, length: int) -> bytes:
        """Return up to `length` bytes of an own file; fewer at its end. From any thread."""
        with self._files_lock:
            return os.pread(self._own_fd(file_id), length, offset)

    def write_own(self, file_id: FileId, data: bytes | memoryview, offset: int) -> None:
        """Write into an own file, growing it when need be."""
        with self._files_lock:
            fd = self._own_fd(file_id)
            _write_all(fd, data, offset, end=os.fstat(fd).st_size)
        self.dirty_files.add(file_id)

    def truncate_own(self, file_id: FileId, size_bytes: int) -> None:
        """Set the length of an own file."""
        with self._files_lock, _explained("a file cannot be resized"):
            os.ftruncate(self._own_fd(file_id), size_bytes)
        self.dirty_files.add(file_id)

    def bury(self, doomed: list[FileId | tuple[int, int]]) -> None:
        """Free the space of bodies whose end is durable; see `doomed`. While there are readers it
        only takes note. On one thread at a time, whichever: no row that can be read from now on
        names them.
        """
        self._to_bury += doomed
        if self.readers:
            return
        doomed, self._to_bury = self._to_bury, []
        for body in doomed:
            if isinstance(body, tuple):
                self._bury_run(*body)
                continue
            with self._files_lock:
                fd = self._files.pop(body, None)
                if fd is not None:
                    os.close(fd)
            self.own_path(body).unlink(missing_ok=True)
            self.dirty_files.discard(body)

    def _bury_run(self, offset: int, length: int) -> None:
        # The disk takes back whole blocks only, and small runs share them: dead neighbours are
        # joined, and a block goes when the last run in it does.
        start, end = offset, offset + length
        if start in self._dead_ends:
            start = self._dead_ends.pop(start)
        if end in self._dead_starts:
            end = self._dead_starts.pop(end)
        self._dead_starts[start] = end
        self._dead_ends[end] = start
        first = max(start, offset - _DISK_BLOCK_BYTES)
        last = min(end, offset + length + _DISK_BLOCK_BYTES)
        _punch(self._segment, first, last - first)

    def distrust_bodies(self) -> None:
        """Have the next sync put every body on disk: after a crash nobody knows which ones are."""
        self.segment_is_dirty = self.names_are_dirty = True
        for path in (self.directory / "files").iterdir():
            self.dirty_files.add(FileId(int(path.name, 16)))

    def sweep_own_files(self) -> int:
        """Remove own files that no row names: what a crash left. Return how many."""
        removed = 0
        for path in (self.directory / "files").iterdir():
            if self.get(inode_key(int(path.name, 16))) is None:
                path.unlink()
                removed += 1
        return removed

    # -- the whole -------------------------------------------------------------------------

    def ensure_ballast(self) -> None:
        """Hold back disk space for deletes on a full disk, if there is room for it now."""
        path = self.directory / "ballast"
        if path.exists():
            return
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, _BALLAST_BYTES)
        except OSError as exc:
            path.unlink()
            if exc.errno != errno.ENOSPC:
                raise from_os_error(exc, f"{path} cannot be written") from exc
        finally:
            os.close(fd)

    def drop_ballast(self) -> bool:
        """Free the space that was held back; tell whether there was any."""
        path = self.directory / "ballast"
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    def free_bytes(self) -> int:
        """Return the space left on this layer's disk, bytes."""
        stats = os.fstatvfs(self._segment)
        return stats.f_bavail * stats.f_frsize

    def row_count(self) -> int:
        """Return the number of rows of all kinds."""
        entries = self._env.stat()["entries"]
        assert isinstance(entries, int)
        return entries

    def sync_database(self) -> None:
        """Put the database itself on disk (not the segment, not own files)."""
        try:
            self._env.sync(True)
        except lmdb.Error as exc:
            raise _from_lmdb(exc, self.directory) from exc

    def _own_fd(self, file_id: FileId, *, create: bool = False) -> int:
        # The lock is held from here until the descriptor has been used: another thread may push
        # it out of the cache, and its number would soon mean another file.
        fd = self._files.get(file_id)
        if fd is not None:
            self._files.move_to_end(file_id)
            return fd
        path = self.own_path(file_id)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            fd = os.open(path, flags, 0o600)
        except FileNotFoundError as exc:
            raise IntegrityError(
                f"own file {path} is missing", kind="layer.own_file_missing"
            ) from exc
        except OSError as exc:
            raise from_os_error(exc, f"own file {path} cannot be opened") from exc
        if len(self._files) >= _OPEN_FILES_MAX:
            os.close(self._files.popitem(last=False)[1])
        self._files[file_id] = fd
        return fd

    def close(self) -> None:
        """Close every descriptor; nothing is synced."""
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()
        os.close(self._segment)
        self._env.close()


class Transaction:
    """Rows changed as one step: all are there after commit(), or none.

    Use as a context manager; leaving it with an error aborts.

    Raises:
        NoSpaceError: From commit() (or put) when the disk is full; nothing was changed.
    """

    __slots__ = ("_keys", "_layer", "_txn")

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._keys: list[bytes] = []
        try:
            self._txn = layer._env.begin(write=True)  # one noun in two parts
        except lmdb.Error as exc:
            raise _from_lmdb(exc, layer.directory) from exc

    def put(self, key: bytes, value: bytes) -> None:
        """Set a row."""
        try:
            self._txn.put(key, value)
        except lmdb.Error as exc:
            raise _from_lmdb(exc, self._layer.directory) from exc
        self._keys.append(key)

    def delete(self, key: bytes) -> None:
        """Remove a row, if it is there."""
        try:
            self._txn.delete(key)
        except lmdb.Error as exc:
            raise _from_lmdb(exc, self._layer.directory) from exc
        self._keys.append(key)

    def get(self, key: bytes) -> bytes | None:
        """Return a row as this transaction sees it, or None."""
        value = self._txn.get(key)
        assert value is None or type(value) is bytes
        return value

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._txn.abort()
            return
        try:
            self._txn.commit()
        except lmdb.Error as exc:
            raise _from_lmdb(exc, self._layer.directory) from exc
        self._layer.dirty_keys.update(self._keys)


class Snapshot:
    """The rows of a layer at one moment; readable from one thread at a time, whichever."""

    def __init__(self, env: lmdb.Environment, number: int) -> None:
        self._txn = env.begin()
        self.number = number

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a row, or None."""
        value = self._txn.get(key)
        assert value is None or type(value) is bytes
        return value

    def iter_names(self, parent_id: int) -> Iterator[tuple[bytes, FileId | None]]:
        """Yield (name, file id or None for a whiteout) of a directory, in order of name."""
        return _iter_names(self._txn, parent_id, b"", None)

    def iter_rows(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield all rows whose key begins with `prefix`, in order of key."""
        with self._txn.cursor() as cursor:
            if cursor.set_range(prefix) if prefix else cursor.first():
                for key, value in cursor:
                    assert type(key) is bytes and type(value) is bytes  # buffers are off
                    if not key.startswith(prefix):
                        return
                    yield key, value

    def close(self) -> None:
        """Let old pages be reused."""
        self._txn.abort()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _iter_names(
    txn: lmdb.Transaction, parent_id: int, after: bytes, limit: int | None
) -> Iterator[tuple[bytes, FileId | None]]:
    prefix = name_key(parent_id, b"")
    skip = len(prefix)
    start = name_key(parent_id, after) + b"\0" if after else prefix
    with txn.cursor() as cursor:
        if not cursor.set_range(start):
            return
        for count, (key, value) in enumerate(cursor):
            assert type(key) is bytes and type(value) is bytes  # buffers are off
            if count == limit or not key.startswith(prefix):
                return
            yield key[skip:], decode_name(value)


def _write_all(fd: int, data: bytes | memoryview, offset: int, *, end: int) -> None:
    """Write all of `data`, or give back what a full disk took of it past `end` and fail."""
    try:
        written = os.pwrite(fd, data, offset)
        while written < len(data):
            written += os.pwrite(fd, memoryview(data)[written:], offset + written)
    except OSError as exc:
        # No row names the part that was taken, and freeing other space needs some of it.
        if os.fstat(fd).st_size > end:
            os.ftruncate(fd, end)
        raise from_os_error(exc, "a file body cannot be written") from exc


_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_PUNCH_HOLE_KEEP_SIZE: Final = 0x02 | 0x01
"""Source: linux/falloc.h, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE."""


def _punch(fd: int, offset: int, length: int) -> None:
    # The result does not matter: a file system without holes only keeps the space for longer.
    _libc.fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, offset, length)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise from_os_error(exc, what) from exc


def from_os_error(exc: OSError, what: str) -> WorkspaceError:
    """Return our error for a failed call on the local disk."""
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(f"{what}: the local disk is full; free space and try again")
    error = WorkspaceError(f"{what}: {exc.strerror}", kind="layer.io")
    error.errno = exc.errno or errno.EIO
    return error


def _is_full(directory: Path) -> bool:
    stats = os.statvfs(directory)
    return stats.f_bavail * stats.f_frsize < _FULL_BELOW_BYTES


def _from_lmdb(exc: lmdb.Error, directory: Path) -> WorkspaceError:
    # LMDB (0.9.33) calls a write that a full disk cut short EIO, so look at the disk as well.
    is_full = isinstance(exc, lmdb.DiskError | lmdb.MapFullError) or _is_full(directory)
    if is_full:
        return NoSpaceError(f"the disk of {directory} is full; free space and try again")
    if isinstance(exc, lmdb.CorruptedError | lmdb.InvalidError | lmdb.PageNotFoundError):
        return IntegrityError(
            f"the database of layer {directory} is damaged", kind="layer.database_damaged"
        )
    return WorkspaceError(f"the database of layer {directory} failed: {exc}", kind="layer.database")
