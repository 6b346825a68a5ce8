"""The rows of a layer: an LMDB database with its own syncing off.

What a committed transaction holds survives kill -9 of the process: LMDB writes pages and then its
meta page with pwrite, and the page cache outlives us. Power loss is the journal's business.
This module must not know what the rows say.

Source: LMDB documentation of MDB_NOSYNC and MDB_NOTLS.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import lmdb

from workspacefs.errors import IntegrityError, NoSpaceError, WorkspaceError
from workspacefs.ids import FileId
from workspacefs.layers.disk import sync_file
from workspacefs.layers.rows import decode_name, is_inode_key, name_key

MAP_BYTES: Final = 64 << 30
"""Address space, not memory or disk: some 200 million rows."""
_FULL_BELOW_BYTES: Final = 64 * 1024
"""With less than this free, a transaction has failed for want of space."""


class Database:
    """Rows by key. For one thread, but a Snapshot may be read from any one other thread."""

    def __init__(self, directory: Path, *, is_frozen: bool = False) -> None:
        """Open the rows in `directory`; frozen ones, which nobody changes, for reading alone.

        Any number of processes may have frozen rows open: without a writer they need none of the
        126 places that the lock file has for readers.
        """
        self._directory = directory
        self._is_frozen = is_frozen
        self.dirty_keys: set[bytes] = set()
        """Keys changed since the journal was last written."""
        try:
            self._env = lmdb.open(
                str(directory),
                map_size=MAP_BYTES,
                sync=False,
                metasync=False,
                max_spare_txns=4,
                mode=0o600,
                readonly=is_frozen,
                lock=not is_frozen,
            )
        except lmdb.Error as exc:
            raise _from_lmdb(exc, directory) from exc

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

    def commit(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Put rows, or delete those of value None, as one transaction; the last of a key counts.

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
            raise _from_lmdb(exc, self._directory) from exc
        add = self.dirty_keys.add
        for key, _ in rows:
            add(key)

    def snapshot(self) -> Snapshot:
        """Return a view of the rows as they are now; close it soon, it keeps old pages alive."""
        return Snapshot(self._env)

    def count(self) -> int:
        """Return the number of rows of all kinds."""
        entries = self._env.stat()["entries"]
        assert isinstance(entries, int)
        return entries

    def sync(self) -> None:
        """Put the database itself on disk."""
        if self._is_frozen:
            # LMDB writes with pwrite(2): what another process wrote is in the same page cache.
            sync_file(self._directory / "data.mdb")
            return
        try:
            self._env.sync(True)
        except lmdb.Error as exc:
            raise _from_lmdb(exc, self._directory) from exc

    def close(self) -> None:
        """Close it; nothing is synced."""
        self._env.close()


class Snapshot:
    """The rows at one moment; readable from one thread at a time, whichever."""

    def __init__(self, env: lmdb.Environment) -> None:
        self._txn = env.begin()

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


def iter_inode_rows(snapshot: Snapshot) -> Iterator[tuple[bytes, bytes]]:
    """Yield the inode rows, in order of file id."""
    for key, value in snapshot.iter_rows(b"I"):
        if is_inode_key(key):
            yield key, value


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
