"""Reading through the cache: right bytes, one download, demand first, and all that can fail."""

from __future__ import annotations

import gc
import os
import random
import resource
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.clocks import TurnedClock
from tests.unit.gated_source import PATIENCE_S, GatedSource, Piece, until
from workspacefs.backend.contract import STORE_DENIED
from workspacefs.cache.block_file import BLOCK_BYTES, VALUE_MAX_BYTES
from workspacefs.cache.directory import CacheDirectory, evict
from workspacefs.cache.fetch_queue import Priority
from workspacefs.cache.fetcher import Fetcher
from workspacefs.errors import (
    IntegrityError,
    KeyAbsentError,
    UnavailableError,
    WorkspaceError,
)

MIB = 1 << 20
VALUE = random.Random(1).randbytes(10 * MIB + 12_345)
WAIT_S = 60.0

MakeFetcher = Callable[..., Fetcher]


class Asked:
    """A read under way on a thread of its own."""

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._outcome: list[bytes | Exception] = []
        self._thread = threading.Thread(target=self._run, args=(read,), daemon=True)
        self._thread.start()

    def _run(self, read: Callable[[], bytes]) -> None:
        try:
            self._outcome.append(read())
        except (WorkspaceError, KeyAbsentError) as exc:
            self._outcome.append(exc)

    def result(self) -> bytes:
        """Wait for the answer; return it, or raise the error."""
        self._thread.join(PATIENCE_S)
        assert self._outcome, "the read does not return"
        (outcome,) = self._outcome
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def make(root: Path) -> Iterator[MakeFetcher]:
    """Makes fetchers over one cache directory."""
    made: list[tuple[Fetcher, GatedSource]] = []

    def make(source: GatedSource, **options: object) -> Fetcher:
        directory = CacheDirectory(root, "s3://bucket", is_writable=True)
        fetcher = Fetcher(source, directory, **options)  # type: ignore[arg-type]
        made.append((fetcher, source))
        return fetcher

    yield make
    for fetcher, source in made:
        fetcher.close()
        source.let_all()


def ask(fetcher: Fetcher, offset: int, length: int, *, key: str = "k", **how: object) -> Asked:
    """Begin to read a range."""
    options = {"wait_s": WAIT_S, **how}
    return Asked(lambda: fetcher.read(key, offset, length, **options))  # type: ignore[arg-type]


def is_idle(fetcher: Fetcher) -> bool:
    """Tell whether nothing is queued or under way."""
    found = fetcher.queue_document()
    return found["queued"] == found["under_way"] == 0


