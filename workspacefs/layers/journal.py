"""The journal of a layer: what power loss must not take.

LMDB runs without syncing, so after power loss its file is worth nothing. The journal holds the
same rows as an append-only log of batches; a batch counts when its checksum is right, and batches
after a torn one do not count. A sync writes the rows that changed since the last one as a batch,
after the bodies that they name are on disk: what comes back is an atomic prefix of what was done,
and never less than the last sync returned for.

    header: 8 bytes "WSJRNL1\\n"
    batch:  u32 length, u32 more, u64 xxh3 of payload, payload
            more is 1 when the next batch belongs to the same sync, else 0
    payload: msgpack array: key, value or nil (deleted), key, value ...

The boot id of the machine tells power loss from process death: same boot, the page cache lived,
and LMDB is complete. Once closed cleanly, LMDB is synced and stands on any boot.

Source: xxHash specification (XXH3-64); fdatasync(2); random(4) for boot_id.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import lmdb
import msgpack
import xxhash

from workspacefs.errors import IntegrityError
from workspacefs.ids import FileId
from workspacefs.layers.database import MAP_BYTES, Snapshot
from workspacefs.layers.disk import from_os_error
from workspacefs.layers.layer import Layer

_MAGIC: Final = b"WSJRNL1\n"
_BATCH = struct.Struct("<IIQ")
_REWRITE_FACTOR: Final = 3
REWRITE_MIN_BYTES: Final = 32 << 20
_BATCH_ROWS: Final = 20_000
_CLEAN: Final = "clean"


class Journal:
    """Makes a layer's state durable. `prepare` on the layer's thread, `write` on any one thread."""

    def __init__(self, layer: Layer, *, is_complete: bool) -> None:
        """Open the journal of a layer; `is_complete` is what recover() said of it."""
        self._layer = layer
        self.is_complete = is_complete
        self._path = layer.directory / "journal"
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._end = _good_end(self._fd)
        if self._end == 0:
            self.is_complete = False  # it is damaged: the next sync writes it anew
        # What a crash left past the end must not stand behind the next batch.
        os.ftruncate(self._fd, self._end)
        self._rewritten_bytes = self._end

    def prepare(self) -> PendingSync:
        """Take what must become durable now. No other change may come between its lines."""
        layer = self._layer
        pending = PendingSync(
            snapshot=layer.snapshot(),
            keys=layer.rows.dirty_keys,
            files=layer.own.dirty,
            segment_is_dirty=layer.segment.is_dirty,
            names_are_dirty=layer.own.names_are_dirty,
            doomed=layer.doomed,
        )
        layer.rows.dirty_keys = set()
        layer.own.dirty = set()
        layer.segment.is_dirty = layer.own.names_are_dirty = False
        layer.doomed = []
        return pending

    def write(self, pending: PendingSync) -> None:
        """Put a pending sync on disk. On return it survives power loss.

        The caller then has the layer bury `pending.doomed`; until then it buries nothing else, and
        does not close the layer.

        Raises:
            NoSpaceError: The disk is full; `pending` must be given back (restore()).
        """
        try:
            self._sync_bodies(pending)
            if self._wants_rewrite(pending):
                self._rewrite(pending.snapshot)
                return
            wrote = False
            for batch in _batches((key, pending.snapshot.get(key)) for key in pending.keys):
                self._append(batch)
                wrote = True
            if wrote:
                os.fdatasync(self._fd)
        except OSError as exc:
            # After a failed sync nobody knows what is on disk: fsync(2), errors. Start anew.
            self.is_complete = False
            raise from_os_error(exc, f"{self._path} cannot be written") from exc
        finally:
            pending.close()

    def restore(self, pending: PendingSync) -> None:
        """Give back what did not become durable, so that the next sync takes it; harmless for
        what did. Also ends a pending sync that was never written.
        """
        pending.close()
        if pending.is_restored:
            return
        pending.is_restored = True
        self._layer.rows.dirty_keys |= pending.keys
        self._layer.own.dirty |= pending.files
        self._layer.doomed = pending.doomed + self._layer.doomed
        self._layer.segment.is_dirty |= pending.segment_is_dirty
        self._layer.own.names_are_dirty |= pending.names_are_dirty

    def close(self) -> None:
        """Close the file; nothing is synced."""
        os.close(self._fd)

    def _sync_bodies(self, pending: PendingSync) -> None:
        layer = self._layer
        if pending.segment_is_dirty:
            os.fdatasync(layer.segment.fd)
        for file_id in pending.files:
            # One at a time: a program may write more files than a process may have open.
            _sync_own_file(layer, file_id)
        if pending.names_are_dirty:
            sync_directory(layer.directory / "files")
            sync_directory(layer.directory)

    def _wants_rewrite(self, pending: PendingSync) -> bool:
        if not self.is_complete:
            return True
        limit = max(REWRITE_MIN_BYTES, _REWRITE_FACTOR * self._rewritten_bytes)
        return self._end > limit and bool(pending.keys)

    def _append(self, batch: bytes) -> None:
        written = os.pwrite(self._fd, batch, self._end)
        while written < len(batch):
            written += os.pwrite(self._fd, memoryview(batch)[written:], self._end + written)
        self._end += len(batch)

    def _rewrite(self, snapshot: Snapshot) -> None:
        # All rows go to a new file which then takes the place of the old one: a crash leaves
        # either, whole.
        temporary = self._path.with_suffix(".new")
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        old_fd, old_end, self._fd, self._end = self._fd, self._end, fd, len(_MAGIC)
        try:
            os.pwrite(fd, _MAGIC, 0)
            for batch in _batches(snapshot.iter_rows()):
                self._append(batch)
            os.fdatasync(fd)
            temporary.replace(self._path)
        except BaseException:
            self._fd, self._end = old_fd, old_end
            os.close(fd)
            temporary.unlink(missing_ok=True)
            raise
        os.close(old_fd)
        sync_directory(self._path.parent)
        self._rewritten_bytes = self._end
        self.is_complete = True


class PendingSync:
    """What one sync has to put on disk; holds a snapshot until closed."""

    def __init__(
        self,
        *,
        snapshot: Snapshot,
        keys: set[bytes],
        files: set[FileId],
        segment_is_dirty: bool,
        names_are_dirty: bool,
        doomed: list[FileId | tuple[int, int]],
    ) -> None:
        self.snapshot = snapshot
        self.keys = keys
        self.files = files
        self.segment_is_dirty = segment_is_dirty
        self.names_are_dirty = names_are_dirty
        self.doomed = doomed
        self.is_restored = False
        self._is_closed = False

    def close(self) -> None:
        """Give up the snapshot; safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            self.snapshot.close()


