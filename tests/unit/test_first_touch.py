"""Hints: what was read first, kept and fetched in that order; a forged one does no harm."""

from __future__ import annotations

import random

import msgpack
import pytest

from workspacefs.cache.block_file import BLOCK_BYTES
from workspacefs.cache.read_ahead import REQUEST_BLOCKS
from workspacefs.errors import IntegrityError
from workspacefs.ids import PACK_ID_BYTES, PackId
from workspacefs.packs.table import pack_key
from workspacefs.workspace.first_touch import RECORD_S, FirstTouches, decode_hints

A, B = (PackId(bytes([number]) * PACK_ID_BYTES) for number in (1, 2))
REQUEST_BYTES = REQUEST_BLOCKS * BLOCK_BYTES


class Clock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def monotonic(self) -> float:
        return self.now_s


def touched(*ranges: tuple[PackId, int, int]) -> list[tuple[str, int, int]]:
    """Return what is fetched ahead after these ranges were asked for."""
    touches = FirstTouches()
    for pack_id, offset, length in ranges:
        touches.note(pack_key(pack_id), offset, length)
    value = touches.encode()
    assert value is not None
    return decode_hints(value)


def test_ranges_come_back_in_the_order_of_first_touch() -> None:
    """Whole blocks, of each pack, the first one asked for first."""
    found = touched((B, 70_000, 10), (A, 0, 1), (B, 3 * REQUEST_BYTES, BLOCK_BYTES + 1))

    assert found == [
        (pack_key(B), BLOCK_BYTES, BLOCK_BYTES),
        (pack_key(A), 0, BLOCK_BYTES),
        (pack_key(B), 3 * REQUEST_BYTES, 2 * BLOCK_BYTES),
    ]


def test_second_touch_takes_the_whole_request() -> None:
    """Where one request was touched twice, all of it was wanted."""
    found = touched((A, REQUEST_BYTES + 10, 10), (A, REQUEST_BYTES + 500_000, 10))

    assert found == [(pack_key(A), REQUEST_BYTES, REQUEST_BYTES)]


def test_range_over_a_border_touches_both_requests() -> None:
    """A range is parted where requests are."""
    found = touched((A, REQUEST_BYTES - 10, 20))

    assert found == [
        (pack_key(A), REQUEST_BYTES - BLOCK_BYTES, BLOCK_BYTES),
        (pack_key(A), REQUEST_BYTES, BLOCK_BYTES),
    ]


def test_nothing_noted_is_no_value() -> None:
    """Without reads, and after reads of other things than packs, there is nothing to store."""
    touches = FirstTouches()
    touches.note("refs/branches/main", 0, 10)
    touches.note("packs/not-hex.pack", 0, 10)
    touches.note(pack_key(A), 0, 0)

    assert touches.encode() is None


def test_what_is_read_late_is_no_part_of_a_start() -> None:
    """Notes end after some minutes."""
    clock = Clock()
    touches = FirstTouches(monotonic=clock.monotonic)
    clock.now_s += RECORD_S - 1
    touches.note(pack_key(A), 0, 1)
    clock.now_s += 2
    touches.note(pack_key(B), 0, 1)

    value = touches.encode()

    assert value is not None
    assert [key for key, _, _ in decode_hints(value)] == [pack_key(A)]


def test_notes_are_bounded() -> None:
    """However much is read, the value stays small, and says what came first."""
    touches = FirstTouches()
    for number in range(10_000):
        touches.note(pack_key(A), number * REQUEST_BYTES, 1)

    value = touches.encode()

    assert value is not None
    assert len(value) < 60_000
    assert decode_hints(value)[:2] == [
        (pack_key(A), 0, BLOCK_BYTES),
        (pack_key(A), REQUEST_BYTES, BLOCK_BYTES),
    ]


@pytest.mark.parametrize(
    "document",
    [
        None,
        1,
        [],
        [1, []],
        [2, [bytes(A)], [0, 0, 1]],
        [1, [bytes(A)], [0, 0, 1], 4],
        [1, bytes(A), [0, 0, 1]],
        [1, {bytes(A): 1}, [0, 0, 1]],
        [1, [bytes(A)[:-1]], [0, 0, 1]],
        [1, ["a" * PACK_ID_BYTES], [0, 0, 1]],
        [1, [bytes(A)], [0, 0]],
        [1, [bytes(A)], [1, 0, 1]],
        [1, [bytes(A)], [-1, 0, 1]],
        [1, [bytes(A)], [0, -1, 1]],
        [1, [bytes(A)], [0, 0, -1]],
        [1, [bytes(A)], [0.0, 0, 1]],
        [1, [bytes(A)], [True, 0, 1]],
        [1, [bytes(A)], [0, 0, None]],
        [1, [bytes(A)], bytes(3)],
        [1, [bytes(A)], "000"],
        [1, [bytes(A)], {0: 0, 1: 0, 2: 1}],
        [[1], [bytes(A)], [0, 0, 1]],
        {1: 2, 3: 4, 5: 6},
    ],
)
def test_hostile_value_is_damage(document: object) -> None:
    """Whatever has another shape is told as damage, and as nothing else."""
    with pytest.raises(IntegrityError) as caught:
        decode_hints(msgpack.packb(document))

    assert caught.value.kind == "hints.malformed"


@pytest.mark.parametrize(
    "value", [b"", b"\xc1", b"\x93\x01\x90", b"\x91" * 5000, b"\xdf\xff\xff\xff\xff"]
)
def test_garbage_is_damage(value: bytes) -> None:
    """What is no msgpack at all is damage as well."""
    with pytest.raises(IntegrityError):
        decode_hints(value)


@pytest.mark.parametrize(
    "numbers",
    [
        [0, 0, 1 << 40],
        [0, 1 << 40, 1],
        [0, 0, 1 << 14, 0, 0, 1],
        [0, 0, 0] * 100_000,
        [0, 0, 1 << 14] * 1000,
    ],
)
def test_forged_hints_fetch_a_bounded_amount(numbers: list[int]) -> None:
    """No hint makes anyone fetch more than 1 GiB, in more than some thousand ranges."""
    found = decode_hints(msgpack.packb([1, [bytes(A)], numbers]))

    assert len(found) <= 4096
    assert sum(length for _, _, length in found) <= 1 << 30
    assert all(offset <= 1 << 30 for _, offset, _ in found)


def test_flipped_bytes_are_damage_or_other_ranges() -> None:
    """Of a value with any byte changed nothing but ranges or an IntegrityError comes."""
    touches = FirstTouches()
    rng = random.Random(4)
    for _ in range(50):
        touches.note(pack_key(rng.choice((A, B))), rng.randrange(1 << 30), rng.randrange(1 << 20))
    value = touches.encode()
    assert value is not None
    damaged = 0

    for at in range(len(value)):
        changed = bytearray(value)
        changed[at] ^= 1 << rng.randrange(8)
        try:
            decode_hints(bytes(changed))
        except IntegrityError:
            damaged += 1

    assert damaged > 0
