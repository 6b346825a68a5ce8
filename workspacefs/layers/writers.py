"""Rows that say which processes changed which files, byte for byte.

    I + file id (8, big endian) + W   -> flags (1), then the ids of processes, 16 bytes each
    P + process id (16)               -> process row

Flags: 1, the file was made in this layer. A process row is a msgpack array: pid, start (ns), path
of the executable, [argument, ...], tool call, run, agent, id of the parent process (or nothing),
and when it was first seen to change something in this layer (ns; 0: it is a parent only).

The row of a file stands behind its inode row, on the same page of the database, which is written
when the file changes in any case: a page of its own cost a fifth of a create (measured).

They say nothing of what a mount shows. Each layer has the process rows that its own rows name, so
what layers say together is the union of what each says. This module must not know LMDB.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, NewType, Protocol

import msgpack
from blake3 import blake3

from workspacefs.errors import IntegrityError
from workspacefs.ids import FileId
from workspacefs.layers.rows import inode_key, is_inode_key

ProcessId = NewType("ProcessId", bytes)
"""16 raw bytes: of what is known of a process when it is looked at."""

FILE_MARK: Final = b"W"
"""Behind the key of a file's inode row: the key of the row that says who changed it."""
PROCESS_PREFIX: Final = b"P"
PROCESS_ID_BYTES: Final = 16
PROCESSES_OF_FILE_MAX: Final = 64
"""What is past that changed a file too, and is not told."""

_MADE_HERE: Final = 1


class Process(NamedTuple):
    """One program in one process, as it was when it was looked at."""

    pid: int
    """In the daemon's own numbering; 0: it is outside of that, and all else is unknown."""
    start_ns: int
    """Wall time, ns since 1970; 0: not known."""
    executable: bytes
    arguments: tuple[bytes, ...]
    """Masked: see workspace/masking.py."""
    tool_call: str = ""
    run: str = ""
    agent: str = ""
    parent: ProcessId | None = None


class SeenProcess(NamedTuple):
    """A process, and when it was first seen to change something."""

    process: Process
    first_ns: int
    """Wall time, ns since 1970; 0: never, it is only the parent of one that did."""


class FileWriters(NamedTuple):
    """Who changed one file."""

    is_made: bool
    """Whether the file was made by them."""
    processes: tuple[ProcessId, ...]
    """In the order in which they came, each once."""

    def joined(self, later: FileWriters) -> FileWriters:
        """Return both as one."""
        ids = dict.fromkeys((*self.processes, *later.processes))
        kept = tuple(ids)[:PROCESSES_OF_FILE_MAX]
        return FileWriters(self.is_made or later.is_made, kept)


def process_id_of(process: Process) -> ProcessId:
    """Return the id of a process: equal facts, equal ids."""
    return ProcessId(blake3(_packed(process)).digest(length=PROCESS_ID_BYTES))


def writer_key(file_id: int) -> bytes:
    """Return the key of the row of a file."""
    return inode_key(file_id) + FILE_MARK


def process_key(process_id: ProcessId) -> bytes:
    """Return the key of the row of a process."""
    return b"P" + process_id


def encode_file(writers: FileWriters) -> bytes:
    """Return the value of the row of a file."""
    return bytes((_MADE_HERE if writers.is_made else 0,)) + b"".join(writers.processes)


def decode_file(value: bytes) -> FileWriters:
    """Return what the row of a file says.

    Raises:
        IntegrityError: The row is not one that we would have written.
    """
    if len(value) % PROCESS_ID_BYTES != 1:
        raise _malformed("a writer row")
    ids = (
        ProcessId(value[at : at + PROCESS_ID_BYTES])
        for at in range(1, len(value), PROCESS_ID_BYTES)
    )
    return FileWriters(bool(value[0] & _MADE_HERE), tuple(ids))


def encode_process(seen: SeenProcess) -> bytes:
    """Return the value of the row of a process."""
    return _packed((*seen.process, seen.first_ns))


