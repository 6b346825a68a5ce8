"""A store behind a transfer process: right answers, and the truth about those that got lost."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.gated_source import PATIENCE_S, GatedSource, Stream, until
from tests.unit.transfer_server import Relay, RemoteMemory, Served, serving
from workspacefs.backend.contract import STORE_UNCLEAR, RangeAnswer, Version
from workspacefs.cache.block_file import BLOCK_BYTES
from workspacefs.cache.directory import evict
from workspacefs.errors import (
    BusyError,
    IntegrityError,
    KeyAbsentError,
    UnavailableError,
    UsageError,
)
from workspacefs.transfer.client import TransferBackend
from workspacefs.transfer.wire import Wire

VALUE = random.Random(2).randbytes(2_000_000)


class HeldMemory(RemoteMemory):
    """A memory backend whose ranges come when a test lets them."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.gate = GatedSource({})

    def open_range(self, key: str, *, offset: int, length: int) -> RangeAnswer:
        """Begin a range that waits."""
        self.gate.values[key] = self.get(key)
        return self.gate.open_range(key, offset=offset, length=length)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> HeldMemory:
    return HeldMemory(f"{os.getpid()}/{request.node.name}")


@pytest.fixture
def served(store: HeldMemory, tmp_path: Path) -> Iterator[Served]:
    with serving(store, tmp_path) as served:
        yield served
        store.gate.let_all()


@pytest.fixture
def relay(served: Served) -> Relay:
    return Relay(served.connect)


@pytest.fixture
def backend(served: Served, relay: Relay) -> Iterator[TransferBackend]:
    made = served.client(relay.connect)
    yield made
    made.close()


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Run `work` in so many threads; each gets a number."""
    errors: list[Exception] = []

    def run(number: int) -> None:
        try:
            work(number)
        except Exception as exc:  # noqa: BLE001 (shown below)
            errors.append(exc)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []


# -- reads -------------------------------------------------------------------------------------


def test_what_is_near_is_read_without_a_word(
    store: HeldMemory, backend: TransferBackend, relay: Relay
) -> None:
    """After the first read of a range the client reads the cache by itself."""
    store.put("packs/a", [VALUE])
    assert backend.get("packs/a", offset=10, length=100) == VALUE[10:110]
    asked = relay.seen.count("get")

    again = backend.get("packs/a", offset=50, length=100)

    assert again == VALUE[50:150]
    assert relay.seen.count("get") == asked
    assert backend.is_near("packs/a", offset=50, length=100)
    assert (backend.counts.near, backend.counts.far) == (1, 1)


def test_who_listens_hears_of_ranges_that_were_far(
    store: HeldMemory, backend: TransferBackend
) -> None:
    """Each range is told before it is asked for, as the order of first touch needs it."""
    heard: list[tuple[str, int, int]] = []
    backend.on_far = lambda key, offset, length: heard.append((key, offset, length))
    store.put("packs/a", [VALUE])

    backend.get("packs/a", offset=0, length=10)
    backend.get("packs/a", offset=5, length=10)

    assert heard == [("packs/a", 0, 10)]


def test_stored_value_is_near(served: Served, backend: TransferBackend, store: HeldMemory) -> None:
    """What was just put is in the cache, for this session and others."""
    backend.put("packs/a", [VALUE[:1000], memoryview(VALUE)[1000:]])

    assert store.get("packs/a") == VALUE
    assert backend.find_near("packs/a", offset=0, length=len(VALUE)) == VALUE
    assert served.client().find_near("packs/a", offset=5, length=5) == VALUE[5:10]
    assert store.gate.streams == []


def test_read_is_asked_again_when_the_transfer_process_dies(
    store: HeldMemory, backend: TransferBackend, relay: Relay
) -> None:
    """Reads of all kinds survive it, before they are heard and before they are answered."""
    store.put("packs/a", [VALUE])
    store.put("k", [b"value"])
    reads: list[tuple[str, Callable[[], object]]] = [
        ("get", lambda: backend.get("packs/a", offset=7, length=9)),
        ("get_versioned", lambda: backend.get_versioned("k")[0]),
        ("size", lambda: backend.size_bytes("k")),
        ("list", lambda: [info.key for info in backend.iter_keys("")]),
        ("delete", lambda: backend.delete("absent")),
        ("forget", lambda: backend.forget_local("packs/a", offset=0, length=1)),
    ]

    for op, read in reads:
        expected = read()
        backend.forget_local("packs/a", offset=0, length=100)
        relay.cut_before = [op]
        assert read() == expected
        backend.forget_local("packs/a", offset=0, length=100)
        relay.cut_after = [op, op]
        assert read() == expected

    assert relay.cuts == 3 * len(reads)


def test_wrong_bytes_of_a_deleted_file_are_not_read_again(
    served: Served, store: HeldMemory, backend: TransferBackend
) -> None:
    """A copy that was damaged, and deleted while we have it open, is let go of."""
    store.put("packs/a", [VALUE[:BLOCK_BYTES]])
    backend.get("packs/a", offset=0, length=100)
    until(lambda: backend.find_near("packs/a", offset=0, length=100))  # open from now on
    (path,) = served.root.glob("*/values/*")
    with path.open("r+b") as file:
        file.seek(16_384)
        file.write(b"damage")
    path.unlink()
    assert backend.get("packs/a", offset=0, length=100)[:6] == b"damage"

    backend.forget_local("packs/a", offset=0, length=100)

    assert backend.get("packs/a", offset=0, length=100) == VALUE[:100]


def test_evicted_value_is_fetched_and_near_again(
    served: Served, store: HeldMemory, backend: TransferBackend
) -> None:
    """A session that has an evicted value open notices, and reads what replaced it."""
    store.put("packs/a", [VALUE[:BLOCK_BYTES]])
    backend.get("packs/a", offset=0, length=100)
    evict(served.root, 0, disk_of=lambda _: (1 << 50, 1 << 49))

    assert backend.get("packs/a", offset=0, length=100) == VALUE[:100]
    until(lambda: backend.find_near("packs/a", offset=200, length=100))

    assert len(store.gate.streams) == 2


def test_errors_come_through_as_they_are(backend: TransferBackend, store: HeldMemory) -> None:
    """Class, kind and facts of the store's own errors."""
    store.put("packs/a", [b"0123"])

    with pytest.raises(KeyAbsentError) as absent:
        backend.get("packs/absent", offset=0, length=1)
    with pytest.raises(IntegrityError) as short:
        backend.get("packs/a", offset=2, length=10)
    with pytest.raises(BusyError) as there:
        backend.put("packs/a", [b"new"])
    with pytest.raises(UsageError) as unsafe:
        backend.get("../x")

    assert absent.value.key == "packs/absent"
    assert (short.value.kind, there.value.kind) == ("store.short", "store.exists")
    assert short.value.context["key"] == "packs/a"
    assert unsafe.value.kind == "store.key"


