"""Races on one ref of an S3 store, lost answers in them, and servers that ignore conditions."""

from __future__ import annotations

import io
import logging
import os
import random
import threading
import traceback

import pytest

from tests.clocks import TurnedClock
from tests.faults.s3_store import (
    QUICK,
    FaultyStore,
    faulty_store,
    is_method,
    new_backend,
)
from tests.servers import ACCESS_KEY, SECRET_KEY, Server
from workspacefs.backend.contract import STORE_NO_CONDITIONAL_DELETE, Version
from workspacefs.backend.open import open_backend
from workspacefs.backend.probe import check_conditional_writes
from workspacefs.clock import SystemClock
from workspacefs.errors import (
    BusyError,
    KeyAbsentError,
    RefusedError,
    UnavailableError,
    WorkspaceError,
)
from workspacefs.refs import Moved, RefKind, RefRecord, Refs, Stale
from workspacefs.testing.proxy import Action, CutBody, DropAnswer, RequestInfo, Status, WrongBody
from workspacefs.workspace.manifest import MANIFEST_KEY
from workspacefs.workspace.workspace import Workspace

pytestmark = pytest.mark.usefixtures("s3_environ")

IS_FULL = os.environ.get("WORKSPACEFS_TEST_EFFORT") == "full"
WRITERS = 20


def refs_of(store: FaultyStore) -> Refs:
    return Refs(store.through, SystemClock(), retry=QUICK)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("server", ["seaweedfs", "moto_server"])
def test_each_version_of_a_ref_has_one_successor(
    server: str, request: pytest.FixtureRequest
) -> None:
    """20 writers race; each is told the truth, and no move is lost or made twice."""
    url = request.getfixturevalue(server).new_store()
    rounds = (1000 if IS_FULL else 50) if server == "seaweedfs" else 20
    won: dict[str, list[Version]] = {}
    lock = threading.Lock()

    def write(number: int) -> None:
        refs = Refs(open_backend(url), SystemClock())
        barrier.wait(timeout=60)
        while True:
            record, version = refs.get(RefKind.BRANCH, "main")
            chain = int(record.moved_by.split()[0])
            if chain >= rounds:
                return
            answer = refs.compare_and_swap(
                RefKind.BRANCH,
                "main",
                expected=version,
                new=RefRecord(moved_by=f"{chain + 1} {number} {record.write_id}"),
            )
            if isinstance(answer, Moved):
                with lock:
                    won.setdefault(f"{chain + 1} {number}", []).append(answer.version)

    refs = Refs(open_backend(url), SystemClock())
    refs.compare_and_swap(RefKind.BRANCH, "main", expected=None, new=RefRecord(moved_by="0"))
    barrier = threading.Barrier(WRITERS)
    threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    steps = sorted(int(step.split()[0]) for step in won)
    assert steps == list(range(1, rounds + 1))
    assert all(len(versions) == 1 for versions in won.values())
    record, version = refs.get(RefKind.BRANCH, "main")
    last = " ".join(record.moved_by.split()[:2])
    assert won[last] == [version]


@pytest.mark.parametrize("server", ["seaweedfs", "moto_server"])
def test_of_writers_who_begin_together_one_wins(
    server: str, request: pytest.FixtureRequest
) -> None:
    """All 20 write under the same version at the same moment."""
    url = request.getfixturevalue(server).new_store()
    backends = [open_backend(url) for _ in range(WRITERS)]
    version = backends[0].put_if_absent("refs/x", b"0")
    assert version is not None
    for round_number in range(2):
        barrier = threading.Barrier(WRITERS)
        answers: list[tuple[bytes, Version | None]] = []
        expected = version

        def write(
            number: int,
            round_number: int = round_number,
            barrier: threading.Barrier = barrier,
            answers: list[tuple[bytes, Version | None]] = answers,
            expected: Version = expected,
        ) -> None:
            value = f"{round_number} {number}".encode()
            barrier.wait(timeout=60)
            answers.append((value, backends[number].put_if_version("refs/x", value, expected)))

        threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        won = [(value, told) for value, told in answers if told is not None]
        assert len(answers) == WRITERS
        assert len(won) == 1
        assert backends[0].get_versioned("refs/x") == won[0]
        version = won[0][1]


