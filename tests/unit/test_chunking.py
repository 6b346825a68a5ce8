"""Cutting files into chunks."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workspacefs.chunking.cut import iter_chunks, zeros
from workspacefs.chunking.paged import is_paged
from workspacefs.chunking.parameters import GIB, KIB, MIB, ChunkParameters

SMALL = ChunkParameters(
    whole_max_bytes=2 * KIB,
    bands=((64 * KIB, 1 * KIB), (1 * MIB, 4 * KIB)),
    largest_avg_bytes=16 * KIB,
    page_bytes=4 * KIB,
)
REAL = ChunkParameters()
PINNED = [
    26408,
    54590,
    83806,
    66383,
    121068,
    88535,
    87985,
    42294,
    19113,
    48849,
    113922,
    72954,
    32152,
    42244,
    36046,
    112227,
]


def cut(data: bytes, params: ChunkParameters, **options: object) -> list[bytes]:
    def read(offset: int, length: int) -> bytes:
        return data[offset : offset + length]

    return [bytes(chunk) for chunk in iter_chunks(read, len(data), params, **options)]  # type: ignore[arg-type]


@given(
    parts=st.lists(
        st.tuples(st.sampled_from(["random", "zeros"]), st.integers(1, 200_000)), max_size=6
    ),
    seed=st.integers(0, 9),
)
@settings(deadline=None, max_examples=60)
def test_chunks_cover_the_file_and_holes_change_nothing(
    parts: list[tuple[str, int]], seed: int
) -> None:
    """Joined chunks are the file; knowing the holes gives the same cuts without reading them."""
    noise = random.Random(seed)
    data = b"".join(noise.randbytes(n) if kind == "random" else bytes(n) for kind, n in parts)

    def is_zero(offset: int, length: int) -> bool:
        part = data[offset : offset + length]
        return len(part) == length and not any(part)

    chunks = cut(data, SMALL)

    assert b"".join(chunks) == data
    assert cut(data, SMALL, is_zero=is_zero) == chunks


def test_file_up_to_the_limit_is_one_chunk() -> None:
    """128 KiB is one chunk, one byte more is cut."""
    noise = random.Random(1).randbytes(128 * KIB + 1)

    assert cut(noise[:-1], REAL) == [noise[:-1]]
    assert len(cut(noise, REAL)) > 1
    assert cut(b"", REAL) == []


def test_insertion_moves_few_cuts() -> None:
    """One byte inserted into 20 MiB leaves nearly all chunks as they were."""
    data = random.Random(2).randbytes(20 * MIB)

    old = cut(data, REAL)
    new = cut(data[: 10 * MIB] + b"!" + data[10 * MIB :], REAL)

    assert len(set(new) - set(old)) <= 2
    assert max(map(len, new)) <= 4 * REAL.avg_bytes_for(len(data))


def test_cuts_are_pinned() -> None:
    """A change of these figures breaks dedup against every stored workspace."""
    data = random.Random(3).randbytes(1 * MIB)

    assert [len(chunk) for chunk in cut(data, REAL)] == PINNED


def test_database_is_cut_in_pages() -> None:
    """A SQLite file is cut every 64 KiB, so a changed page is one changed chunk."""
    data = b"SQLite format 3\0" + random.Random(4).randbytes(1 * MIB)

    assert {len(chunk) for chunk in cut(data, REAL)[:-1]} == {64 * KIB}


@pytest.mark.parametrize(
    "head",
    [b"SQLite format 3\0", b"QFI\xfb", bytes(16) + b"\xde\xc0\xef\xbe", bytes(1080) + b"\x53\xef"],
)
def test_paged_files_are_told_by_content(head: bytes) -> None:
    """Magic numbers decide, names do not."""
    assert is_paged(head.ljust(4096, b"\0"))
    assert not is_paged(b"#!/bin/sh\n")


def test_sizes_grow_with_the_file() -> None:
    """Averages follow the bands; pages double for huge files."""
    assert REAL.avg_bytes_for(8 * MIB) == 64 * KIB
    assert REAL.avg_bytes_for(8 * MIB + 1) == 256 * KIB
    assert REAL.avg_bytes_for(3 * GIB) == 2 * MIB
    assert REAL.page_bytes_for(16 * GIB) == 64 * KIB
    assert REAL.page_bytes_for(20 * GIB) == 128 * KIB


def test_file_that_shrinks_while_read_ends_where_it_ends() -> None:
    """A short read is the end, not an error and not zeros."""
    data = random.Random(5).randbytes(300 * KIB)

    chunks = iter_chunks(lambda offset, length: data[offset : offset + length], 10 * MIB, REAL)

    assert b"".join(map(bytes, chunks)) == data


def test_large_hole_is_not_read() -> None:
    """Of a terabyte with data only at both ends, a few windows are read."""
    size, asked = 1 << 40, 0

    def read(offset: int, length: int) -> bytes:
        nonlocal asked
        asked += length
        return bytes(length)

    total = 0
    for chunk in iter_chunks(
        read,
        size,
        REAL,
        is_zero=lambda offset, length: offset > 100 and offset + length < size - 100,
    ):
        total += len(chunk)

    assert total == size
    assert asked < 200 * MIB
    assert zeros(8 * MIB) is zeros(8 * MIB)
