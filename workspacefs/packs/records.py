"""Records of metadata: a body, whose hash is its id, and beside it where its references lie.

A record in a META run is

    body_len     4  little-endian
    locator_len  4  little-endian
    body         body_len
    locators     locator_len: msgpack [[pack id, ...], [n integers, ...]], or nothing

The integers are five for each reference, in body order: index into the pack ids, offset and
length of the frame in its pack, offset and length in the plain bytes. Index -1: in the same frame
as this record (offset and length of the frame are 0); index -2: unknown (all are 0).

Locators are hints of unknown truth: whoever follows one verifies what it finds.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import Final, overload

import msgpack

from workspacefs.errors import IntegrityError
from workspacefs.ids import PACK_ID_BYTES, PackId
from workspacefs.objects.refs import Locator, LocatorSpan

SAME_FRAME: Final = -1
UNKNOWN: Final = -2
_LENGTHS: Final = struct.Struct("<II")
_INTS_EACH: Final = 5


class InSameFrame(tuple[int, int]):
    """Stands for the locator of a reference into the frame being written: (offset, length)."""

    __slots__ = ()


class LocatorList(Sequence[Locator | None]):
    """Locators of one record, made when asked for: most are never followed."""

    __slots__ = ("_ints", "_own", "_pack_ids")

    def __init__(self, own: Locator, pack_ids: Sequence[PackId], ints: array[int]) -> None:
        self._own = own
        self._pack_ids = pack_ids
        self._ints = ints

    def __len__(self) -> int:
        return len(self._ints) // _INTS_EACH

    @overload
    def __getitem__(self, index: int) -> Locator | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[Locator | None]: ...
    def __getitem__(self, index: int | slice) -> Locator | list[Locator | None] | None:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = index * _INTS_EACH
        pack, *where = self._ints[start : start + _INTS_EACH]
        if 0 <= pack < len(self._pack_ids):
            return Locator(self._pack_ids[pack], *where)
        if pack == SAME_FRAME:
            own = self._own
            return Locator(own.pack_id, own.frame_offset, own.frame_bytes, where[2], where[3])
        return None

    def are_all_known(self, start: int, stop: int) -> bool:
        """Tell whether all of a span lie in frames of known packs, other than their own."""
        packs = self._ints[start * _INTS_EACH : stop * _INTS_EACH : _INTS_EACH]
        return not packs or (min(packs) >= 0 and max(packs) < len(self._pack_ids))

    def copy_to(self, start: int, stop: int, packs: dict[PackId, int], ints: list[int]) -> None:
        """Add a span whose locators are all known to the table of another record."""
        begin = len(ints)
        ints += self._ints[start * _INTS_EACH : stop * _INTS_EACH]
        number_of = {
            old: packs.setdefault(self._pack_ids[old], len(packs))
            for old in sorted(set(ints[begin::_INTS_EACH]))
        }
        if any(old != new for old, new in number_of.items()):
            for at in range(begin, len(ints), _INTS_EACH):
                ints[at] = number_of[ints[at]]


def encode_record(
    body: bytes, locators: Iterable[Locator | InSameFrame | LocatorSpan | None]
) -> bytes:
    """Return the record of `body`, whose references lie where `locators` say, in body order."""
    packs: dict[PackId, int] = {}
    ints: list[int] = []
    for locator in locators:
        if locator is None:
            ints += (UNKNOWN, 0, 0, 0, 0)
        elif isinstance(locator, InSameFrame):
            ints += (SAME_FRAME, 0, 0, locator[0], locator[1])
        elif isinstance(locator, LocatorSpan):
            _add_span(locator, packs, ints)
        else:
            ints.append(packs.setdefault(locator[0], len(packs)))
            ints += locator[1:]
    hints = msgpack.packb((list(packs), ints)) if ints else b""
    return _LENGTHS.pack(len(body), len(hints)) + body + hints


def _add_span(span: LocatorSpan, packs: dict[PackId, int], ints: list[int]) -> None:
    table = span.locators
    known = min(span.stop, len(table))
    if isinstance(table, LocatorList) and table.are_all_known(span.start, known):
        table.copy_to(span.start, known, packs, ints)
    else:
        for index in range(span.start, known):
            locator = table[index]
            if locator is None:
                ints += (UNKNOWN, 0, 0, 0, 0)
            else:
                ints.append(packs.setdefault(locator[0], len(packs)))
                ints += locator[1:]
    for _ in range(span.stop - max(known, span.start)):
        ints += (UNKNOWN, 0, 0, 0, 0)


def split_record(plain: bytes, locator: Locator) -> tuple[bytes, bytes] | None:
    """Return body and packed locators of the record at `locator`; None: no record is there."""
    start, length = locator.inner_offset, locator.inner_bytes
    if length < _LENGTHS.size or not 0 <= start <= len(plain) - length:
        return None
    body_len, hints_len = _LENGTHS.unpack_from(plain, start)
    if _LENGTHS.size + body_len + hints_len != length:
        return None
    start += _LENGTHS.size
    return plain[start : start + body_len], plain[start + body_len : start + body_len + hints_len]


def decode_locators(hints: bytes, own: Locator, *, what: str) -> Sequence[Locator | None]:
    """Return the locators beside a record that lies at `own` itself.

    Raises:
        IntegrityError: They are malformed.
    """
    if not hints:
        return ()
    try:
        pack_ids, ints = msgpack.unpackb(hints)
        numbers = array("q", ints)
    except (ValueError, TypeError, OverflowError, msgpack.exceptions.UnpackException) as exc:
        raise _malformed(what) from exc
    if (
        len(numbers) % _INTS_EACH
        or not isinstance(pack_ids, list)
        or not all(type(one) is bytes and len(one) == PACK_ID_BYTES for one in pack_ids)
    ):
        raise _malformed(what)
    return LocatorList(own, pack_ids, numbers)


def _malformed(what: str) -> IntegrityError:
    return IntegrityError(f"{what} has malformed locators", kind="object.malformed")