def test_store_that_sends_nothing_is_told_in_time(
    served: Served, store: HeldMemory, backend: TransferBackend
) -> None:
    """The time limit of the mount, not that of the transfer process, holds."""
    store.put("packs/a", [VALUE])
    store.gate.is_held = True
    backend.wait_s = 0.0

    with pytest.raises(UnavailableError) as caught:
        backend.get("packs/a", offset=0, length=10)

    assert caught.value.kind == "store.timeout"


# -- writes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["cut_before", "cut_after"])
def test_put_whose_answer_was_lost_is_done_once(
    backend: TransferBackend, relay: Relay, store: HeldMemory, when: str
) -> None:
    """It is sent again, and an earlier attempt that got there is recognized."""
    getattr(relay, when).extend(["put", "put"])

    backend.put("packs/a", [VALUE])

    assert relay.cuts == 2
    assert store.get("packs/a") == VALUE


def test_put_under_a_key_of_somebody_else_is_refused_though_an_answer_was_lost(
    backend: TransferBackend, relay: Relay, store: HeldMemory
) -> None:
    """Another value under the key is not taken for our own earlier attempt."""
    store.put("packs/a", [b"theirs"])
    relay.cut_before = ["put"]

    with pytest.raises(BusyError):
        backend.put("packs/a", [VALUE])

    assert store.get("packs/a") == b"theirs"


def test_put_gives_up_when_the_transfer_process_ends_each_time(
    backend: TransferBackend, relay: Relay, store: HeldMemory
) -> None:
    """A value that kills the process that stores it does not do so for ever."""
    relay.cut_before = ["put"] * 10

    with pytest.raises(UnavailableError) as caught:
        backend.put("packs/a", [VALUE])

    assert caught.value.kind == "transfer.gone"
    assert 2 <= relay.cuts < 10
    with pytest.raises(KeyAbsentError):
        store.size_bytes("packs/a")


@pytest.mark.parametrize("when", ["cut_before", "cut_after"])
@pytest.mark.parametrize("op", ["put_if_absent", "put_if_version", "delete_if_version"])
def test_conditional_write_without_an_answer_is_unclear(
    backend: TransferBackend, relay: Relay, store: HeldMemory, when: str, op: str
) -> None:
    """It is not sent again, and neither success nor failure is claimed."""
    version = store.put_if_absent("k", b"old")
    assert version is not None
    getattr(relay, when).append(op)
    write: dict[str, Callable[[], object]] = {
        "put_if_absent": lambda: backend.put_if_absent("new", b"data"),
        "put_if_version": lambda: backend.put_if_version("k", b"data", version),
        "delete_if_version": lambda: backend.delete_if_version("k", version),
    }

    with pytest.raises(UnavailableError) as caught:
        write[op]()

    assert caught.value.kind == STORE_UNCLEAR
    assert relay.cuts == relay.seen.count(op) == 1