@dataclass(frozen=True, slots=True)
class Recovery:
    """What recover() found."""

    lost_power: bool
    """The rows were rebuilt: they are those of the last sync."""
    journal_is_complete: bool
    """Every row is in the journal, and every body on disk. After kill -9 some may lack, and nobody
    knows which."""
    torn_bytes: int = 0
    """Length of what stood in the journal past its last whole sync: of one that was under way."""


def recover(directory: Path, *, boot_id: str, is_frozen: bool = False) -> Recovery:
    """Rebuild a layer's rows from its journal if power was lost since they were written.

    Must run before the layer is opened. Afterwards the layer belongs to this boot. A layer that is
    not there yet is begun: it survives power loss from then on.

    Args:
        directory: The layer's.
        boot_id: Of this boot of the machine.
        is_frozen: Nobody writes to it any more, and other processes may have it open: what is clean
            stays so.

    Raises:
        IntegrityError: The rows are needed and the journal is missing or has no good header.
    """
    mark = directory / "boot"
    journal = directory / "journal"
    if not mark.exists():
        _begin(directory, journal)
        _write_mark(mark, boot_id)
        return Recovery(lost_power=False, journal_is_complete=True)
    with _alone(directory):
        last = mark.read_text()
        lost = last not in (boot_id, _CLEAN)
        torn_bytes = _rebuild(directory, journal) if lost else 0
        if last != boot_id and not (is_frozen and last == _CLEAN):
            _write_mark(mark, boot_id)
    return Recovery(lost, journal_is_complete=lost or last == _CLEAN, torn_bytes=torn_bytes)


