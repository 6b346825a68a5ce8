"""The ends of a pack: header, table of what lies where, footer.

All integers are little-endian. A pack is header, frames, one frame of kind TABLE, footer:

    header   magic 8 "wsfspack", version 2, zero 6, pack id 16
    footer   table_offset 8, table_bytes 4 (its frame, header included), version 2, zero 2,
             pack id 16, check 8 (xxh3_64 of the 32 bytes before it), magic 8 "wsfs-end"

The plain bytes of the table, in columns (n frames, m objects in the order of their frames):

    n 4, m 4
    frames   offset 8*n, length 4*n (header included), objects in it 4*n
    objects  kind 1*m (ObjectKind), inner offset 4*m, inner length 4*m, id 32*m

So a pack is readable from its tail, and every index can be rebuilt from the packs alone.
"""

from __future__ import annotations

import enum
import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

import xxhash

from workspacefs.backend.contract import Backend
from workspacefs.errors import IntegrityError, KeyAbsentError, RefusedError
from workspacefs.ids import ID_BYTES, PACK_ID_BYTES, PackId
from workspacefs.objects.refs import Locator
from workspacefs.packs.frames import FRAME_MAX_BYTES, RunKind, decode_frame, encode_frame

PACK_PREFIX: Final = "packs/"
PACK_SUFFIX: Final = ".pack"
FORMAT_VERSION: Final = 1
HEADER_BYTES: Final = 32
FOOTER_BYTES: Final = 48

_HEADER: Final = struct.Struct("<8sH6x16s")
_HEADER_MAGIC: Final = b"wsfspack"
_FOOTER: Final = struct.Struct("<QIHH16s")
_FOOTER_END: Final = struct.Struct("<Q8s")
_FOOTER_MAGIC: Final = b"wsfs-end"
_COUNTS: Final = struct.Struct("<II")
_TAIL_BYTES: Final = 64 * 1024
"""Read at once from the end of a pack: mostly the whole table."""


class ObjectKind(enum.IntEnum):
    """What an object in a pack is."""

    CHUNK = 1
    NODE = 2
    CHUNK_LIST = 3
    COMMIT = 4


def pack_key(pack_id: PackId) -> str:
    """Return the key of a pack: packs/<32 hex digits>.pack."""
    return f"packs/{pack_id.hex()}.pack"


def pack_id_of_key(key: str) -> PackId | None:
    """Return the id of the pack that lies at `key`, or None when it is no key of a pack."""
    digits = key[len(PACK_PREFIX) : -len(PACK_SUFFIX)]
    try:
        pack_id = PackId(bytes.fromhex(digits))
    except ValueError:
        return None
    return pack_id if len(pack_id) == PACK_ID_BYTES and pack_key(pack_id) == key else None


def encode_header(pack_id: PackId) -> bytes:
    """Return the first bytes of a pack."""
    return _HEADER.pack(_HEADER_MAGIC, FORMAT_VERSION, pack_id)


