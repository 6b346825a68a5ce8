"""Reading objects: from memory, or by their locators, verified against their ids every time.

What fails verification is fetched once more, then looked up in the tables of the packs, and only
then reported as damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from workspacefs.backend.contract import Backend
from workspacefs.errors import IntegrityError, KeyAbsentError
from workspacefs.ids import PackId, chunk_id_of, chunk_list_id_of, commit_id_of, node_id_of
from workspacefs.objects.chunk_lists import decode_chunk_list
from workspacefs.objects.commits import Commit, decode_commit
from workspacefs.objects.nodes import Node, decode_node
from workspacefs.objects.refs import ChunkRef, Locator, Ref
from workspacefs.packs.caches import BoundedCache
from workspacefs.packs.frames import FRAME_HEADER_BYTES, FRAME_MAX_BYTES, RunKind, decode_frame
from workspacefs.packs.index import PackIndex
from workspacefs.packs.prefetch import FramePlace, read_frames
from workspacefs.packs.records import decode_locators, split_record
from workspacefs.packs.table import pack_key

_T = TypeVar("_T")
_MIB: Final = 1024 * 1024
_DECODED_FACTOR: Final = 7
"""A decoded node or chunk list takes about so many times the bytes of its body."""
_HEALED_BYTES: Final = 400
"""Memory of one corrected locator."""

_Record = tuple[bytes, Sequence[Locator | None]]


class ObjectStore:
    """Objects of the packs in `backend`. Thread-safe; must not be used across a fork.

    `load_` reads from the backend what memory does not hold; `peek_` never does, and answers
    None instead.

    Args:
        cache_bytes: For decompressed frames.
        decoded_cache_bytes: For decoded nodes and chunk lists, by an estimate of their memory.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        cache_bytes: int = 64 * _MIB,
        decoded_cache_bytes: int = 64 * _MIB,
    ) -> None:
        self._backend = backend
        self._index = PackIndex(backend)
        self._frames: BoundedCache[tuple[object, ...], bytes] = BoundedCache(cache_bytes)
        self._nodes: BoundedCache[bytes, Node] = BoundedCache(decoded_cache_bytes)
        self._chunk_lists: BoundedCache[bytes, tuple[ChunkRef, ...]] = BoundedCache(
            decoded_cache_bytes
        )
        self._commits: BoundedCache[bytes, Commit] = BoundedCache(8 * _MIB)
        self._healed: BoundedCache[bytes, Locator] = BoundedCache(8 * _MIB)

    def load_chunk(self, ref: ChunkRef) -> bytes:
        """Return the plain bytes of a chunk.

        Raises:
            IntegrityError: They are missing or damaged; the message names the pack.
        """
        locator = ref.locator
        if locator is not None:
            plain = self._frames.find(locator[:2])
            if plain is not None:
                chunk = _chunk_in(plain, locator, ref)
                if chunk is not None:
                    return chunk
        return self._load(ref, RunKind.DATA, "chunk", lambda run, at: _chunk_in(run, at, ref))

    def peek_chunk(self, ref: ChunkRef) -> bytes | None:
        """Return the plain bytes of a chunk if its frame is in memory; no input or output."""
        locator = ref.locator
        if locator is not None:
            plain = self._frames.find(locator[:2])
            if plain is not None:
                chunk = _chunk_in(plain, locator, ref)
                if chunk is not None:
                    return chunk
        healed = self._healed.find(ref.id)
        if healed is None:
            return None
        plain = self._frames.find(healed[:2])
        return None if plain is None else _chunk_in(plain, healed, ref)

    def near_chunk(self, ref: ChunkRef) -> bytes | None:
        """Return a chunk from memory or a disk of this machine; None: neither has it whole."""
        chunk = self.peek_chunk(ref)
        if chunk is None:
            chunk = self._find_near(ref, RunKind.DATA, lambda run, at: _chunk_in(run, at, ref))
        return chunk

    def load_node(self, ref: Ref) -> Node:
        """Return a tree node, decoded.

        Raises:
            IntegrityError: It is missing or damaged; the message names the pack.
        """
        node = self._nodes.find(ref.id)
        if node is None:
            node = self._keep_node(ref, self._load_record(ref, "tree node", node_id_of))
        return node

    def near_node(self, ref: Ref) -> Node | None:
        """Return a node from memory or a disk of this machine; None: neither has it whole."""
        node = self._nodes.find(ref.id)
        if node is None and (record := self._near_record(ref, "tree node", node_id_of)) is not None:
            node = self._keep_node(ref, record)
        return node

    def prefetch_nodes(self, refs: Iterable[Ref]) -> bool:
        """Have tree nodes in memory that will be loaded soon; blocks until they are there.

        Missing ones are read in few requests, many at a time. A hint: what is damaged is left for
        load_node to find.

        Args:
            refs: As many as memory can hold decoded.

        Returns:
            False: the store is local, so nothing was done, nor were `refs` looked at.
        """
        return self._prefetch(refs, "tree node", node_id_of, self.peek_node, self._keep_node)

    def peek_node(self, ref: Ref) -> Node | None:
        """Return a tree node if it is in memory, decoded; no input or output."""
        return self._nodes.find(ref.id)

    def load_chunk_list(self, ref: Ref) -> tuple[ChunkRef, ...]:
        """Return the chunks of a chunk list, in order.

        Raises:
            IntegrityError: It is missing or damaged; the message names the pack.
        """
        chunks = self._chunk_lists.find(ref.id)
        if chunks is None:
            record = self._load_record(ref, "chunk list", chunk_list_id_of)
            chunks = self._keep_chunk_list(ref, record)
        return chunks

    def near_chunk_list(self, ref: Ref) -> tuple[ChunkRef, ...] | None:
        """Return a chunk list from memory or a disk of this machine; None: neither has it whole."""
        chunks = self._chunk_lists.find(ref.id)
        if chunks is None:
            record = self._near_record(ref, "chunk list", chunk_list_id_of)
            chunks = None if record is None else self._keep_chunk_list(ref, record)
        return chunks

    def prefetch_chunk_lists(self, refs: Iterable[Ref]) -> bool:
        """Have chunk lists in memory that will be loaded soon. See prefetch_nodes."""
        return self._prefetch(
            refs, "chunk list", chunk_list_id_of, self.peek_chunk_list, self._keep_chunk_list
        )

    def note_read(self, refs: Sequence[ChunkRef], index: int) -> None:
        """Do nothing: whoever reads through us waits for each chunk."""

    def peek_chunk_list(self, ref: Ref) -> tuple[ChunkRef, ...] | None:
        """Return the chunks of a chunk list if it is in memory; no input or output."""
        return self._chunk_lists.find(ref.id)

    def load_commit(self, ref: Ref) -> Commit:
        """Return a commit.

        Raises:
            IntegrityError: It is missing or damaged; the message names the pack.
        """
        known = self._commits.find(ref.id)
        if known is not None:
            return known
        body, locators = self._load_record(ref, "commit", commit_id_of)
        commit = decode_commit(body, locators, what=_name_of("commit", ref))
        self._commits.add(ref.id, commit, _DECODED_FACTOR * len(body) + 1000)
        return commit

    def peek_commit(self, ref: Ref) -> Commit | None:
        """Return a commit that is in memory, or None."""
        return self._commits.find(ref.id)

    def load_commit_record(self, ref: Ref) -> tuple[bytes, tuple[Locator | None, ...]]:
        """Return the body of a commit and the locators of its references, in body order.

        Raises:
            IntegrityError: It is missing or damaged; the message names the pack.
        """
        body, locators = self._load_record(ref, "commit", commit_id_of)
        return body, tuple(locators)

    def locate(self, object_id: bytes) -> Locator | None:
        """Return where an object lies by the tables of the packs, or None. Slow."""
        return self._index.find(object_id)

    def drop_caches(self) -> None:
        """Forget all that is in memory."""
        for cache in (self._frames, self._nodes, self._chunk_lists, self._commits, self._healed):
            cache.clear()

    def _keep_node(self, ref: Ref, record: _Record) -> Node:
        node = decode_node(*record, what=_name_of("tree node", ref))
        self._nodes.add(ref.id, node, _DECODED_FACTOR * len(record[0]) + 1000)
        return node

    def _keep_chunk_list(self, ref: Ref, record: _Record) -> tuple[ChunkRef, ...]:
        chunks = decode_chunk_list(*record, what=_name_of("chunk list", ref))
        self._chunk_lists.add(ref.id, chunks, _DECODED_FACTOR * len(record[0]) + 1000)
        return chunks

    def _prefetch(
        self,
        refs: Iterable[Ref],
        noun: str,
        id_of: Callable[[bytes], bytes],
        peek: Callable[[Ref], object],
        keep: Callable[[Ref, _Record], object],
    ) -> bool:
        if self._backend.is_local:
            return False
        wanted: dict[FramePlace, list[tuple[Ref, Locator]]] = {}
        for ref in refs:
            locator = self._healed.find(ref.id) or ref.locator
            if locator is not None and _is_sane(locator) and peek(ref) is None:
                wanted.setdefault(FramePlace(*locator[:3]), []).append((ref, locator))

        def keep_all(place: FramePlace, plain: bytes) -> None:
            for ref, locator in wanted[place]:
                record = _record_in(plain, locator, ref, noun, id_of)
                if record is not None:
                    keep(ref, record)

        def use(place: FramePlace, stored: bytes | None) -> None:
            # What is damaged meets load_ again, which mends it if it can, and tells.
            with suppress(IntegrityError):
                plain = self._frames.find(place[:2])
                if plain is None and stored is not None:
                    plain = decode_frame(stored, RunKind.META, what="a frame")
                    self._frames.add(place[:2], plain, len(plain) + 200)
                if plain is not None:
                    keep_all(place, plain)

        missing = [place for place in wanted if self._frames.find(place[:2]) is None]
        for place in wanted.keys() - set(missing):
            use(place, None)
        read_frames(self._backend, missing, use)
        return True

    def _load_record(self, ref: Ref, noun: str, id_of: Callable[[bytes], bytes]) -> _Record:
        return self._load(
            ref, RunKind.META, noun, lambda run, at: _record_in(run, at, ref, noun, id_of)
        )

    def _near_record(self, ref: Ref, noun: str, id_of: Callable[[bytes], bytes]) -> _Record | None:
        return self._find_near(
            ref, RunKind.META, lambda run, at: _record_in(run, at, ref, noun, id_of)
        )

    def _find_near(
        self, ref: Ref, run: RunKind, extract: Callable[[bytes, Locator], _T | None]
    ) -> _T | None:
        """Return what `extract` finds where `ref` lies, if that is on a disk of this machine.

        What does not verify there counts as not there: whoever loads it then says so.
        """
        locator = self._healed.find(ref.id) or ref.locator
        if locator is None or not _is_sane(locator):
            return None
        key = pack_key(locator.pack_id)
        try:
            plain = self._frames.find(locator[:2])
            if plain is not None and (found := extract(plain, locator)) is not None:
                return found
            stored = self._backend.find_near(
                key, offset=locator.frame_offset, length=locator.frame_bytes
            )
            if stored is None:
                return None
            plain = decode_frame(stored, run, what=f"the frame at {locator.frame_offset} of {key}")
            found = extract(plain, locator)
        except IntegrityError:
            return None
        if found is not None:
            self._frames.add(locator[:2], plain, len(plain) + 200)
        return found

    def _load(
        self, ref: Ref, run: RunKind, noun: str, extract: Callable[[bytes, Locator], _T | None]
    ) -> _T:
        """Return what `extract` finds where `ref` lies; it answers None to what does not verify."""
        problem: IntegrityError | None = None
        for locator in self._candidates(ref):
            plain = self._frames.find(locator[:2])
            if plain is not None and (found := extract(plain, locator)) is not None:
                return found
            self._frames.drop(locator[:2])
            for attempt in range(2):  # a wrong answer may be an accident of the way
                try:
                    if attempt:
                        self._forget_copy(locator)
                    plain = self._fetch(locator, run)
                    found = extract(plain, locator)
                except IntegrityError as exc:
                    problem = problem or exc
                    continue
                if found is not None:
                    self._frames.add(locator[:2], plain, len(plain) + 200)
                    if locator is not ref.locator:
                        self._healed.add(ref.id, locator, _HEALED_BYTES)
                    return found
            self._healed.drop(ref.id)
        raise self._damage(ref, noun, problem) from problem

    def _candidates(self, ref: Ref) -> Iterator[Locator]:
        """Yield where `ref` may lie, the likeliest first; searches only when asked for more."""
        healed = self._healed.find(ref.id)
        tried: set[Locator] = set()
        for locator in (healed, ref.locator):
            if locator is not None and _is_sane(locator) and locator not in tried:
                tried.add(locator)
                yield locator
        avoid: set[PackId] = set()
        while (found := self._index.find(ref.id, avoid=frozenset(avoid))) is not None:
            avoid.add(found.pack_id)
            if _is_sane(found) and found not in tried:
                yield found

    def _forget_copy(self, locator: Locator) -> None:
        self._backend.forget_local(
            pack_key(locator.pack_id), offset=locator.frame_offset, length=locator.frame_bytes
        )

    def _fetch(self, locator: Locator, run: RunKind) -> bytes:
        key = pack_key(locator.pack_id)
        try:
            stored = self._backend.get(key, offset=locator.frame_offset, length=locator.frame_bytes)
        except KeyAbsentError as exc:
            raise IntegrityError(
                f"{key} is missing, though a reference names it", kind="pack.missing", pack=key
            ) from exc
        return decode_frame(stored, run, what=f"the frame at {locator.frame_offset} of {key}")

    def _damage(self, ref: Ref, noun: str, problem: IntegrityError | None) -> IntegrityError:
        name = _name_of(noun, ref)
        reason = f": {problem}" if problem is not None else ""
        if ref.locator is None:
            key, message = None, f"no pack that can be read holds {name}{reason}"
        else:
            key = pack_key(ref.locator.pack_id)
            message = f"{key} does not hold {name} as it should{reason}"
        return IntegrityError(
            message,
            kind=problem.kind if problem is not None else "object.missing",
            pack=key,
            id=ref.id.hex(),
        )


def _chunk_in(plain: bytes, locator: Locator, ref: ChunkRef) -> bytes | None:
    start = locator[3]
    chunk = plain[start : start + ref.size_bytes]
    return chunk if chunk_id_of(chunk) == ref.id else None


def _record_in(
    plain: bytes, locator: Locator, ref: Ref, noun: str, id_of: Callable[[bytes], bytes]
) -> _Record | None:
    found = split_record(plain, locator)
    if found is None or id_of(found[0]) != ref.id:
        return None
    return found[0], decode_locators(found[1], locator, what=_name_of(noun, ref))


def _is_sane(locator: Locator) -> bool:
    """Tell whether a locator may be followed: what stands in the store may be forged."""
    return (
        0 <= locator.frame_offset < 1 << 62
        and FRAME_HEADER_BYTES <= locator.frame_bytes <= FRAME_MAX_BYTES
        and locator.inner_offset >= 0
        and locator.inner_bytes >= 0
    )


def _name_of(noun: str, ref: Ref) -> str:
    return f"{noun} {ref.id.hex()[:12]}"
