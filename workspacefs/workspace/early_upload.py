"""Storing content ahead of the commit that will name it, so that the commit itself is short.

Chunks of files that have come to rest are packed and uploaded while work goes on. Nothing names
them yet: a commit finds them by their ids and does not store them again. A file that is changed or
removed before it is committed has cost bytes in the store, which garbage collection takes back.
"""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from workspacefs.ids import FileId
from workspacefs.layers.bodies import is_zero_span, read_body
from workspacefs.layers.rows import InodeRow
from workspacefs.objects.refs import ChunkRef, Locator, Ref
from workspacefs.workspace.content import write_content
from workspacefs.workspace.pending import Pending
from workspacefs.workspace.workspace import Workspace

_KNOWN_MAX: Final = 1 << 18
"""Chunks that are remembered: some 60 MB. What is forgotten is stored once more."""
_REST_FACTOR: Final = 1.5
"""For each second of work so many seconds are left to the programs that use the mount."""


class EarlyUpload:
    """What of a session's uncommitted content is in the store. `find` may be called on any thread,
    the rest on one at a time.
    """

    def __init__(
        self, workspace: Workspace, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._workspace = workspace
        self._sleep = sleep
        self._lock = threading.Lock()
        self._locators: dict[bytes, Locator] = {}
        self._versions: dict[FileId, tuple[int, int, int]] = {}
        self.uploaded_bytes = 0
        """Of files, so far; before dedup and compression."""

    def find(self, object_id: bytes) -> Locator | None:
        """Return where a chunk lies that was uploaded."""
        return self._locators.get(object_id)

    def forget(self) -> None:
        """Start anew: a commit has named what was uploaded."""
        with self._lock:
            self._locators = {}
            self._versions = {}

    def files_at_rest(self, pending: Pending, *, before_ns: int) -> list[tuple[FileId, int]]:
        """Return the files (id, bytes) that were not changed since `before_ns`, and not uploaded
        as they are.
        """
        return [
            (file_id, row.size_bytes)
            for file_id, row in pending.iter_bodies()
            if stat.S_ISREG(row.mode)
            and row.nlink
            and row.size_bytes
            and row.ctime_ns <= before_ns
            and self._versions.get(file_id) != _version_of(row)
        ]

    def upload(self, pending: Pending, file_ids: Sequence[FileId]) -> None:
        """Store the content of files; durable on return.

        Raises:
            UnavailableError: The store does not answer; what was not stored is tried again.
        """
        gathered: list[ChunkRef] = []
        versions: dict[FileId, tuple[int, int, int]] = {}
        size_bytes = 0
        with self._workspace.new_writer(known=self.find) as writer:
            for file_id in file_ids:
                began = time.monotonic()
                row = pending.find_row(file_id)
                if row is None or not pending.is_in_layer(row):
                    continue
                size_bytes += row.size_bytes
                self._add(_Sink(writer.add_chunk, gathered), pending, file_id, row)
                versions[file_id] = _version_of(row)
                self._sleep((time.monotonic() - began) * _REST_FACTOR)
            writer.finish()
        with self._lock:
            if len(self._locators) + len(gathered) > _KNOWN_MAX:
                self._locators, self._versions = {}, {}
            for ref in gathered:
                if ref.locator is not None:
                    self._locators[ref.id] = ref.locator
            self._versions.update(versions)
        self.uploaded_bytes += size_bytes

    def _add(self, sink: _Sink, pending: Pending, file_id: FileId, row: InodeRow) -> None:
        body, size_bytes, store = pending.body(row, file_id), row.size_bytes, self._workspace.store
        # The file may be written to meanwhile: then some chunk is stored that no commit will name.
        write_content(
            lambda offset, length: read_body(
                body, offset, max(0, min(length, size_bytes - offset)), store
            ),
            size_bytes,
            sink,
            self._workspace.chunk_params,
            is_zero=lambda offset, length: is_zero_span(body, offset, length),
        )


class _Sink:
    """Takes the chunks of a file; lists of chunks are left to the commit."""

    def __init__(
        self, add_chunk: Callable[[bytes | memoryview], ChunkRef], gathered: list[ChunkRef]
    ) -> None:
        self._add_chunk = add_chunk
        self._gathered = gathered

    def add_chunk(self, plain: bytes | memoryview) -> ChunkRef:
        """Store one chunk."""
        ref = self._add_chunk(plain)
        self._gathered.append(ref)
        return ref

    def add_chunk_list(self, body: bytes, children: Sequence[Ref]) -> Ref:
        """Store nothing."""
        return Ref(b"")


def _version_of(row: InodeRow) -> tuple[int, int, int]:
    return row.size_bytes, row.mtime_ns, row.ctime_ns