@pytest.mark.parametrize(
    "fault",
    [DropAnswer(), Status(503), Status(503, forwards=True), WrongBody(b"<Error/>", status=500)],
    ids=["lost", "refused", "done but refused", "wrong"],
)
@pytest.mark.parametrize("every", [1, 2, 3])
def test_lost_answers_make_no_false_conflict(store: FaultyStore, fault: Action, every: int) -> None:
    """At each n-th conditional write: every move lands once, and its writer knows."""
    refs = refs_of(store)
    moves = 100 if IS_FULL else 12
    limit = moves if isinstance(fault, Status) and not fault.forwards else None
    nth = set(range(every, 20 * moves, every)) if every > 1 else None
    if every == 1 and limit is not None:
        nth = set(range(1, 20 * moves)) - set(range(3, 20 * moves, 3))
    rule = store.add(fault, is_method("PUT"), nth=nth)
    expected: Version | None = None
    written: list[str] = []
    for number in range(moves):
        answer = refs.compare_and_swap(
            RefKind.BRANCH, "main", expected=expected, new=RefRecord(moved_by=f"{number}")
        )
        assert isinstance(answer, Moved)
        assert refs.get(RefKind.BRANCH, "main") == (answer.record, answer.version)
        expected = answer.version
        written.append(answer.record.write_id)

    assert len(set(written)) == moves
    assert rule.fired >= moves // every


def test_lost_answer_of_a_lost_race_is_a_lost_race(store: FaultyStore) -> None:
    """The rival's value stands, and we are told so."""
    first = refs_of(store).compare_and_swap(
        RefKind.BRANCH, "main", expected=None, new=RefRecord(moved_by="first")
    )
    assert isinstance(first, Moved)
    rival = Refs(store.past, SystemClock()).compare_and_swap(
        RefKind.BRANCH, "main", expected=first.version, new=RefRecord(moved_by="rival")
    )
    store.add(DropAnswer(), is_method("PUT"))

    stale = refs_of(store).compare_and_swap(
        RefKind.BRANCH, "main", expected=first.version, new=RefRecord(moved_by="ours")
    )

    assert isinstance(rival, Moved)
    assert isinstance(stale, Stale)
    assert (stale.current, stale.version) == (rival.record, rival.version)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_moves_outlast_storms(store: FaultyStore, share: float) -> None:
    """With 503 at 10 % and 50 % of all requests no move is "unknown"."""
    chance = random.Random(7)
    store.add(Status(503), lambda info: chance.random() < share)
    refs = refs_of(store)
    expected: Version | None = None
    for number in range(200 if IS_FULL else 30):
        answer = refs.compare_and_swap(
            RefKind.BRANCH, "main", expected=expected, new=RefRecord(moved_by=f"{number}")
        )
        assert isinstance(answer, Moved)
        expected = answer.version


def test_move_is_unknown_only_without_any_answer(seaweedfs: Server, s3_environ: None) -> None:
    """Where reading back is not answered either, we say so, in time."""
    clock = TurnedClock()
    began_s, policy = clock.monotonic(), clock.policy(deadline_s=3.0)
    with faulty_store(seaweedfs, retry=policy) as store:
        store.add(DropAnswer(), is_method("PUT"))
        store.add(Status(503), is_method("GET"))

        with pytest.raises(UnavailableError) as caught:
            Refs(store.through, SystemClock(), retry=policy).compare_and_swap(
                RefKind.BRANCH, "main", expected=None, new=RefRecord(moved_by="x")
            )

    assert caught.value.kind == "ref.unknown"
    assert clock.monotonic() - began_s <= 3 * policy.deadline_s