class PackTable:
    """What lies where in one pack: filled by the writer, or decoded and then only read."""

    __slots__ = ("_counts", "_ends", "_ids", "_kinds", "_lengths", "_offsets", "_sizes", "_starts")

    def __init__(self) -> None:
        self._offsets = array("Q")
        self._lengths = array("I")
        self._counts = array("I")
        self._ends: list[int] | None = None
        self._kinds = bytearray()
        self._starts = array("I")
        self._sizes = array("I")
        self._ids = bytearray()

    def __len__(self) -> int:
        return len(self._kinds)

    @property
    def size_bytes(self) -> int:
        """Memory held, bytes, roughly."""
        return 44 * len(self._kinds) + 52 * len(self._offsets) + 600

    def add_frame(self, offset: int, length: int, objects: int) -> None:
        """Note a frame; its objects are added next, in order."""
        self._offsets.append(offset)
        self._lengths.append(length)
        self._counts.append(objects)

    def add_object(self, kind: int, inner_offset: int, inner_bytes: int, object_id: bytes) -> None:
        """Note an object of the frame added last."""
        self._kinds.append(kind)
        self._starts.append(inner_offset)
        self._sizes.append(inner_bytes)
        self._ids += object_id

    def find(self, pack_id: PackId, object_id: bytes) -> Locator | None:
        """Return where an object lies, or None. A search through all ids, at memory speed."""
        at = self._ids.find(object_id)
        while at >= 0 and at % ID_BYTES:
            at = self._ids.find(object_id, at + 1)
        return None if at < 0 else self._locator(pack_id, at // ID_BYTES)

    def iter_objects(self, pack_id: PackId) -> Iterator[tuple[ObjectKind, bytes, Locator]]:
        """Yield kind, id and locator of each object, in the order in which they lie."""
        for number, kind in enumerate(self._kinds):
            at = number * ID_BYTES
            yield (
                ObjectKind(kind),
                bytes(self._ids[at : at + ID_BYTES]),
                self._locator(pack_id, number),
            )

    def iter_frames(self) -> Iterator[tuple[int, int]]:
        """Yield (offset, length) of each frame, in order."""
        return zip(self._offsets, self._lengths, strict=True)

    def encode(self) -> bytes:
        """Return the plain bytes of the table."""
        columns = (self._offsets, self._lengths, self._counts, self._starts, self._sizes)
        offsets, lengths, counts, starts, sizes = map(_little_endian, columns)
        head = _COUNTS.pack(len(self._offsets), len(self._kinds))
        return b"".join(
            (head, offsets, lengths, counts, bytes(self._kinds), starts, sizes, bytes(self._ids))
        )

    @classmethod
    def decode(cls, plain: bytes, *, what: str) -> PackTable:
        """Return the table of these plain bytes.

        Raises:
            IntegrityError: They are of the wrong length or count, or name an unknown kind.
        """
        if len(plain) < _COUNTS.size:
            raise _damaged(what, "has a table without counts")
        frames, objects = _COUNTS.unpack_from(plain)
        if len(plain) != _COUNTS.size + 16 * frames + (9 + ID_BYTES) * objects:
            raise _damaged(what, "has a table of the wrong length")
        table = cls()
        at = _COUNTS.size
        for column, count in (
            (table._offsets, frames),
            (table._lengths, frames),
            (table._counts, frames),
        ):
            at = _fill(column, plain, at, count)
        table._kinds += plain[at : at + objects]
        at += objects
        at = _fill(table._starts, plain, at, objects)
        at = _fill(table._sizes, plain, at, objects)
        table._ids += plain[at:]
        if sum(table._counts) != objects or not set(table._kinds) <= set(ObjectKind):
            raise _damaged(what, "has a table that contradicts itself")
        return table

    def _locator(self, pack_id: PackId, number: int) -> Locator:
        if self._ends is None:
            self._ends = list(accumulate(self._counts))
        frame = bisect_right(self._ends, number)
        return Locator(
            pack_id,
            self._offsets[frame],
            self._lengths[frame],
            self._starts[number],
            self._sizes[number],
        )


def encode_tail(pack_id: PackId, table: PackTable, table_offset: int) -> bytes:
    """Return the last bytes of a pack: the frame of its table, and the footer."""
    frame = b"".join(encode_frame(RunKind.TABLE, table.encode()))
    fields = _FOOTER.pack(table_offset, len(frame), FORMAT_VERSION, 0, pack_id)
    check = xxhash.xxh3_64_intdigest(fields)
    return frame + fields + _FOOTER_END.pack(check, _FOOTER_MAGIC)


def load_table(backend: Backend, pack_id: PackId) -> PackTable:
    """Read the table of a pack, mostly with one ranged read.

    Raises:
        IntegrityError: The pack is missing, or its tail is damaged.
        RefusedError: The pack is of a newer format.
    """
    key = pack_key(pack_id)
    try:
        size = backend.size_bytes(key)
        start = max(0, size - _TAIL_BYTES)
        tail = backend.get(key, offset=start, length=size - start)
        offset, length = _table_place(tail, pack_id, size, what=key)
        if offset >= start:
            stored = tail[offset - start : offset - start + length]
        else:
            stored = backend.get(key, offset=offset, length=length)
    except KeyAbsentError as exc:
        raise IntegrityError(f"{key} is missing", kind="pack.missing", pack=key) from exc
    plain = decode_frame(stored, RunKind.TABLE, what=f"the table of {key}")
    return PackTable.decode(plain, what=key)


def _table_place(tail: bytes, pack_id: PackId, size: int, *, what: str) -> tuple[int, int]:
    if len(tail) < FOOTER_BYTES:
        raise _damaged(what, "is too short for a pack")
    fields = tail[-FOOTER_BYTES : -_FOOTER_END.size]
    check, magic = _FOOTER_END.unpack(tail[-_FOOTER_END.size :])
    if magic != _FOOTER_MAGIC or check != xxhash.xxh3_64_intdigest(fields):
        raise _damaged(what, "does not end as a pack does")
    offset, length, version, _, own_id = _FOOTER.unpack(fields)
    if version > FORMAT_VERSION:
        raise RefusedError(
            f"{what} is of format {version}, newer than {FORMAT_VERSION}; use a newer release",
            kind="format.newer",
            pack=what,
        )
    if own_id != pack_id:
        raise _damaged(what, f"is a copy of pack {own_id.hex()}")
    if length > FRAME_MAX_BYTES or offset < HEADER_BYTES or offset + length > size - FOOTER_BYTES:
        raise _damaged(what, "has a table outside of itself")
    return offset, length


def _little_endian(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


def _fill(column: array[int], plain: bytes, at: int, count: int) -> int:
    end = at + count * column.itemsize
    column.frombytes(plain[at:end])
    if sys.byteorder == "big":
        column.byteswap()
    return end


def _damaged(what: str, why: str) -> IntegrityError:
    return IntegrityError(f"{what} {why}", kind="pack.damaged", pack=what)