def decode_process(value: bytes) -> SeenProcess:
    """Return what the row of a process says.

    Raises:
        IntegrityError: The row is not one that we would have written.
    """
    try:
        fields = msgpack.unpackb(value, raw=False)
        fields[3] = tuple(fields[3])
        return SeenProcess(Process(*fields[:-1]), fields[-1])
    except (ValueError, TypeError, IndexError, msgpack.exceptions.UnpackException) as exc:
        raise _malformed("a process row") from exc


class Gettable(Protocol):
    """Rows by key."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a row, or None."""


class RowSource(Protocol):
    """Rows at one moment."""

    def iter_rows(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield all rows whose key begins with `prefix`, in order of key."""


def iter_files(layers: Sequence[RowSource]) -> Iterator[tuple[FileId, FileWriters]]:
    """Yield what layers, the newest first, say together of each file, in order of id."""
    last: FileId | None = None
    told = FileWriters(False, ())
    for key, value in _oldest_first(layers, b"I"):
        if is_inode_key(key):
            continue
        file_id, found = FileId(int.from_bytes(key[1:9], "big")), decode_file(value)
        if file_id == last:
            told = told.joined(found)
            continue
        if last is not None:
            yield last, told
        last, told = file_id, found
    if last is not None:
        yield last, told


def iter_processes(layers: Sequence[RowSource]) -> Iterator[tuple[ProcessId, SeenProcess]]:
    """Yield the processes that layers name, each once, in order of id."""
    last: ProcessId | None = None
    told: SeenProcess | None = None
    for key, value in _oldest_first(layers, PROCESS_PREFIX):
        process_id, found = ProcessId(key[1:]), decode_process(value)
        if process_id == last and told is not None:
            told = told._replace(first_ns=_earlier(told.first_ns, found.first_ns))
            continue
        if last is not None and told is not None:
            yield last, told
        last, told = process_id, found
    if last is not None and told is not None:
        yield last, told


def merged_rows(layers: Sequence[RowSource]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of one layer that says what these, the newest first, say together."""
    for process_id, seen in iter_processes(layers):
        yield process_key(process_id), encode_process(seen)
    for file_id, writers in iter_files(layers):
        yield writer_key(file_id), encode_file(writers)


def rows_under_other_ids(
    layers: Sequence[Gettable], others: Mapping[FileId, FileId]
) -> list[tuple[bytes, bytes]]:
    """Return rows that say of files under other ids what layers, the newest first, say of them.

    Args:
        layers: That stay beneath: they have the rows of the processes.
        others: The other ids, by id.
    """
    rows: list[tuple[bytes, bytes]] = []
    for file_id, other_id in others.items():
        told = FileWriters(False, ())
        for layer in reversed(layers):
            row = layer.get(writer_key(file_id))
            if row is not None:
                told = told.joined(decode_file(row))
        if told.processes:
            rows.append((writer_key(other_id), encode_file(told)))
    return rows


def _oldest_first(layers: Sequence[RowSource], prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    streams = (_aged(layer, prefix, age) for age, layer in enumerate(reversed(layers)))
    for key, _, value in heapq.merge(*streams):
        yield key, value


def _aged(layer: RowSource, prefix: bytes, age: int) -> Iterator[tuple[bytes, int, bytes]]:
    for key, value in layer.iter_rows(prefix):
        yield key, age, value


def _earlier(one_ns: int, other_ns: int) -> int:
    return min(one_ns, other_ns) if one_ns and other_ns else one_ns or other_ns


def _packed(fields: tuple[object, ...]) -> bytes:
    packed = msgpack.packb(fields, use_bin_type=True)
    assert type(packed) is bytes
    return packed


def _malformed(what: str) -> IntegrityError:
    return IntegrityError(f"{what} of a layer is damaged", kind="layer.row_malformed")
