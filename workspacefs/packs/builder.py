"""The pack being filled: frames placed one after another, then uploaded whole.

Knows nothing of how objects are gathered into runs; packs.writer does that.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from workspacefs.backend.contract import Backend
from workspacefs.ids import PackId
from workspacefs.objects.refs import Locator, Ref
from workspacefs.packs.frames import RunKind
from workspacefs.packs.table import HEADER_BYTES, PackTable, encode_header, encode_tail, pack_key

PACK_MAX_OBJECTS: Final = 128 * 1024
"""A pack is closed at so many objects, to bound its table."""


@dataclass(slots=True)
class Run:
    """Objects that will share a frame."""

    kind: RunKind
    parts: list[bytes] = field(default_factory=list)
    """Plain bytes of each object, in order."""
    refs: list[Ref] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    kinds: bytearray = field(default_factory=bytearray)
    """ObjectKind of each object."""
    size_bytes: int = 0

    def add(self, ref: Ref, kind: int, plain: bytes) -> None:
        """Append an object."""
        size = len(plain)
        self.parts.append(plain)
        self.refs.append(ref)
        self.sizes.append(size)
        self.kinds.append(kind)
        self.size_bytes += size


class PackBuilder:
    """Places frames in packs of about `pack_bytes` and uploads them, at most one at a time.

    Memory: the pack being filled and the one being uploaded. With an executor, uploads run in
    it; a failed one is raised by the next call. Not thread-safe.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        pack_bytes: int,
        draw_pack_id: Callable[[], PackId],
        uploads: ThreadPoolExecutor | None,
    ) -> None:
        self._backend = backend
        self._pack_bytes = pack_bytes
        self._draw_pack_id = draw_pack_id
        self._uploads = uploads
        self._uploading: Future[None] | None = None
        self.packs: list[PackId] = []
        """Packs begun to upload, in order."""
        self.stored_bytes = 0
        self.objects = 0
        """Placed so far."""
        self._id = PackId(b"")
        self._parts: list[bytes | memoryview] = []
        self._table = PackTable()
        self._size_bytes = HEADER_BYTES

    def place(self, run: Run, frame: tuple[bytes, bytes]) -> None:
        """Append the frame of `run`, and give each of its references its locator."""
        length = len(frame[0]) + len(frame[1])
        if len(self._table) and (
            self._size_bytes + length > self._pack_bytes or len(self._table) > PACK_MAX_OBJECTS
        ):
            self._close()
        if not self._parts:
            self._id = self._draw_pack_id()
            self._parts.append(encode_header(self._id))
        self._parts += frame
        self._table.add_frame(self._size_bytes, length, len(run.refs))
        add_object, pack_id, offset = self._table.add_object, self._id, self._size_bytes
        inner = 0
        for ref, size, kind in zip(run.refs, run.sizes, run.kinds, strict=True):
            ref.locator = Locator(pack_id, offset, length, inner, size)
            add_object(kind, inner, size, ref.id)
            inner += size
        self._size_bytes += length
        self.objects += len(run.refs)

    def finish(self) -> None:
        """Upload what is left; all packs are durable on return."""
        if len(self._table):
            self._close()
        self.wait()

    def wait(self) -> None:
        """Wait until the upload that runs is done; raises what it raised."""
        if self._uploading is not None:
            self._uploading.result()  # a failed one stays, and fails whatever comes after it
            self._uploading = None

    def _begin(self) -> None:
        self._id, self._parts = PackId(b""), []
        self._table, self._size_bytes = PackTable(), HEADER_BYTES

    def _close(self) -> None:
        self._parts.append(encode_tail(self._id, self._table, self._size_bytes))
        key, parts = pack_key(self._id), self._parts
        self.wait()
        self.packs.append(self._id)
        self.stored_bytes += sum(map(len, parts))
        self._begin()
        if self._uploads is not None:
            self._uploading = self._uploads.submit(self._backend.put, key, parts)
            return
        self._uploading = Future()
        try:
            self._backend.put(key, parts)
        except BaseException as exc:
            self._uploading.set_exception(exc)
            raise
        self._uploading.set_result(None)