def test_server_that_ignores_conditions_is_refused(rclone_s3: Server) -> None:
    """By the probe, and so by init, which then writes no workspace."""
    backend = new_backend(rclone_s3.new_store())

    for _ in range(2):
        with pytest.raises(RefusedError) as caught:
            check_conditional_writes(backend)
        assert caught.value.kind == "store.no_conditions"
    with pytest.raises(RefusedError):
        Workspace.create(backend)

    with pytest.raises(KeyAbsentError):
        backend.get(MANIFEST_KEY)


def test_server_that_ignores_conditions_deletes_nothing(rclone_s3: Server) -> None:
    """That a condition on a delete is ignored is found out before it does harm."""
    backend = new_backend(rclone_s3.new_store())
    version = backend.put_if_absent("refs/x", b"v")
    assert version is not None

    for _ in range(2):
        with pytest.raises(UnavailableError) as caught:
            backend.delete_if_version("refs/x", Version('"0"'))
        assert caught.value.kind == STORE_NO_CONDITIONAL_DELETE

    assert backend.get("refs/x") == b"v"


@pytest.mark.parametrize("server", ["seaweedfs", "moto_server"])
def test_honest_server_passes(server: str, request: pytest.FixtureRequest) -> None:
    """Again and again, whether the probe's value is there or not."""
    backend = new_backend(request.getfixturevalue(server).new_store())
    for _ in range(3):
        check_conditional_writes(backend)


@pytest.mark.parametrize("fault", [DropAnswer(), Status(503), Status(503, forwards=True)])
def test_init_outlasts_lost_answers(store: FaultyStore, fault: Action) -> None:
    """The workspace is made once, and whoever made it knows."""
    store.add(fault, is_method("PUT"), nth={1, 4, 5, 6})

    made = Workspace.create(store.through)
    store.clear()

    assert Workspace.open(store.past).id == made.id
    with pytest.raises(BusyError):
        Workspace.create(store.through)


def test_secrets_are_told_nowhere(
    impatient: FaultyStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in logs of any level, messages, tracebacks or representations, whatever goes wrong."""
    store = impatient
    monkeypatch.setenv("AWS_SESSION_TOKEN", "canary-token-9876543210")
    caplog.set_level(logging.DEBUG)
    said = io.StringIO()  # what a person or a log could get to see

    def try_all() -> None:
        for attempt in (
            lambda: store.through.get("k"),
            lambda: store.through.get("k", offset=0, length=5),
            lambda: store.through.put("new", [b"v"]),
            lambda: store.through.put_if_absent("k2", b"v"),
            lambda: list(store.through.iter_keys("")),
            lambda: store.through.delete("k"),
        ):
            try:
                attempt()
            except (WorkspaceError, KeyAbsentError) as exc:
                said.write("".join(traceback.format_exception(exc)))
                said.write(repr(getattr(exc, "context", "")))

    def echo(info: RequestInfo) -> bool:
        return True

    codes = ("SignatureDoesNotMatch", "ExpiredToken", "AccessDenied", "InternalError")
    for code in codes:
        text = f"<Error><Code>{code}</Code><Message>m</Message></Error>".encode()
        rule = store.add(Status(403 if code != "InternalError" else 500, text), echo)
        try_all()
        store.rules.remove(rule)
        store.proxy.remove(rule)
        assert rule.fired > 0
    broken = store.add(CutBody(1), echo)
    try_all()
    store.rules.remove(broken)
    store.proxy.remove(broken)

    said.write(repr(store.through) + repr(store.through.__dict__) + caplog.text)
    said.write(repr([vars(record) for record in caplog.records]))
    said.write(repr(store.through.stats.document()) + repr(store.through.health.document()))
    assert len(said.getvalue()) > 10_000
    for secret in (SECRET_KEY, "canary"):
        assert secret not in said.getvalue()
    assert ACCESS_KEY not in caplog.text
