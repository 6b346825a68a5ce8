"""Writing objects: chunks and records gathered into runs, compressed, placed in packs.

A record of metadata says where its children lie, so it waits until all of them are placed.
Parents come after their children; a child in the very run that the parent joins is named by its
place in that run. Memory is bounded: by runs in compression (16 MiB), packs being filled (two) and
under way (`uploads`), records that wait for the data run being filled (which is cut short when they
reach 8 MiB), and ids kept for dedup.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Final, TypeAlias

from workspacefs.backend.contract import Backend
from workspacefs.errors import RefusedError, UnavailableError, UsageError, WorkspaceError
from workspacefs.ids import (
    PACK_ID_BYTES,
    PackId,
    chunk_id_of,
    chunk_list_id_of,
    commit_id_of,
    node_id_of,
)
from workspacefs.objects.refs import Child, ChunkRef, Locator, LocatorSpan, Ref
from workspacefs.packs.builder import Packs, Run
from workspacefs.packs.frames import CHUNK_MAX_BYTES, RECORD_MAX_BYTES, RunKind, encode_frame
from workspacefs.packs.records import InSameFrame, encode_record
from workspacefs.packs.table import ObjectKind, pack_key
from workspacefs.packs.uploads import Uploads

log = logging.getLogger(__name__)

RUN_CLOSE_BYTES: Final = 96 * 1024
"""A run of at least so many plain bytes becomes a frame."""
RUN_MAX_BYTES: Final = 128 * 1024
"""A run longer than this is one object that is longer."""
_WAITING_MAX_BYTES: Final = 8 * 1024 * 1024
_WAITING_OVERHEAD_BYTES: Final = 200
_COMPRESSING_MAX_BYTES: Final = 16 * 1024 * 1024
_REMEMBERED: Final = 512 * 1024
"""Ids of one generation; two are kept."""

Known: TypeAlias = Mapping[bytes, Locator] | Callable[[bytes], Locator | None]
"""Where objects lie that are stored already, by id."""


@dataclass(frozen=True, slots=True)
class WriteSummary:
    """What one writer stored."""

    packs: tuple[PackId, ...]
    plain_bytes: int
    """Of the chunks and records that were written, before compression."""
    stored_bytes: int
    """Of the packs."""
    objects: int
    """Written; those that were there already are not counted."""
    reused: int
    """Calls that named an object which this writer or the store had already."""


@dataclass(slots=True)
class _Waiting:
    """A record that waits for its children to be placed."""

    ref: Ref
    kind: ObjectKind
    body: bytes
    children: Sequence[Child]
    located: int = 0
    """Children before this one have locators."""


def draw_pack_id() -> PackId:
    """Return a new random pack id."""
    return PackId(secrets.token_bytes(PACK_ID_BYTES))


class ObjectWriter:
    """Stores the objects of one import or commit. Not thread-safe.

    An id is dedupped against `known` and against what this writer stored lately (the last half
    million ids at least). Locators that it hands out may be used at once, but nothing may name
    them in the store before `finish` returned. As a context manager it is aborted by an error that
    comes before that.

    Args:
        known: Locators of objects stored before; asked about ids that are new to this writer.
        pack_bytes: A pack is closed before it would be longer.
        threads: Compress so many runs at a time; 0: in the caller's thread, which also makes the
            layout of the packs depend on nothing but the calls.
        uploads: Store so many packs at a time, which takes `uploads + 2` times `pack_bytes` of
            memory (144 MiB as it stands) once so much is written. A local store gets one at a
            time, without threads none beside the caller. All but the last packs go from threads
            of their own; what fits into one pack goes from the caller's thread.
        draw_pack_id: Source of pack ids.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        known: Known | None = None,
        pack_bytes: int = 24 * 1024 * 1024,
        threads: int = 2,
        uploads: int = 4,
        draw_pack_id: Callable[[], PackId] = draw_pack_id,
    ) -> None:
        self._backend = backend
        self._known = known.get if isinstance(known, Mapping) else known
        self._compressors = ThreadPoolExecutor(threads) if threads else None
        at_once = min(uploads, threads, 1) if backend.is_local else uploads
        self._uploads = Uploads(backend, at_once=at_once)
        self._packs = Packs(self._uploads, pack_bytes=pack_bytes, draw_pack_id=draw_pack_id)
        self._beside: tuple[str, ...] = ()
        self._data = Run(RunKind.DATA)
        self._meta = Run(RunKind.META)
        self._in_meta: dict[bytes, InSameFrame] = {}
        self._compressing: deque[tuple[Run, Future[tuple[bytes, bytes]]]] = deque()
        self._compressing_bytes = 0
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._young: dict[bytes, Ref] = {}
        self._old: dict[bytes, Ref] = {}
        self._is_encoding = self._is_finished = False
        self._plain_bytes = self._objects = self._reused = 0

    def __enter__(self) -> ObjectWriter:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # What is stored whole may be named by now, even if it is not known to be.
        if exc_type is not None and not self._is_finished:
            self.abort()

    def add_chunk(self, plain: bytes | memoryview) -> ChunkRef:
        """Store a chunk of 1 byte to 16 MiB; the caller may reuse its buffer at once.

        Returns:
            A reference whose locator is set when its frame is placed, at `finish` at the latest.
        """
        chunk_id = chunk_id_of(plain)
        size = len(plain)
        found = self._find(chunk_id)
        if found is not None:
            self._reused += 1
            return found if type(found) is ChunkRef else ChunkRef(chunk_id, size, found.locator)
        if not 0 < size <= CHUNK_MAX_BYTES:
            raise UsageError(f"a chunk has 1 to {CHUNK_MAX_BYTES} bytes, not {size}")
        ref = ChunkRef(chunk_id, size)
        self._remember(ref)
        self._plain_bytes += size
        if type(plain) is not bytes:
            plain = bytes(plain)
        if size > RUN_MAX_BYTES:
            # The run being filled stays open: its neighbours belong together.
            alone = Run(RunKind.DATA)
            alone.add(ref, ObjectKind.CHUNK, plain)
            self._close(alone)
            return ref
        if self._data.size_bytes + size > RUN_MAX_BYTES:
            self._close_data()
        self._data.add(ref, ObjectKind.CHUNK, plain)
        if self._data.size_bytes >= RUN_CLOSE_BYTES:
            self._close_data()
        return ref

    def add_node(self, body: bytes, children: Sequence[Child]) -> Ref:
        """Store a tree node; `children` are its references in body order, added before."""
        return self._add_record(ObjectKind.NODE, node_id_of(body), body, children)

    def add_chunk_list(self, body: bytes, children: Sequence[Child]) -> Ref:
        """Store a chunk list; `children` are its references in body order, added before."""
        return self._add_record(ObjectKind.CHUNK_LIST, chunk_list_id_of(body), body, children)

    def add_commit(self, body: bytes, children: Sequence[Child]) -> Ref:
        """Store a commit; `children` are its references in body order, added before."""
        return self._add_record(ObjectKind.COMMIT, commit_id_of(body), body, children)

    def finish(self, *, beside: Mapping[str, bytes] | None = None) -> WriteSummary:
        """Store what is left; on return all is durable and all references have locators.

        Raises what any upload raised; then the writer must be aborted.

        Args:
            beside: Values to store at the same time as the last packs, by key. One may be there
                without the packs after a failure.
        """
        self._close_data()
        self._place_compressed(leave_bytes=0)
        # All chunks are placed, so a waiting record can wait only for records that a run holds.
        while self._meta.parts or self._compressing:
            self._close_meta()
            self._place_compressed(leave_bytes=0)
        if self._packs.objects != self._objects:
            raise UsageError(
                "objects cannot be finished: an earlier call failed, or a parent was added "
                "before its children"
            )
        beside = beside or {}
        self._beside = tuple(beside)
        self._packs.finish([(key, (value,)) for key, value in beside.items()])
        self._is_finished = True
        self._shut_down()
        return WriteSummary(
            packs=tuple(self._packs.packs),
            plain_bytes=self._plain_bytes,
            stored_bytes=self._packs.stored_bytes,
            objects=self._objects,
            reused=self._reused,
        )

    def abort(self) -> None:
        """Store nothing more and take back what was stored so far: nothing may name it yet.

        What cannot be deleted is left for garbage collection, with a warning; when the store does
        not answer, that is all that is left.
        """
        for _, future in self._compressing:
            future.cancel()
        self._shut_down()
        keys = [*map(pack_key, self._packs.packs), *self._beside]
        for number, key in enumerate(keys):
            try:
                self._backend.delete(key)
            except UnavailableError as exc:
                self._note_orphans(keys[number:], exc)
                return
            except WorkspaceError as exc:
                self._note_orphans([key], exc)

    def _note_orphans(self, keys: Sequence[str], exc: WorkspaceError) -> None:
        extra = {"first_key": keys[0], "keys": len(keys), "reason": str(exc)}
        log.warning("writer.orphaned", extra=extra)

    def _shut_down(self) -> None:
        if self._compressors is not None:
            self._compressors.shutdown(wait=True, cancel_futures=True)
        self._uploads.shut_down()

    def _find(self, object_id: bytes) -> Ref | None:
        found = self._young.get(object_id) or self._old.get(object_id)
        if found is None and self._known is not None:
            locator = self._known(object_id)
            if locator is not None:
                return Ref(object_id, locator)
        return found

    def _remember(self, ref: Ref) -> None:
        self._objects += 1
        self._young[ref.id] = ref
        if len(self._young) >= _REMEMBERED:
            # Those still to be placed must be found again by parents that hold other references.
            unplaced = {one.id: one for one in self._old.values() if one.locator is None}
            self._old, self._young = self._young, unplaced

    def _add_record(
        self, kind: ObjectKind, object_id: bytes, body: bytes, children: Sequence[Child]
    ) -> Ref:
        found = self._find(object_id)
        if found is not None:
            self._reused += 1
            return found
        if len(body) > RECORD_MAX_BYTES // 2:
            raise _too_long(kind, len(body))
        ref = Ref(object_id)
        self._remember(ref)
        self._waiting.append(_Waiting(ref, kind, body, children))
        self._waiting_bytes += len(body) + _WAITING_OVERHEAD_BYTES
        self._encode_ready()
        if self._waiting_bytes > _WAITING_MAX_BYTES:
            self._close_data()
            self._place_compressed(leave_bytes=0)
        return ref

    def _encode_ready(self) -> None:
        """Move waiting records to the meta run, in order, up to the first that must wait on."""
        if self._is_encoding:
            return  # the loop below goes on with whatever was placed within it
        self._is_encoding = True
        try:
            while self._waiting and self._are_placed(self._waiting[0]):
                self._encode(self._waiting.popleft())
        finally:
            self._is_encoding = False

    def _encode(self, waiting: _Waiting) -> None:
        self._waiting_bytes -= len(waiting.body) + _WAITING_OVERHEAD_BYTES
        record = encode_record(waiting.body, map(self._place_of, waiting.children))
        if len(record) > RECORD_MAX_BYTES - RUN_CLOSE_BYTES:
            raise _too_long(waiting.kind, len(record))
        self._plain_bytes += len(record)
        self._in_meta[waiting.ref.id] = InSameFrame((self._meta.size_bytes, len(record)))
        self._meta.add(waiting.ref, waiting.kind, record)
        if self._meta.size_bytes >= RUN_CLOSE_BYTES:
            self._close_meta()

    def _are_placed(self, waiting: _Waiting) -> bool:
        children, in_meta = waiting.children, self._in_meta
        for number in range(waiting.located, len(children)):
            child = children[number]
            if isinstance(child, LocatorSpan) or child.locator is not None:
                if number == waiting.located:
                    waiting.located = number + 1
            elif child.id not in in_meta:
                own = self._young.get(child.id) or self._old.get(child.id)
                if own is not None and own.locator is None:
                    return False
        return True

    def _place_of(self, child: Child) -> Locator | InSameFrame | LocatorSpan | None:
        if isinstance(child, LocatorSpan):
            return child
        if child.locator is not None:
            return child.locator
        same_frame = self._in_meta.get(child.id)
        if same_frame is not None:
            return same_frame
        own = self._find(child.id)
        if own is not None:
            child.locator = own.locator
        return child.locator

    def _close_data(self) -> None:
        if self._data.parts:
            run, self._data = self._data, Run(RunKind.DATA)
            self._close(run)

    def _close_meta(self) -> None:
        if self._meta.parts:
            run, self._meta, self._in_meta = self._meta, Run(RunKind.META), {}
            self._close(run)

    def _close(self, run: Run) -> None:
        if self._compressors is None:
            self._place(run, _compress(run))
            return
        self._compressing.append((run, self._compressors.submit(_compress, run)))
        self._compressing_bytes += run.size_bytes
        self._place_compressed(leave_bytes=_COMPRESSING_MAX_BYTES)

    def _place_compressed(self, *, leave_bytes: int) -> None:
        """Place the frames that are ready; wait for those in excess of `leave_bytes`."""
        compressing = self._compressing
        while compressing and (self._compressing_bytes > leave_bytes or compressing[0][1].done()):
            run, future = compressing.popleft()
            self._compressing_bytes -= run.size_bytes
            self._place(run, future.result())

    def _place(self, run: Run, frame: tuple[bytes, bytes]) -> None:
        self._packs.place(run, frame)
        self._encode_ready()


def _too_long(kind: ObjectKind, length: int) -> RefusedError:
    return RefusedError(
        f"a {kind.name.lower()} of {length} bytes is longer than can be stored",
        kind="object.too_long",
    )


def _compress(run: Run) -> tuple[bytes, bytes]:
    parts, run.parts = run.parts, []
    return encode_frame(run.kind, parts[0] if len(parts) == 1 else b"".join(parts))