def test_connections_that_died_while_idle_lose_no_write(
    backend: TransferBackend, relay: Relay, store: HeldMemory
) -> None:
    """After the transfer process was replaced, old connections are not used for writes."""
    store.put("packs/a", [VALUE])
    meeting = threading.Barrier(8)

    def read(number: int) -> None:
        meeting.wait(PATIENCE_S)
        backend.size_bytes("packs/a")

    in_threads(read, 8)
    assert relay.connections >= 2

    relay.die()
    assert backend.put_if_absent("k", b"1") is not None
    in_threads(read, 8)
    relay.die()
    backend.put("packs/b", [VALUE])

    assert store.get("k") == b"1"
    assert store.get("packs/b") == VALUE


# -- opening in one round trip -------------------------------------------------------------------


def test_early_reads_are_taken_once(
    backend: TransferBackend, relay: Relay, store: HeldMemory
) -> None:
    """The first read of each key takes what came early; later ones ask anew."""
    store.put("a", [b"1"])
    store.put("b", [b"2"])
    came: list[tuple[str, bytes]] = []

    backend.read_early(["a", "b", "absent"], on_value=lambda key, value: came.append((key, value)))
    until(lambda: len(came) == 2 and relay.seen.count("get_versioned") == 3)

    assert backend.get("a") == b"1"
    assert backend.get_versioned("b")[0] == b"2"
    with pytest.raises(KeyAbsentError):
        backend.get_versioned("absent")
    assert len(relay.seen) == 3
    assert sorted(came) == [("a", b"1"), ("b", b"2")]
    store.delete("a")
    with pytest.raises(KeyAbsentError):
        backend.get("a")


def test_early_reads_can_be_forgotten(backend: TransferBackend, store: HeldMemory) -> None:
    """What came early and was not used is not used later, when it may be old."""
    version = store.put_if_absent("a", b"old")
    assert version is not None
    backend.read_early(["a"])

    backend.forget_early()
    store.put_if_version("a", b"new", version)

    assert backend.get("a") == b"new"


def test_early_read_survives_the_death_of_the_transfer_process(
    backend: TransferBackend, relay: Relay, store: HeldMemory
) -> None:
    """It is asked again like any read."""
    store.put("a", [b"1"])
    relay.cut_after = ["get_versioned"]

    backend.read_early(["a"])

    assert backend.get("a") == b"1"
    assert relay.cuts == 1


def test_bad_value_does_not_spoil_what_came(backend: TransferBackend, store: HeldMemory) -> None:
    """When whoever is told of a value cannot use it, the reader still gets it."""
    store.put("a", [b"1"])

    def refuse(key: str, value: bytes) -> None:
        raise IntegrityError("malformed")

    backend.read_early(["a"], on_value=refuse)

    assert backend.get("a") == b"1"


# -- hints -------------------------------------------------------------------------------------


def test_prefetch_brings_ranges_near(store: HeldMemory, backend: TransferBackend) -> None:
    """A hint needs no answer, and what it asks for comes."""
    store.put("packs/a", [VALUE])

    backend.prefetch([("packs/a", 0, 10), ("packs/absent", 0, 10), ("packs/a", 1_500_000, 10)])

    until(lambda: backend.is_near("packs/a", offset=1_500_000, length=10))
    until(lambda: backend.is_near("packs/a", offset=0, length=10))


def test_hint_waits_for_nobody(served: Served) -> None:
    """While no transfer process can be had, hints are lost and nothing waits for them."""
    tried = threading.Event()
    go_on = threading.Event()

    def connect() -> None:
        tried.set()
        assert go_on.wait(PATIENCE_S)
        raise UnavailableError("nobody there")

    backend = served.client(connect)  # type: ignore[arg-type]
    for number in range(5000):
        backend.hint("mark", {"key": "packs/a", "block": number})

    assert tried.wait(PATIENCE_S)
    backend.close()
    go_on.set()


def test_hints_go_on_after_the_transfer_process_was_replaced(
    store: HeldMemory, backend: TransferBackend, relay: Relay
) -> None:
    """A lost one is lost; later ones find the new process."""
    store.put("packs/a", [VALUE])
    store.put("packs/b", [VALUE])
    backend.prefetch([("packs/a", 0, 10)])
    until(lambda: backend.is_near("packs/a", offset=0, length=10))

    relay.die()
    backend.prefetch([("packs/b", 0, 10)])

    until(lambda: backend.is_near("packs/b", offset=0, length=10))