@contextmanager
def files_at_most(size_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size: a disk that fills up at just that byte."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# -- right bytes -----------------------------------------------------------------------------


def test_random_ranges_from_many_threads_equal_the_values(make: MakeFetcher, root: Path) -> None:
    """Whatever is read, forgotten, fetched ahead, evicted and deleted at the same time."""
    seed = int(os.environ.get("WORKSPACEFS_TEST_SEED", "11"))
    values = {
        f"v{number}": random.Random(number).randbytes(3 * MIB - number) for number in range(4)
    }
    source = GatedSource(values, piece_bytes=50_000)
    fetchers = [make(source), make(source, threads=3)]  # as in two processes
    wrong: list[tuple[str, int, int]] = []

    def work(number: int) -> None:
        rng = random.Random(f"{seed}/{number}")
        for step in range(120):
            key = rng.choice(list(values))
            value, fetcher = values[key], rng.choice(fetchers)
            offset = rng.randrange(len(value))
            length = min(len(value) - offset, rng.choice((1, 4096, 100_000, 1_500_000)))
            match rng.randrange(40):
                case 0:
                    fetcher.forget(key, offset, length)
                case 1 | 2:
                    fetcher.prefetch(key, offset, length)
                case 3:
                    evict(root, 4 * MIB, disk_of=lambda _: (1 << 50, 1 << 49))
                case 4 if number == 0:
                    shutil.rmtree(root, ignore_errors=True)
                case _:
                    priority = rng.choice((Priority.DEMAND, Priority.DEMAND, Priority.PREFETCH))
                    data = fetcher.read(key, offset, length, wait_s=WAIT_S, priority=priority)
                    # A file that was emptied may show zeros; readers notice and ask again.
                    if data != value[offset : offset + length]:
                        fetcher.forget(key, offset, length)
                        data = fetcher.read(key, offset, length, wait_s=WAIT_S)
                    if data != value[offset : offset + length]:
                        wrong.append((key, offset, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert not any(thread.is_alive() for thread in threads)
    assert wrong == [], f"seed {seed}"
    until(lambda: all(map(is_idle, fetchers)))


def test_what_was_read_is_read_again_without_asking(make: MakeFetcher) -> None:
    """A second read, by this process or another one, costs no request."""
    source = GatedSource({"k": VALUE})
    fetcher = make(source)
    fetcher.read("k", 100, 1000, wait_s=WAIT_S)
    until(lambda: is_idle(fetcher))
    asked = len(source.streams)

    again = fetcher.read("k", 50_000, 1000, wait_s=WAIT_S)
    elsewhere = make(source).read("k", 0, 1000, wait_s=WAIT_S)

    assert again == VALUE[50_000:51_000]
    assert elsewhere == VALUE[:1000]
    assert len(source.streams) == asked
    assert (fetcher.counts.hits, fetcher.counts.misses) == (1, 1)


def test_inserted_value_is_there(make: MakeFetcher) -> None:
    """What was just stored is read without asking for it, to its last byte."""
    source = GatedSource({})
    fetcher = make(source)

    fetcher.insert("k", VALUE)
    fetcher.insert("empty", b"")

    assert fetcher.read("k", 0, len(VALUE), wait_s=WAIT_S) == VALUE
    assert fetcher.total_bytes("k") == len(VALUE)
    assert fetcher.holds("k", len(VALUE) - 1, 1)
    assert source.streams == []


def test_value_longer_than_the_cache_takes_is_read_all_the_same(make: MakeFetcher) -> None:
    """Of a value whose map has no room for all blocks nothing is kept, but everything is read."""

    class Long(bytes):
        def __len__(self) -> int:
            return VALUE_MAX_BYTES + BLOCK_BYTES

    source = GatedSource({"k": Long(VALUE)})
    fetcher = make(source)

    first = fetcher.read("k", 5, 200_000, wait_s=WAIT_S)
    until(lambda: is_idle(fetcher))  # else the same download may serve both
    again = fetcher.read("k", 5, 200_000, wait_s=WAIT_S)

    assert first == again == VALUE[5:200_005]
    assert len(source.streams) >= 2
    assert not fetcher.holds("k", 5, 1)


# -- one download, and when those who wait go on ----------------------------------------------


def test_misses_at_the_same_time_share_one_download(make: MakeFetcher) -> None:
    """Of many who want the same range, one asks for it."""
    source = GatedSource({"k": VALUE}, is_held=True)
    fetcher = make(source)

    reads = [ask(fetcher, 1000 * number, 50_000) for number in range(8)]
    until(lambda: fetcher.queue_document()["waiting"] == 8)
    source.let_all()

    for number, read in enumerate(reads):
        assert read.result() == VALUE[1000 * number :][:50_000]
    assert [stream.offset for stream in source.streams] == [0]
    assert fetcher.counts.joined == 7


def test_who_waits_goes_on_as_soon_as_the_bytes_are_there(make: MakeFetcher) -> None:
    """A reader of the first bytes does not wait for the rest of its request."""
    source = GatedSource({"k": VALUE}, is_held=True)
    fetcher = make(source)
    first = ask(fetcher, 10, 20)
    (stream,) = source.wait_for(1)

    stream.let(1)

    assert first.result() == VALUE[10:30]
    assert not stream.is_closed
    assert stream.length > BLOCK_BYTES


def test_bytes_within_a_block_are_handed_out_before_it_is_whole(make: MakeFetcher) -> None:
    """Pieces that are smaller than a block serve who waits for just them."""
    source = GatedSource({"k": VALUE}, is_held=True, piece_bytes=10_000)
    fetcher = make(source)
    read = ask(fetcher, 3, 9_000)
    (stream,) = source.wait_for(1)

    stream.let(1)

    assert read.result() == VALUE[3:9_003]


def test_range_over_what_is_there_and_what_comes(make: MakeFetcher) -> None:
    """Only what is missing between blocks on disk is asked for."""
    source = GatedSource({"k": VALUE})
    fetcher = make(source)
    fetcher.prefetch("k", 2 * BLOCK_BYTES, BLOCK_BYTES)
    until(lambda: fetcher.holds("k", 2 * BLOCK_BYTES, 1) and is_idle(fetcher))
    del source.streams[:]

    data = fetcher.read("k", 0, 5 * BLOCK_BYTES, wait_s=WAIT_S)

    assert data == VALUE[: 5 * BLOCK_BYTES]
    assert {stream.offset for stream in source.streams} >= {0, 3 * BLOCK_BYTES}
    assert all(stream.offset != 2 * BLOCK_BYTES for stream in source.streams)


# -- demand before prefetch -------------------------------------------------------------------


def test_demand_passes_what_is_queued_for_later(make: MakeFetcher) -> None:
    """The next free thread takes what a program waits for before what was queued long ago."""
    source = GatedSource({"a": VALUE, "b": VALUE, "c": VALUE, "k": VALUE}, is_held=True)
    fetcher = make(source, threads=2)
    busy = ask(fetcher, 0, 100, key="c")
    source.wait_for(1)
    fetcher.prefetch("a", 0, 100)
    source.wait_for(2)
    fetcher.prefetch("b", 0, 100)
    read = ask(fetcher, 0, 100)
    until(lambda: fetcher.queue_document()["waiting"] == 2)

    source.streams[0].let_all()
    stream = source.wait_for(3)[2]
    source.let_all()

    assert stream.key == "k"
    assert busy.result() == read.result() == VALUE[:100]


def test_demand_for_what_is_queued_brings_it_forward(make: MakeFetcher) -> None:
    """A range that waits in the queue is taken at once when a program wants it, and once only."""
    source = GatedSource({f"v{number}": VALUE for number in range(5)}, is_held=True)
    fetcher = make(source, threads=2)
    for number in range(5):
        fetcher.prefetch(f"v{number}", 0, 100)
    source.wait_for(1)

    read = ask(fetcher, 0, 100, key="v4")
    source.wait_for(2)
    source.let_all()

    assert read.result() == VALUE[:100]
    until(lambda: is_idle(fetcher))
    assert [stream.key for stream in source.streams] == ["v0", "v4", "v1", "v2", "v3"]


def test_demand_is_served_while_prefetches_take_all_they_may(make: MakeFetcher) -> None:
    """Some threads are kept for demand."""
    source = GatedSource(
        {**{f"v{number}": VALUE for number in range(30)}, "k": VALUE}, is_held=True
    )
    fetcher = make(source)
    for number in range(30):
        fetcher.prefetch(f"v{number}", 0, 100)
    source.wait_for(12)

    read = ask(fetcher, 0, 100)
    stream = source.wait_for(13)[12]
    stream.let_all()

    assert read.result() == VALUE[:100]
    until(lambda: fetcher.queue_document()["under_way"] == 12)


def test_prefetch_under_way_pauses_while_a_program_waits(make: MakeFetcher) -> None:
    """It holds still after the piece it has, and goes on when nobody waits any more."""
    source = GatedSource({"later": VALUE, "k": VALUE}, is_held=True)
    fetcher = make(source)
    fetcher.prefetch("later", 0, 2 * MIB)
    (later,) = source.wait_for(1)
    read = ask(fetcher, 0, 100)
    _, now = source.wait_for(2)
    until(lambda: fetcher.queue_document()["waiting"] == 1)

    later.let(1)
    until(lambda: fetcher.queue_document()["paused"] == 1)
    now.let_all()

    assert read.result() == VALUE[:100]
    later.let_all()
    until(lambda: fetcher.holds("later", 0, 2 * MIB))


def test_prefetch_that_a_program_waits_for_does_not_pause(make: MakeFetcher) -> None:
    """A range under way becomes demand, and nothing stops it."""
    source = GatedSource({"k": VALUE, "other": VALUE}, is_held=True)
    fetcher = make(source)
    fetcher.prefetch("k", 0, 2 * MIB)
    (stream,) = source.wait_for(1)
    other = ask(fetcher, 0, 100, key="other")
    source.wait_for(2)
    until(lambda: fetcher.queue_document()["waiting"] == 1)
    stream.let(1)
    until(lambda: fetcher.queue_document()["paused"] == 1)

    read = ask(fetcher, 0, 2 * MIB)
    until(lambda: fetcher.queue_document()["paused"] == 0)
    stream.let_all()

    assert read.result() == VALUE[: 2 * MIB]
    source.let_all()
    assert other.result() == VALUE[:100]


def test_queue_is_bounded(make: MakeFetcher) -> None:
    """What nobody waits for is given up when the queue is full; demand still gets in."""
    source = GatedSource({"k": VALUE, "v0": VALUE}, is_held=True)
    fetcher = make(source, threads=2)
    fetcher.prefetch("v0", 0, 1)
    source.wait_for(1)
    for number in range(1, 5000):
        fetcher.prefetch(f"v{number}", 0, 1)

    queued = fetcher.queue_document()["queued"]
    read = ask(fetcher, 0, 100)
    source.wait_for(2)[1].let_all()

    assert queued == 4096
    assert fetcher.counts.dropped == 5000 - 4096 - 1
    assert read.result() == VALUE[:100]


def test_bytes_are_not_held_after_they_were_handed_out(make: MakeFetcher) -> None:
    """Ranges that were brought forward leave nothing behind in the queue."""
    gc.collect()  # what errors in earlier tests left behind, in circles
    before = Piece.alive
    names = [f"v{number}" for number in range(40)]
    source = GatedSource(dict.fromkeys(names, VALUE[:MIB]))
    source.is_held = True
    fetcher = make(source, threads=2)
    source.values["stuck"] = b"x"
    fetcher.prefetch("stuck", 0, 1)
    source.wait_for(1)
    for name in names:
        fetcher.prefetch(name, 0, MIB)
    source.is_held = False

    for name in reversed(names):
        assert fetcher.read(name, 0, MIB, wait_s=WAIT_S) == VALUE[:MIB]

    until(lambda: fetcher.queue_document()["under_way"] == 1)
    until(lambda: Piece.alive <= before + 1)


# -- what can fail ----------------------------------------------------------------------------


def test_absent_value_is_told(make: MakeFetcher) -> None:
    """A key without a value is told at once, again and again; a prefetch of it harms nobody."""
    source = GatedSource({"k": VALUE})
    fetcher = make(source, threads=1)
    fetcher.prefetch("absent", 0, 100)

    for _ in range(2):
        with pytest.raises(KeyAbsentError):
            fetcher.read("absent", 0, 100, wait_s=WAIT_S)

    assert fetcher.read("k", 0, 100, wait_s=WAIT_S) == VALUE[:100]


@pytest.mark.parametrize("offset", [len(VALUE) - 10, len(VALUE), len(VALUE) + 20 * MIB])
def test_range_past_the_end_is_damage_each_time(make: MakeFetcher, offset: int) -> None:
    """A value that ends too early is never answered with fewer bytes, nor waited for."""
    fetcher = make(GatedSource({"k": VALUE}))

    for _ in range(3):
        with pytest.raises(IntegrityError) as caught:
            fetcher.read("k", offset, 100_000, wait_s=WAIT_S)
        assert caught.value.kind == "store.short"

    assert fetcher.read("k", len(VALUE) - 10, 10, wait_s=WAIT_S) == VALUE[-10:]


def test_refusal_is_told_at_once(make: MakeFetcher) -> None:
    """When the store answers that we may not, there is nothing to wait for."""
    source = GatedSource({"k": VALUE})
    source.errors = [UnavailableError("no", kind=STORE_DENIED)]
    clock = TurnedClock()
    fetcher = make(source, monotonic=clock.monotonic, sleep=clock.sleep)

    with pytest.raises(UnavailableError) as caught:
        fetcher.read("k", 0, 100, wait_s=WAIT_S)

    assert caught.value.kind == STORE_DENIED
    assert clock.slept == []


def test_store_that_comes_back_is_asked_again(make: MakeFetcher) -> None:
    """Whoever waits gets the bytes when the store is there again, with pauses in between."""
    source = GatedSource({"k": VALUE})
    source.errors = [UnavailableError("away", kind="store.away") for _ in range(4)]
    clock = TurnedClock()
    fetcher = make(source, monotonic=clock.monotonic, sleep=clock.sleep)

    assert fetcher.read("k", 0, 100, wait_s=WAIT_S) == VALUE[:100]
    assert clock.slept == [0.0, 0.05, 0.2, 0.5]


def test_store_that_stays_away_is_told_within_the_limit(make: MakeFetcher) -> None:
    """After `wait_s`, and not later, the reader hears of the store's own error."""
    source = GatedSource({"k": VALUE})
    source.errors = [UnavailableError("away", kind="store.away") for _ in range(1000)]
    clock = TurnedClock()
    began_s = clock.now_s
    fetcher = make(source, monotonic=clock.monotonic, sleep=clock.sleep)

    with pytest.raises(UnavailableError) as caught:
        fetcher.read("k", 0, 100, wait_s=10.0)

    assert caught.value.kind == "store.away"
    assert 8.0 < clock.now_s - began_s < 10.0
    source.errors = []
    assert fetcher.read("k", 0, 100, wait_s=10.0) == VALUE[:100]


def test_store_that_sends_nothing_is_told_within_the_limit(make: MakeFetcher) -> None:
    """A range that stands still does not hold up its reader beyond `wait_s`."""
    source = GatedSource({"k": VALUE}, is_held=True)
    fetcher = make(source)

    with pytest.raises(UnavailableError) as caught:
        fetcher.read("k", 0, 100, wait_s=0.0)

    assert caught.value.kind == "store.timeout"


def test_range_that_breaks_off_is_fetched_again(make: MakeFetcher) -> None:
    """What had come stays; the reader gets the rest by a second request."""
    source = GatedSource({"k": VALUE}, is_held=True)
    fetcher = make(source)
    read = ask(fetcher, 0, 4 * BLOCK_BYTES)
    (stream,) = source.wait_for(1)

    stream.let(2)
    until(lambda: stream.taken == 2)
    stream.fail(UnavailableError("broke off", kind="store.unclear"))
    second = source.wait_for(2)[1]
    source.let_all()

    assert read.result() == VALUE[: 4 * BLOCK_BYTES]
    assert second.offset == 2 * BLOCK_BYTES


def test_error_of_one_range_is_not_that_of_its_neighbours(make: MakeFetcher) -> None:
    """A reader whose bytes had come goes on though its range fails later."""
    source = GatedSource({"k": VALUE}, is_held=True)
    fetcher = make(source)
    early = ask(fetcher, 0, 10)
    stream = source.wait_for(1)[0]
    late = ask(fetcher, 3 * BLOCK_BYTES, 10)
    until(lambda: fetcher.queue_document()["waiting"] == 2)

    stream.let(1)
    assert early.result() == VALUE[:10]
    source.values.clear()
    stream.fail(UnavailableError("broke off", kind="store.unclear"))

    with pytest.raises(KeyAbsentError):
        late.result()


def test_defect_in_the_source_ends_no_thread(make: MakeFetcher) -> None:
    """An error that nobody foresaw is one range's; the only thread goes on."""
    source = GatedSource({"k": VALUE})
    source.errors = [ZeroDivisionError("a defect")]
    fetcher = make(source, threads=1)
    fetcher.prefetch("k", 0, 100)
    source.wait_for(1)

    assert fetcher.read("k", 0, 100, wait_s=WAIT_S) == VALUE[:100]
    assert fetcher.read("k", 5 * MIB, 100, wait_s=WAIT_S) == VALUE[5 * MIB :][:100]


# -- a disk that does not take it, and bytes that are wrong on it -------------------------------


def test_disk_that_fills_up_within_a_range(make: MakeFetcher) -> None:
    """What the disk took and what it did not are put together, byte for byte, each time."""
    source = GatedSource({"k": VALUE}, piece_bytes=30_000)
    fetcher = make(source)
    with files_at_most(500_000):
        first = fetcher.read("k", 0, 2 * MIB, wait_s=WAIT_S)
        again = fetcher.read("k", 100_000, MIB, wait_s=WAIT_S)
        far = fetcher.read("k", 8 * MIB, 100, wait_s=WAIT_S)

    assert first == VALUE[: 2 * MIB]
    assert again == VALUE[100_000:][:MIB]
    assert far == VALUE[8 * MIB :][:100]
    assert fetcher.holds("k", 0, 400_000)
    assert not fetcher.holds("k", 0, 600_000)
    assert fetcher.uncached > 0


def test_full_disk_does_not_multiply_requests(make: MakeFetcher) -> None:
    """As long as nothing can be kept, nothing is fetched but what was asked for."""
    source = GatedSource({"k": VALUE})
    fetcher = make(source)
    with files_at_most(16_000):
        fetcher.read("k", 0, 100, wait_s=WAIT_S)
        until(lambda: is_idle(fetcher))
        del source.streams[:]
        for offset in range(0, 2 * MIB, 128 << 10):
            fetcher.read("k", offset, 128 << 10, wait_s=WAIT_S)
        fetcher.prefetch("k", 8 * MIB, MIB)

    assert sum(stream.length for stream in source.streams) == 2 * MIB


def test_cache_that_can_be_written_again_is_used_again(make: MakeFetcher) -> None:
    """Room on the disk is noticed by the next read."""
    source = GatedSource({"k": VALUE})
    fetcher = make(source)
    with files_at_most(16_000):
        fetcher.read("k", 0, 100, wait_s=WAIT_S)

    fetcher.read("k", 0, 100, wait_s=WAIT_S)

    until(lambda: is_idle(fetcher))
    assert fetcher.holds("k", 0, 100)
    fetcher.prefetch("k", 5 * MIB, 100)
    until(lambda: fetcher.holds("k", 5 * MIB, 100))


def test_cache_that_cannot_be_made(make: MakeFetcher, root: Path) -> None:
    """Without any place for a cache everything is read from the store."""
    root.write_bytes(b"in the way")
    fetcher = make(GatedSource({"k": VALUE}))

    for _ in range(2):
        assert fetcher.read("k", 7, MIB, wait_s=WAIT_S) == VALUE[7 : MIB + 7]
    fetcher.insert("k", VALUE)

    assert not fetcher.holds("k", 0, 1)
    assert root.read_bytes() == b"in the way"


@pytest.mark.parametrize("cut", [0, 100, 16_384, 200_000])
def test_file_that_was_cut_short_is_fetched_anew(make: MakeFetcher, root: Path, cut: int) -> None:
    """A cached file that lost its end, while open or between two runs, costs a request only."""
    source = GatedSource({"k": VALUE[:MIB]})
    fetcher = make(source)
    fetcher.read("k", 0, MIB, wait_s=WAIT_S)
    until(lambda: is_idle(fetcher))
    clock = TurnedClock()

    os.truncate(next(root.glob("*/values/k")), cut)

    later = make(source, monotonic=clock.monotonic, sleep=clock.sleep)
    assert fetcher.read("k", 900_000, 100_000, wait_s=WAIT_S) == VALUE[900_000:1_000_000]
    assert later.read("k", 0, 100_000, wait_s=WAIT_S) in (VALUE[:100_000], bytes(100_000))
    later.forget("k", 0, 100_000)
    assert later.read("k", 0, 100_000, wait_s=WAIT_S) == VALUE[:100_000]


def test_forgotten_range_is_fetched_anew(make: MakeFetcher, root: Path) -> None:
    """Whoever finds wrong bytes on disk gets right ones after saying so."""
    source = GatedSource({"k": VALUE})
    fetcher = make(source)
    fetcher.read("k", 0, 100, wait_s=WAIT_S)
    until(lambda: is_idle(fetcher))
    with next(root.glob("*/values/k")).open("r+b") as file:
        file.seek(16_384 + 50)
        file.write(b"damage")
    assert fetcher.read("k", 0, 100, wait_s=WAIT_S) != VALUE[:100]

    fetcher.forget("k", 0, 100)

    assert fetcher.read("k", 0, 100, wait_s=WAIT_S) == VALUE[:100]
    fetcher.forget("k", 1 << 50, 100)
    fetcher.forget("absent", 0, 100)


def test_wrong_bytes_of_a_range_under_way_are_not_handed_out_twice(make: MakeFetcher) -> None:
    """A range that brought wrong bytes, and still goes on, is not joined by who asks again."""
    source = GatedSource({"k": VALUE}, is_held=True, piece_bytes=40_000)
    source.mangle = lambda stream, piece: (
        bytes(len(piece)) if stream is source.streams[0] else piece
    )
    fetcher = make(source)
    first = ask(fetcher, 0, 100)
    source.wait_for(1)[0].let(1)
    assert first.result() == bytes(100)

    fetcher.forget("k", 0, 100)
    again = ask(fetcher, 0, 100)
    source.wait_for(2)
    source.let_all()

    assert again.result() == VALUE[:100]
    until(lambda: is_idle(fetcher))
    assert fetcher.read("k", 0, BLOCK_BYTES, wait_s=WAIT_S) == VALUE[:BLOCK_BYTES]


def test_range_whose_wrong_bytes_have_not_come_yet_is_joined(make: MakeFetcher) -> None:
    """Forgetting a range does not double a download that can still bring it."""
    source = GatedSource({"k": VALUE}, is_held=True)
    fetcher = make(source)
    first = ask(fetcher, 0, 2 * BLOCK_BYTES)
    source.wait_for(1)

    fetcher.forget("k", BLOCK_BYTES, 100)
    second = ask(fetcher, BLOCK_BYTES, 100)
    until(lambda: fetcher.queue_document()["waiting"] == 2)
    source.let_all()

    assert first.result() == VALUE[: 2 * BLOCK_BYTES]
    assert second.result() == VALUE[BLOCK_BYTES:][:100]
    assert len(source.streams) == 1


def test_evicted_while_it_is_filled(make: MakeFetcher, root: Path) -> None:
    """A value that is evicted in the middle of a range is read right, then and later."""
    source = GatedSource({"k": VALUE}, is_held=True)
    fetcher = make(source)
    read = ask(fetcher, 0, 8 * BLOCK_BYTES)
    (stream,) = source.wait_for(1)
    stream.let(3)
    until(lambda: stream.taken == 3)

    evict(root, 0, disk_of=lambda _: (1 << 50, 1 << 49))
    source.let_all()

    assert read.result() == VALUE[: 8 * BLOCK_BYTES]
    until(lambda: is_idle(fetcher))
    assert make(source).read("k", 0, 8 * BLOCK_BYTES, wait_s=WAIT_S) == VALUE[: 8 * BLOCK_BYTES]


# -- the end ----------------------------------------------------------------------------------


def test_closing_wakes_who_waits(make: MakeFetcher) -> None:
    """Readers get an error at once, though nothing came and the limit is far away."""
    source = GatedSource({"k": VALUE, "queued": VALUE}, is_held=True)
    fetcher = make(source, threads=1)
    reads = [ask(fetcher, 0, 100), ask(fetcher, 0, 100, key="queued")]
    until(lambda: fetcher.queue_document()["waiting"] == 2)

    fetcher.close()

    for read in reads:
        with pytest.raises(UnavailableError):
            read.result()


def test_threads_end_with_the_fetcher(make: MakeFetcher) -> None:
    """After closing, ranges under way are broken off, queued ones never begun, threads gone."""
    others = set(threading.enumerate())
    source = GatedSource({f"v{number}": VALUE for number in range(5)}, is_held=True)
    fetcher = make(source, threads=2)
    for number in range(5):
        fetcher.prefetch(f"v{number}", 0, MIB)
    (stream,) = source.wait_for(1)

    fetcher.close()
    stream.let(1)

    until(lambda: set(threading.enumerate()) <= others)
    assert len(source.streams) == 1
    assert stream.is_closed
