"""The packs being filled: frames placed one after another, then uploaded whole.

Knows nothing of how objects are gathered into runs; packs.writer does that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from workspacefs.ids import PackId
from workspacefs.objects.refs import Locator, Ref
from workspacefs.packs.frames import RunKind
from workspacefs.packs.table import HEADER_BYTES, PackTable, encode_header, encode_tail, pack_key
from workspacefs.packs.uploads import Uploads, Value

PACK_MAX_OBJECTS: Final = 128 * 1024
"""A pack is closed at so many objects, to bound its table."""
MIXED_PACK_BYTES: Final = 4 * 1024 * 1024
"""A pack that takes both data and metadata is closed before it would be longer."""


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
    """One pack being filled. Not thread-safe."""

    def __init__(self, pack_id: PackId) -> None:
        self.id = pack_id
        self._parts: list[bytes | memoryview] = [encode_header(pack_id)]
        self._table = PackTable()
        self._size_bytes = HEADER_BYTES

    def is_full(self, length: int, *, pack_bytes: int) -> bool:
        """Tell whether a frame of `length` bytes must go to another pack."""
        return bool(self._table) and (
            self._size_bytes + length > pack_bytes or len(self._table) > PACK_MAX_OBJECTS
        )

    def place(self, run: Run, frame: tuple[bytes, bytes]) -> None:
        """Append the frame of `run`, and give each of its references its locator."""
        length = len(frame[0]) + len(frame[1])
        self._parts += frame
        self._table.add_frame(self._size_bytes, length, len(run.refs))
        add_object, pack_id, offset = self._table.add_object, self.id, self._size_bytes
        inner = 0
        for ref, size, kind in zip(run.refs, run.sizes, run.kinds, strict=True):
            ref.locator = Locator(pack_id, offset, length, inner, size)
            add_object(kind, inner, size, ref.id)
            inner += size
        self._size_bytes += length

    def close(self) -> Value:
        """Return the whole pack and its key; nothing may be placed after that."""
        self._parts.append(encode_tail(self.id, self._table, self._size_bytes))
        return pack_key(self.id), self._parts


class Packs:
    """Places frames in packs of about `pack_bytes` and has them uploaded.

    The first pack takes data and metadata, up to MIXED_PACK_BYTES; after it, each kind goes to
    packs of its own. So little is stored as one value, and of much the metadata can be read
    without the data between.

    Memory: two packs being filled, and those that `uploads` has under way. Not thread-safe.
    """

    def __init__(
        self, uploads: Uploads, *, pack_bytes: int, draw_pack_id: Callable[[], PackId]
    ) -> None:
        self._uploads = uploads
        self._pack_bytes = pack_bytes
        self._draw_pack_id = draw_pack_id
        self._filling: dict[RunKind, PackBuilder] = {}
        self.packs: list[PackId] = []
        """Packs begun to upload, in order."""
        self.stored_bytes = 0
        self.objects = 0
        """Placed so far."""

    def place(self, run: Run, frame: tuple[bytes, bytes]) -> None:
        """Append the frame of `run` to a pack, and give each of its references its locator."""
        pack = self._filling.get(run.kind)
        length, is_first = len(frame[0]) + len(frame[1]), not self.packs
        limit = min(self._pack_bytes, MIXED_PACK_BYTES) if is_first else self._pack_bytes
        if pack is not None and pack.is_full(length, pack_bytes=limit):
            self._uploads.begin(self._close(pack))
            pack, is_first = None, False
        if pack is None:
            pack = PackBuilder(self._draw_pack_id())
            for kind in (RunKind.DATA, RunKind.META) if is_first else (run.kind,):
                self._filling[kind] = pack
        pack.place(run, frame)
        self.objects += len(run.refs)

    def finish(self, beside: Sequence[Value]) -> None:
        """Upload what is left and, at the same time, `beside`; all is durable on return."""
        left = list(dict.fromkeys(self._filling.values()))
        self._uploads.finish([*map(self._close, left), *beside])

    def _close(self, pack: PackBuilder) -> Value:
        self._filling = {kind: other for kind, other in self._filling.items() if other is not pack}
        value = pack.close()
        self.packs.append(pack.id)
        self.stored_bytes += sum(map(len, value[1]))
        return value