def _begin(directory: Path, journal: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not journal.exists():
        temporary = journal.with_suffix(".new")
        with temporary.open("wb") as file:
            file.write(_MAGIC)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(journal)
    sync_directory(directory)
    sync_directory(directory.parent)


def _rebuild(directory: Path, journal: Path) -> int:
    """Make the database anew from the journal; return how many bytes of that were torn."""
    if not journal.exists():
        raise IntegrityError(
            f"layer {directory} needs its journal, which is missing", kind="journal.missing"
        )
    with journal.open("rb") as file:
        end = _good_end(file.fileno())
        if end == 0:
            raise IntegrityError(
                f"layer {directory} needs its journal, which is damaged", kind="journal.damaged"
            )
        for name in ("data.mdb", "lock.mdb"):
            (directory / name).unlink(missing_ok=True)
        env = lmdb.open(str(directory), map_size=MAP_BYTES, sync=False, mode=0o600)
        for _, payloads in _iter_syncs(file.fileno()):
            with env.begin(write=True) as txn:
                for payload in payloads:
                    _replay(txn, msgpack.unpackb(payload))
        env.sync(True)
        env.close()
        return os.fstat(file.fileno()).st_size - end


def _replay(txn: lmdb.Transaction, flat: list[bytes | None]) -> None:
    for key, value in zip(flat[::2], flat[1::2], strict=True):
        assert key is not None
        if value is None:
            txn.delete(key)
        else:
            txn.put(key, value)


def is_blank(layer: Layer) -> bool:
    """Tell whether nothing was ever written in a layer that belongs to this boot: then its journal,
    which says nothing, says all.
    """
    if layer.rows.count():
        return False
    return (layer.directory / "journal").stat().st_size == len(_MAGIC)


def mark_clean(layer: Layer) -> None:
    """Sync the database itself, so that the layer stands on any boot; call after the last write."""
    with _alone(layer.directory):
        layer.rows.sync()
        _write_mark(layer.directory / "boot", _CLEAN)


def settle(layer: Layer) -> None:
    """Make all of a frozen layer survive power loss, once and for all, whoever wrote it; from any
    process that has it open.

    Raises:
        NoSpaceError: The disk is full.
    """
    mark = layer.directory / "boot"
    with _alone(layer.directory):
        if mark.read_text() == _CLEAN:
            return
        try:
            os.fdatasync(layer.segment.fd)
            for file_id in layer.own.iter_ids():
                _sync_own_file(layer, file_id)
            sync_directory(layer.own.directory)
            sync_directory(layer.directory)
        except OSError as exc:
            raise from_os_error(exc, f"{layer.directory} cannot be written") from exc
        layer.rows.sync()
        _write_mark(mark, _CLEAN)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Keep other processes from recovering or settling a layer within the block."""
    fd = os.open(directory / "settling", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _sync_own_file(layer: Layer, file_id: FileId) -> None:
    fd = layer.own.dup(file_id)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def sync_directory(directory: Path) -> None:
    """Make names created, replaced or removed in `directory` survive power loss."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_mark(path: Path, text: str) -> None:
    temporary = path.with_suffix(".new")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def _batches(rows: Iterable[tuple[bytes, bytes | None]]) -> Iterator[bytes]:
    # A batch is known to be the last one only when no row follows: one is always held back.
    held: list[bytes | None] = []
    flat: list[bytes | None] = []
    for key, value in rows:
        flat += (key, value)
        if len(flat) >= 2 * _BATCH_ROWS:
            if held:
                yield _batch(held, more=True)
            held, flat = flat, []
    if held:
        yield _batch(held, more=bool(flat))
    if flat:
        yield _batch(flat, more=False)


def _batch(flat: list[bytes | None], *, more: bool) -> bytes:
    payload = msgpack.packb(flat)
    header = _BATCH.pack(len(payload), int(more), xxhash.xxh3_64_intdigest(payload))
    return header + bytes(payload)


def _iter_syncs(fd: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield (end offset, payloads) of each whole sync."""
    if os.pread(fd, len(_MAGIC), 0) != _MAGIC:
        return
    at = len(_MAGIC)
    payloads: list[bytes] = []
    while True:
        header = os.pread(fd, _BATCH.size, at)
        if len(header) < _BATCH.size:
            return
        length, more, checksum = _BATCH.unpack(header)
        payload = os.pread(fd, length, at + _BATCH.size)
        if len(payload) < length or xxhash.xxh3_64_intdigest(payload) != checksum:
            return  # torn by the crash: it was never reported durable
        at += _BATCH.size + length
        payloads.append(payload)
        if not more:
            yield at, payloads
            payloads = []


def _good_end(fd: int) -> int:
    end = len(_MAGIC) if os.pread(fd, len(_MAGIC), 0) == _MAGIC else 0
    for at, _ in _iter_syncs(fd):
        end = at
    return end