def test_reading_up_to_a_mark_reads_ahead(store: HeldMemory, backend: TransferBackend) -> None:
    """The client tells when it has read up to a mark that it found on disk by itself."""
    store.put("packs/a", [VALUE * 4])

    for offset in range(0, 6_000_000, BLOCK_BYTES):
        assert backend.get("packs/a", offset=offset, length=100) == (VALUE * 4)[offset:][:100]

    until(lambda: backend.is_near("packs/a", offset=6_000_000, length=2_000_000))
    assert backend.counts.near > backend.counts.far


def test_senseless_hints_harm_nobody(
    served: Served, store: HeldMemory, backend: TransferBackend
) -> None:
    """The server goes on after hints and requests of any shape."""
    store.put("packs/a", [VALUE])
    wire = Wire(served.connect())
    for args in (
        {"op": "mark", "key": "packs/a", "block": 1 << 62},
        {"op": "mark", "key": "packs/\0", "block": 1},
        {"op": "mark"},
        {"op": "prefetch", "ranges": 7},
        {"op": "prefetch", "ranges": [["packs/a", -1, 5]]},
        {"op": "prefetch", "ranges": [["packs/a", 1 << 62, 1 << 62]]},
        {"op": "prefetch", "ranges": [["packs/a"]]},
        {"op": 5},
        {},
    ):
        wire.send({**args, "quiet": True})

    for bad in ({"op": "no such"}, {"op": "put", "key": "packs/b"}, {"op": "get", "key": 5}):
        wire.send(bad)
        answer = wire.receive()
        assert answer is not None
        assert "error" in answer.header

    assert backend.get("packs/a", offset=0, length=10) == VALUE[:10]


# -- the server --------------------------------------------------------------------------------


def test_many_connections_at_once(store: HeldMemory, served: Served) -> None:
    """Sixty sessions read and write at the same time; afterwards nothing is left of them."""
    store.put("packs/a", [VALUE])
    before = len(os.listdir("/proc/self/fd"))

    def work(number: int) -> None:
        backend = served.client()
        for step in range(10):
            offset = (number * 31 + step * 97_001) % (len(VALUE) - 1000)
            assert backend.get("packs/a", offset=offset, length=1000) == VALUE[offset:][:1000]
        backend.put(f"packs/n{number}", [VALUE[:number]])
        assert backend.put_if_absent(f"k{number}", b"x") is not None
        backend.close()

    in_threads(work, 60)

    assert sum(1 for _ in store.iter_keys("packs/n")) == 60
    # The cache keeps its values open; connections, hints and memfds are gone.
    until(lambda: len(os.listdir("/proc/self/fd")) <= before + 62)


def test_descriptor_of_a_put_is_closed(served: Served, backend: TransferBackend) -> None:
    """Values that come in memfds leave none behind, whether they are stored or refused."""
    backend.put("packs/a", [VALUE])
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(20):
        with pytest.raises(BusyError):
            backend.put("packs/a", [VALUE])

    assert len(os.listdir("/proc/self/fd")) == before


def test_garbage_ends_one_connection_only(
    served: Served, store: HeldMemory, backend: TransferBackend
) -> None:
    """Whoever does not speak our language is hung up on."""
    store.put("k", [b"v"])
    connection = served.connect()
    connection.sendall(b"GET / HTTP/1.1\r\n\r\n")

    with pytest.raises(ConnectionResetError):
        connection.recv(100)  # not all that we said was read
    assert backend.get("k") == b"v"
    connection.close()


def test_unused_server_ends(store: HeldMemory, tmp_path: Path) -> None:
    """It stays as long as anyone is connected, and ends soon after."""
    with serving(store, tmp_path, idle_exit_s=0.0) as served:
        connection = served.connect()
        wire = Wire(connection)
        wire.send({"op": "list", "prefix": "", "start_after": "", "limit": 1})
        assert wire.receive() is not None
        assert served.thread.is_alive()

        wire.close()
        served.thread.join(PATIENCE_S)

        assert not served.thread.is_alive()


def test_defect_is_told_and_survived(
    served: Served, store: HeldMemory, backend: TransferBackend
) -> None:
    """An error that nobody foresaw is an answer, and the connection goes on."""

    def break_down(stream: Stream, piece: bytes) -> bytes:
        raise ZeroDivisionError("a defect")

    store.put("packs/a", [VALUE])
    store.gate.mangle = break_down
    backend.wait_s = 0.0
    with pytest.raises(UnavailableError):
        backend.get("packs/a", offset=0, length=10)
    store.gate.mangle = lambda stream, piece: piece
    backend.wait_s = PATIENCE_S

    assert backend.get("packs/a", offset=0, length=10) == VALUE[:10]
    assert backend.put_if_version("none", b"", Version("x")) is None
