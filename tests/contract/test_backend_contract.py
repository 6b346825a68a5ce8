"""What every backend must do; each implementation runs through all of it."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.transfer_server import serving
from workspacefs.backend.contract import Backend, Version, check_key
from workspacefs.backend.file import FileBackend
from workspacefs.backend.memory import MemoryBackend
from workspacefs.backend.open import open_backend
from workspacefs.backend.s3 import S3Backend
from workspacefs.errors import BusyError, IntegrityError, KeyAbsentError, UsageError
from workspacefs.testing.faulty import FaultyBackend

MakeBackend = Callable[[], Backend]


@pytest.fixture(params=["file", "memory", "faulty", "seaweedfs", "moto_server", "transfer"])
def make_backend(request: pytest.FixtureRequest, tmp_path: Path) -> MakeBackend:
    """Makes instances of one store, as several processes would have."""
    name = secrets.token_hex(8)
    match request.param:
        case "seaweedfs" | "moto_server":
            request.getfixturevalue("s3_environ")
            url = request.getfixturevalue(request.param).new_store()
            return lambda: open_backend(url)
        case "transfer":
            request.getfixturevalue("s3_environ")
            s3 = open_backend(request.getfixturevalue("seaweedfs").new_store())
            assert isinstance(s3, S3Backend)
            running = serving(s3, tmp_path)
            served = running.__enter__()
            request.addfinalizer(lambda: running.__exit__(None, None, None))
            return served.client
        case "file":
            return lambda: FileBackend(tmp_path / "not yet" / "store")
        case "memory":
            return lambda: MemoryBackend(name)
        case _:
            return lambda: FaultyBackend(MemoryBackend(name))


@pytest.fixture
def backend(make_backend: MakeBackend) -> Backend:
    return make_backend()


def test_value_reads_back_whole_and_in_ranges(backend: Backend) -> None:
    """What was put is read back, joined, whole or in any range."""
    backend.put("packs/a.pack", [b"0123", memoryview(b"456"), b"", bytearray(b"789")])

    assert backend.get("packs/a.pack") == b"0123456789"
    assert backend.get("packs/a.pack", offset=3, length=4) == b"3456"
    assert backend.get("packs/a.pack", offset=7) == b"789"
    assert backend.get("packs/a.pack", offset=10, length=0) == b""
    assert backend.get("packs/a.pack", length=2) == b"01"
    assert backend.size_bytes("packs/a.pack") == 10


def test_put_of_many_parts_keeps_them_all(backend: Backend) -> None:
    """More parts than one system call takes are all written, in order."""
    parts = [number.to_bytes(4, "big") * 50 for number in range(3000)]

    backend.put("packs/many", parts)

    assert backend.get("packs/many") == b"".join(parts)


def test_empty_value_is_a_value(backend: Backend) -> None:
    """A value of no bytes is there."""
    backend.put("empty", [])

    assert backend.get("empty") == b""
    assert backend.size_bytes("empty") == 0


@pytest.mark.parametrize(("offset", "length"), [(0, 11), (5, 6), (10, 1), (11, 0), (100, 1)])
def test_range_past_the_end_is_damage(backend: Backend, offset: int, length: int) -> None:
    """A short value is never answered with fewer bytes."""
    backend.put("k", [b"0123456789"])

    with pytest.raises(IntegrityError) as caught:
        backend.get("k", offset=offset, length=length)

    assert caught.value.kind == "store.short"


@pytest.mark.parametrize(
    "read",
    [
        lambda backend: backend.get("no/such"),
        lambda backend: backend.get("no/such", offset=1, length=1),
        lambda backend: backend.get_versioned("no/such"),
        lambda backend: backend.size_bytes("no/such"),
    ],
)
def test_absent_key_is_absent(backend: Backend, read: Callable[[Backend], object]) -> None:
    """Every read of a key without a value says so, in an empty store and in one that is not."""
    with pytest.raises(KeyAbsentError):
        read(backend)
    backend.put("no/other", [b"x"])
    with pytest.raises(KeyAbsentError):
        read(backend)


def test_prefix_of_a_key_is_no_value(backend: Backend) -> None:
    """The directory part of a key reads as absent."""
    backend.put("a/b", [b"x"])

    with pytest.raises(KeyAbsentError):
        backend.get("a")
    with pytest.raises(KeyAbsentError):
        backend.get("a", offset=0, length=1)


def test_put_refuses_to_replace(backend: Backend) -> None:
    """A key that has a value keeps it."""
    backend.put("packs/a", [b"old"])

    with pytest.raises(BusyError):
        backend.put("packs/a", [b"new"])

    assert backend.get("packs/a") == b"old"


def test_put_if_absent_stores_once(make_backend: MakeBackend) -> None:
    """The first one stores, the second one is told that it lost."""
    first = make_backend().put_if_absent("workspace.json", b"one")
    second = make_backend().put_if_absent("workspace.json", b"two")

    assert first is not None
    assert second is None
    assert make_backend().get_versioned("workspace.json") == (b"one", first)


def test_put_if_version_replaces_only_that_value(backend: Backend) -> None:
    """The token of the value is needed, and is used up."""
    first = backend.put_if_absent("refs/x", b"one")
    assert first is not None

    second = backend.put_if_version("refs/x", b"two", first)
    stale = backend.put_if_version("refs/x", b"three", first)

    assert second is not None
    assert second != first
    assert stale is None
    assert backend.get_versioned("refs/x") == (b"two", second)


def test_put_if_version_of_an_absent_key_loses(backend: Backend) -> None:
    """A deleted value is not brought back."""
    version = backend.put_if_absent("refs/x", b"one")
    assert version is not None
    backend.delete("refs/x")

    assert backend.put_if_version("refs/x", b"two", version) is None
    assert backend.put_if_version("refs/never/was", b"two", Version("0")) is None
    with pytest.raises(KeyAbsentError):
        backend.get("refs/x")


def test_delete_if_version_removes_only_that_value(backend: Backend) -> None:
    """A value that was replaced since stays; one that is gone is said to be gone."""
    first = backend.put_if_absent("refs/x", b"one")
    assert first is not None
    second = backend.put_if_version("refs/x", b"two", first)
    assert second is not None

    assert not backend.delete_if_version("refs/x", first)
    assert backend.get("refs/x") == b"two"
    assert backend.delete_if_version("refs/x", second)
    assert not backend.delete_if_version("refs/x", second)
    assert not backend.delete_if_version("refs/never/was", first)
    with pytest.raises(KeyAbsentError):
        backend.get("refs/x")


def test_forgetting_a_copy_changes_no_value(backend: Backend) -> None:
    """Whether there are copies near or not, the store's bytes are read after it."""
    backend.put("packs/a", [b"0123456789"])

    backend.forget_local("packs/a", offset=2, length=3)

    assert backend.get("packs/a", offset=2, length=3) == b"234"


