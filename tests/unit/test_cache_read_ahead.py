"""How far is read ahead: requests are few when reading goes on, bytes are few when it does not.

Between two reads everything that was asked for arrives, so that each run is the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.gated_source import GatedSource, until
from workspacefs.cache.block_file import BLOCK_BYTES
from workspacefs.cache.directory import CacheDirectory
from workspacefs.cache.fetcher import Fetcher
from workspacefs.cache.read_ahead import REQUEST_BLOCKS, WINDOW_MIN_BLOCKS, ReadAhead

MIB = 1 << 20
REQUEST_BYTES = REQUEST_BLOCKS * BLOCK_BYTES
VALUE = random.Random(3).randbytes(32 * MIB)
STEP = 128 << 10


class Reader:
    """A program that reads through a cache, one range after the other."""

    def __init__(self, directory: Path, values: int = 1) -> None:
        names = [f"v{number}" for number in range(values)]
        self.source = GatedSource(dict.fromkeys(names, VALUE), piece_bytes=MIB)
        cache = CacheDirectory(directory, "s3://bucket", is_writable=True)
        self.fetcher = Fetcher(self.source, cache)

    def read(self, offset: int, length: int = STEP, *, key: str = "v0") -> int:
        """Read; return how many requests this led to, once all of them are over."""
        before = len(self.source.streams)
        data = self.fetcher.read(key, offset, length, wait_s=60.0)
        assert data == VALUE[offset : offset + length]
        until(self._is_idle)
        return len(self.source.streams) - before

    def fetched_bytes(self) -> int:
        """Return how much was asked for so far."""
        return sum(min(stream.length, len(VALUE) - stream.offset) for stream in self.source.streams)

    def _is_idle(self) -> bool:
        found = self.fetcher.queue_document()
        return found["queued"] == found["under_way"] == 0


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path, values=6)
    yield made
    made.fetcher.close()


def test_whole_value_forward_takes_a_request_each_4_mib(reader: Reader) -> None:
    """In order from its beginning: hardly more requests than 4 MiB ranges, and no byte twice."""
    for offset in range(0, len(VALUE), STEP):
        reader.read(offset)

    assert len(reader.source.streams) <= len(VALUE) // REQUEST_BYTES + 3
    assert reader.fetched_bytes() == len(VALUE)


def test_whole_value_backward_takes_a_request_each_4_mib(reader: Reader) -> None:
    """From its end to its beginning it is no worse."""
    for offset in range(len(VALUE) - STEP, -1, -STEP):
        reader.read(offset)

    assert len(reader.source.streams) <= len(VALUE) // REQUEST_BYTES + 4
    assert reader.fetched_bytes() == len(VALUE)


def test_reading_on_seldom_waits(reader: Reader) -> None:
    """Bytes are fetched before they are asked for: only the first reads miss, either way."""
    for offset in range(0, len(VALUE), STEP):
        reader.read(offset)
    forward = reader.fetcher.counts.misses
    for offset in range(len(VALUE) - STEP, -1, -STEP):
        reader.read(offset, key="v1")

    assert forward <= 3
    assert reader.fetcher.counts.misses - forward <= 3


def test_windows_double_as_reading_goes_on(reader: Reader) -> None:
    """The first window is small; the later ones reach 32 MiB ahead at most."""
    reader.read(0)
    first = reader.fetched_bytes()
    for offset in range(STEP, 4 * MIB, STEP):
        reader.read(offset)

    assert first == WINDOW_MIN_BLOCKS * BLOCK_BYTES
    assert reader.fetched_bytes() >= 8 * MIB


def test_next_value_begins_as_wide_as_the_last_one_was_read(reader: Reader) -> None:
    """A walk through one pack after the other does not begin small in each."""
    for offset in range(0, 16 * MIB, STEP):
        reader.read(offset)
    before = reader.fetched_bytes()

    reader.read(5 * MIB, key="v1")

    assert reader.fetched_bytes() - before == REQUEST_BYTES


def test_reads_at_random_fetch_little(reader: Reader) -> None:
    """Reads far from each other bring small windows only."""
    rng = random.Random(9)
    places = [(f"v{rng.randrange(6)}", rng.randrange(64) * 8 * BLOCK_BYTES) for _ in range(40)]

    for key, offset in places:
        reader.read(offset, 4096, key=key)

    assert reader.fetched_bytes() <= 40 * 2 * WINDOW_MIN_BLOCKS * BLOCK_BYTES


def test_random_reads_after_a_walk_become_small_again(tmp_path: Path) -> None:
    """What was learned from a walk is unlearned when its windows are of no use."""
    reader = Reader(tmp_path, values=140)
    for offset in range(0, 8 * MIB, STEP):
        reader.read(offset)
    for number in range(1, 139):
        reader.read(number % 7 * 4 * MIB, 4096, key=f"v{number}")
    before = reader.fetched_bytes()

    reader.read(9 * MIB, 4096, key="v139")

    assert reader.fetched_bytes() - before <= 2 * WINDOW_MIN_BLOCKS * BLOCK_BYTES
    reader.fetcher.close()


def test_streams_in_one_value_do_not_disturb_each_other(reader: Reader) -> None:
    """Three programs that read three parts in turn need as few requests as one after the other."""
    parts = (0, 12 * MIB, 24 * MIB)
    for offset in range(0, 8 * MIB, STEP):
        for part in parts:
            reader.read(part + offset)

    assert len(reader.source.streams) <= 8 + 3 * 4
    assert reader.fetcher.counts.misses <= 3 * 3


def test_reading_that_turns_around_goes_on_backward(reader: Reader) -> None:
    """After some steps back the windows lie on the other side."""
    reader.read(16 * MIB)
    for step in range(1, 100):
        reader.read(16 * MIB - step * STEP)

    assert reader.fetcher.counts.misses <= 6
    assert len(reader.source.streams) <= 12


def test_marks_of_another_process_are_taken_away(tmp_path: Path) -> None:
    """A mark that nobody knows of any more is met once, and costs no request."""
    first = Reader(tmp_path)
    for offset in range(0, 2 * MIB, STEP):
        first.read(offset)
    first.fetcher.close()
    second = Reader(tmp_path)
    directory = CacheDirectory(tmp_path, "s3://bucket", is_writable=False)
    file = directory.find("v0")
    assert file is not None
    held = 0
    while file.holds(held, BLOCK_BYTES):
        held += BLOCK_BYTES
    marked = [
        found.marked_block
        for block in range(held // BLOCK_BYTES)
        if (found := file.read(block * BLOCK_BYTES, BLOCK_BYTES)) and found.marked_block is not None
    ]
    assert marked

    requests = second.read(0, held)
    requests += second.read(0, held)

    assert requests == 0
    assert file.read(0, held) == (VALUE[:held], None)
    second.fetcher.close()


def test_memory_of_streams_is_bounded() -> None:
    """However many values are read, only the last ones are remembered; an old mark is no one's."""
    ahead = ReadAhead()
    window = ahead.miss("first", 0, 1)
    mark = window.place_mark([(0, 8)], 0, 1)
    assert mark == 1

    for number in range(1000):
        ahead.miss(f"v{number}", 0, 1)

    assert ahead.mark_met("first", mark) is None
    assert ahead.mark_met("v999", 5) is None
