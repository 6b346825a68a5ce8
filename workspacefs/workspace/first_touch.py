"""The order in which a tree was read for the first time, kept so that it can be fetched ahead.

A program that starts in a fresh mount reads much the same each time. The ranges that it had to
wait for are stored under hints/<commit>, once for each commit, and fetched in that order when the
commit is mounted elsewhere. Hints are nothing but hints: a wrong one costs some bytes.

The value is msgpack: [1, [pack id, ...], [index of the pack, first block, blocks, ...]].
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import msgpack

from workspacefs.cache.block_file import BLOCK_BYTES, block_span
from workspacefs.cache.read_ahead import REQUEST_BLOCKS, request_end
from workspacefs.errors import IntegrityError
from workspacefs.ids import PACK_ID_BYTES, PackId
from workspacefs.objects.refs import Ref
from workspacefs.packs.table import pack_id_of_key, pack_key

RECORD_S: Final = 600.0
"""What is read later than this after a mount is no part of a start."""
_FORMAT: Final = 1
_RANGES_MAX: Final = 4096
_BLOCKS_MAX: Final = (1 << 30) // BLOCK_BYTES
"""Of all ranges together: at most 1 GiB is fetched ahead on the word of a hint."""


def hint_key(commit: Ref) -> str:
    """Return the key under which the hints of a commit are stored."""
    return f"hints/{commit.id.hex()}"


@dataclass(slots=True)
class _Touched:
    """What was asked for in one stretch of a pack that one request can fetch."""

    first: int
    end: int
    touches: int = 0


class FirstTouches:
    """Notes ranges in the order in which they are first asked for. Thread-safe, and bounded."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._began = monotonic()
        self._lock = threading.Lock()
        self._touched: dict[tuple[PackId, int], _Touched] = {}

    def note(self, key: str, offset: int, length: int) -> None:
        """Note a range that was asked for."""
        pack_id = pack_id_of_key(key)
        if pack_id is None or self._monotonic() - self._began > RECORD_S:
            return
        first, end = block_span(offset, length)
        with self._lock:
            while first < end:
                stop = min(end, request_end(first))
                found = self._touched.get((pack_id, stop - 1 - (stop - 1) % REQUEST_BLOCKS))
                if found is None and len(self._touched) >= _RANGES_MAX:
                    return
                if found is None:
                    begin = first - first % REQUEST_BLOCKS
                    found = self._touched[pack_id, begin] = _Touched(first, stop)
                found.first, found.end = min(found.first, first), max(found.end, stop)
                found.touches += 1
                first = stop

    def encode(self) -> bytes | None:
        """Return the value to be stored; None: nothing was noted."""
        packs: dict[PackId, int] = {}
        numbers: list[int] = []
        with self._lock:
            for (pack_id, begin), found in self._touched.items():
                first, end = found.first, found.end
                if found.touches > 1:
                    # Only what was not at hand is noted: between and beside it more was read.
                    first, end = begin, begin + REQUEST_BLOCKS
                numbers += (packs.setdefault(pack_id, len(packs)), first, end - first)
        if not numbers:
            return None
        packed: bytes = msgpack.packb([_FORMAT, list(packs), numbers])
        return packed


def decode_hints(value: bytes) -> list[tuple[str, int, int]]:
    """Return the ranges (key, offset, length) of a stored value, in order.

    Raises:
        IntegrityError: It is malformed.
    """
    try:
        version, packs, numbers = msgpack.unpackb(value)
        if type(packs) is not list or type(numbers) is not list:
            raise ValueError
        if version != _FORMAT or not all(
            type(pack) is bytes and len(pack) == PACK_ID_BYTES for pack in packs
        ):
            raise ValueError
        return list(_ranges_of([PackId(pack) for pack in packs], numbers))
    except (
        ValueError,
        TypeError,
        IndexError,
        OverflowError,
        msgpack.exceptions.UnpackException,
    ) as exc:
        raise IntegrityError("hints are malformed", kind="hints.malformed") from exc


def _ranges_of(packs: list[PackId], numbers: list[int]) -> Iterator[tuple[str, int, int]]:
    if len(numbers) % 3 or not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError
    left = _BLOCKS_MAX
    for at in range(0, min(len(numbers), 3 * _RANGES_MAX), 3):
        pack, first, blocks = numbers[at : at + 3]
        left -= blocks
        if left < 0 or first > _BLOCKS_MAX:
            return
        yield pack_key(packs[pack]), first * BLOCK_BYTES, blocks * BLOCK_BYTES