def test_ranged_read_sees_a_replacement(make_backend: MakeBackend) -> None:
    """A range is of the value that is there now, whoever replaced it."""
    backend = make_backend()
    version = backend.put_if_absent("k", b"old value")
    assert version is not None
    assert backend.get("k", offset=0, length=3) == b"old"

    make_backend().put_if_version("k", b"new value", version)

    assert backend.get("k", offset=0, length=3) == b"new"


def test_deleted_value_is_gone_for_all(make_backend: MakeBackend) -> None:
    """Delete is idempotent, and ranged reads see it too."""
    backend = make_backend()
    backend.put("packs/a", [b"0123"])
    assert backend.get("packs/a", offset=1, length=1) == b"1"

    other = make_backend()
    other.delete("packs/a")
    other.delete("packs/a")

    with pytest.raises(KeyAbsentError):
        backend.get("packs/a", offset=1, length=1)


def test_listing_is_ascending_by_key(backend: Backend) -> None:
    """Order is that of the whole key, not of its parts; sizes are right."""
    keys = ["a-b/c", "a/b", "a/b-c", "a/b.c", "a0", "b", "packs/x.pack", "a,b", "a/c/d"]
    for key in keys:
        backend.put(key, [key.encode()])

    listed = [(info.key, info.size_bytes) for info in backend.iter_keys("")]

    assert listed == [(key, len(key)) for key in sorted(keys)]


def test_listing_shows_what_was_replaced(backend: Backend) -> None:
    """Whoever compares two listings sees each value that differs, if they say anything of it."""
    version = backend.put_if_absent("refs/a", b"1")
    assert version is not None
    backend.put("refs/b", [b"1"])
    before = {info.key: info.state for info in backend.iter_keys("refs/")}

    backend.put_if_version("refs/a", b"2", version)

    after = {info.key: info.state for info in backend.iter_keys("refs/")}
    assert after["refs/a"] is None or after["refs/a"] != before["refs/a"]
    assert after["refs/b"] is None or after["refs/b"] == before["refs/b"]


@pytest.mark.parametrize("prefix", ["", "a", "a/", "a/b", "a/b/", "b", "zz", "a-"])
@pytest.mark.parametrize("start_after", ["", "a", "a/", "a/b", "a/b/c", "a/z", "b", "zzz"])
def test_listing_by_prefix_and_start(backend: Backend, prefix: str, start_after: str) -> None:
    """Just the keys that begin so and are greater are listed."""
    keys = ["a-/x", "a/b/c", "a/b/d", "a/bb", "a/c", "a0/b", "b/a", "zz/z", "a/b-"]
    for key in keys:
        backend.put(key, [b""])

    listed = [info.key for info in backend.iter_keys(prefix, start_after=start_after)]

    assert listed == sorted(key for key in keys if key.startswith(prefix) and key > start_after)


@pytest.mark.parametrize(
    "key",
    [
        *(
            "",
            "/",
            "/a",
            "a/",
            "a//b",
            ".",
            "..",
            "a/..",
            "a/.b",
            ".tmp/x",
            "a b",
            "a\0",
            "ä",
            "a\n",
        ),
        *("x" * 241, "/".join(["x" * 100] * 10), "-x", "a%2F"),
    ],
)
def test_unsafe_key_is_refused(backend: Backend, key: str) -> None:
    """No key leads out of the store or to its own files."""
    with pytest.raises(UsageError):
        backend.get(key)
    with pytest.raises(UsageError):
        backend.put(key, [b""])
    with pytest.raises(UsageError):
        backend.put_if_absent(key, b"")
    with pytest.raises(UsageError):
        backend.put_if_version(key, b"", Version(""))
    with pytest.raises(UsageError):
        backend.delete(key)
    with pytest.raises(UsageError):
        backend.delete_if_version(key, Version(""))


def test_longest_key_is_a_key() -> None:
    """The limits are inclusive."""
    assert check_key("/".join(["x" * 224] * 4)) == "/".join(["x" * 224] * 4)
    assert check_key("x" * 240) == "x" * 240


def test_url_opens_the_same_store(make_backend: MakeBackend) -> None:
    """The canonical URL leads back to the values."""
    backend = make_backend()
    backend.put("k", [b"v"])

    again = open_backend(backend.url)

    assert again.get("k") == b"v"
    assert again.url == backend.url
    assert again.is_local == backend.is_local


def test_free_space_is_plausible(backend: Backend) -> None:
    """Free is not more than total, if known at all."""
    free = backend.free_bytes()

    assert free is None or 0 <= free[1] <= free[0]


def test_threads_race_and_one_wins_each_version(make_backend: MakeBackend) -> None:
    """Of 8 threads that replace one value, exactly one is told that it did."""
    first = make_backend()
    version = first.put_if_absent("refs/x", b"0")
    # SeaweedFS 4.48 lets writers wait a second for each other's lock: see tests/faults for more.
    for round_number in range(10 if first.is_local else 3):
        assert version is not None
        wins = _race_threads(make_backend, round_number, version)
        assert len(wins) == 1
        version = wins[0]


def _race_threads(make_backend: MakeBackend, round_number: int, version: Version) -> list[Version]:
    barrier = threading.Barrier(8)
    wins: list[Version] = []

    def write(number: int) -> None:
        backend = make_backend()
        barrier.wait(timeout=30)
        won = backend.put_if_version("refs/x", f"{round_number}.{number}".encode(), version)
        if won is not None:
            wins.append(won)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wins


def _increment(root: Path, times: int) -> None:
    backend = FileBackend(root)
    for _ in range(times):
        while True:
            value, version = backend.get_versioned("refs/counter")
            if backend.put_if_version("refs/counter", b"%d" % (int(value) + 1), version):
                break


def test_processes_lose_no_increment(tmp_path: Path) -> None:
    """4 processes that each add 1 to a value 50 times by compare-and-swap make 200."""
    FileBackend(tmp_path).put_if_absent("refs/counter", b"0")
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_increment, args=(tmp_path, 50)) for _ in range(4)]

    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert [worker.exitcode for worker in workers] == [0] * 4
    assert FileBackend(tmp_path).get("refs/counter") == b"200"


def _claim(root: Path, rounds: int, number: int) -> None:
    backend = FileBackend(root)
    for round_number in range(rounds):
        if backend.put_if_absent(f"ids/{round_number}", b"%d" % number) is not None:
            backend.put(f"won/{round_number}.{number}", [b""])


def test_processes_claim_each_key_once(tmp_path: Path) -> None:
    """Of 4 processes that create the same keys, exactly one is told so for each key."""
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_claim, args=(tmp_path, 50, number)) for number in range(4)]

    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    backend = FileBackend(tmp_path)
    won = sorted(info.key for info in backend.iter_keys("won/"))
    kept = sorted(
        f"won/{info.key[4:]}.{backend.get(info.key).decode()}" for info in backend.iter_keys("ids/")
    )
    assert len(won) == 50
    assert won == kept
    assert os.listdir(tmp_path / ".tmp") == []
