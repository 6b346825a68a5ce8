"""Refs: names, races, lost answers, damage."""

from __future__ import annotations

import base64
import json
import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3

from tests.clocks import TurnedClock
from workspacefs.backend.contract import UNCHANGED_KINDS
from workspacefs.backend.file import FileBackend
from workspacefs.clock import SystemClock
from workspacefs.errors import (
    IntegrityError,
    NoSpaceError,
    NotFoundError,
    RefusedError,
    UnavailableError,
    UsageError,
)
from workspacefs.ids import CommitId, FileId, PackId, commit_id_of
from workspacefs.objects.commits import Commit, encode_commit
from workspacefs.objects.entry import Entry, Subtree, Totals
from workspacefs.objects.refs import Locator, Ref
from workspacefs.refs import Moved, RefKind, RefRecord, Refs, SessionRecord, Stale
from workspacefs.refs.record import decode_ref, encode_ref
from workspacefs.refs.swap import ref_key
from workspacefs.testing.faulty import FaultyBackend, flip_byte

HERE = Locator(PackId(b"p" * 16), 32, 500, 7, 90)


class FixedClock:
    def now_ns(self) -> int:
        return 1_700_000_000_000_000_000


def make_commit() -> Commit:
    root = Entry(
        b"", 0o40755, 0, 0, 0, 5, 5, FileId(1), 2, Subtree(Ref(b"n" * 32), Totals(1, 0, 5, 0))
    )
    return Commit(root=root, parents=(Ref(b"c" * 32),), message="hello", time_ns=5)


def make_record(**more: object) -> RefRecord:
    body, _ = encode_commit(make_commit())
    record = RefRecord(
        commit_id=commit_id_of(body),
        commit_body=body,
        commit_locators=(None, HERE),
        locator=HERE,
        moved_by="me@host \udcff ü",
        session=SessionRecord(
            name="a/b",
            session_id="00ff",
            owner="me",
            base=CommitId(b"c" * 32),
            branch="main",
            created_ns=5,
            lineage=("aa", "bb"),
            fid_epochs=(1, 2**39 - 1),
        ),
    )
    return replace(record, **more)  # type: ignore[arg-type]  # fields by name


@pytest.fixture
def refs(backend: FaultyBackend) -> Refs:
    return Refs(backend, FixedClock(), retry=TurnedClock().policy())


def move(refs: Refs, name: str = "main", **fields: object) -> Moved:
    found = refs.find(RefKind.BRANCH, name)
    expected = None if found is None else found[1]
    moved = refs.compare_and_swap(
        RefKind.BRANCH, name, expected=expected, new=make_record(**fields)
    )
    assert isinstance(moved, Moved)
    return moved


def test_record_reads_back(refs: Refs) -> None:
    """All fields survive, and the commit comes with its locators."""
    moved = move(refs)

    record, version = refs.get(RefKind.BRANCH, "main")

    assert record == moved.record
    assert version == moved.version
    assert record.moved_at_ns == FixedClock().now_ns()
    assert len(record.write_id) == 32
    commit = record.commit()
    assert commit.message == "hello"
    assert isinstance(commit.root.content, Subtree)
    assert commit.root.content.root is not None
    assert commit.root.content.root.locator == HERE
    assert commit.parents[0].locator is None


def test_ref_without_commit(refs: Refs) -> None:
    """A ref may wait for its first commit."""
    refs.compare_and_swap(RefKind.BRANCH, "main", expected=None, new=RefRecord())

    record, _ = refs.get(RefKind.BRANCH, "main")

    assert record.ref() is None
    with pytest.raises(IntegrityError):
        record.commit()


def test_names_with_slashes_do_not_collide(refs: Refs) -> None:
    """a, a/b and a/b/c can all exist, in every kind apart."""
    for name in ("a", "a/b", "a/b/c", "a-b"):
        move(refs, name)

    assert sorted(name for name, _ in refs.iter(RefKind.BRANCH)) == ["a", "a-b", "a/b", "a/b/c"]
    assert list(refs.iter(RefKind.TAG)) == []
    assert refs.find(RefKind.SESSION, "a") is None


@pytest.mark.parametrize("name", ["", "/a", "a//b", "..", "a/../b", "a,b", ".a", "a b", "x" * 201])
def test_bad_names_are_refused(refs: Refs, name: str) -> None:
    """A name that could not be told from another, or leads elsewhere, names nothing."""
    with pytest.raises(UsageError):
        refs.find(RefKind.BRANCH, name)


def test_longest_name_is_a_key(refs: Refs) -> None:
    """200 characters fit, whatever they are."""
    name = "/".join(["a"] * 100) + "b"

    move(refs, name)

    assert [found for found, _ in refs.iter(RefKind.BRANCH)] == [name]


def test_absent_ref_lists_near_names(refs: Refs) -> None:
    """The message helps: near names, or all, or that there are none."""
    with pytest.raises(NotFoundError, match="no branches yet"):
        refs.get(RefKind.BRANCH, "mian")
    for name in ("main", "release/1"):
        move(refs, name)

    with pytest.raises(NotFoundError, match=r"did you mean main\?"):
        refs.get(RefKind.BRANCH, "mian")
    with pytest.raises(NotFoundError, match="there are: main, release/1"):
        refs.get(RefKind.BRANCH, "zzz")


def test_deleted_ref_is_gone(refs: Refs) -> None:
    """Delete is idempotent."""
    move(refs)

    refs.delete(RefKind.BRANCH, "main")
    refs.delete(RefKind.BRANCH, "main")

    assert refs.find(RefKind.BRANCH, "main") is None


def test_lost_race_tells_who_won(refs: Refs) -> None:
    """The loser gets what is there now, and nothing of its own is."""
    first = move(refs)
    second = move(refs, moved_by="other")

    stale = refs.compare_and_swap(RefKind.BRANCH, "main", expected=first.version, new=make_record())

    assert stale == Stale(second.record, second.version)
    assert refs.get(RefKind.BRANCH, "main")[0] == second.record


def test_creation_race_has_one_winner(refs: Refs) -> None:
    """A ref that must not exist and does is a lost race."""
    first = move(refs)

    stale = refs.compare_and_swap(RefKind.BRANCH, "main", expected=None, new=make_record())

    assert stale == Stale(first.record, first.version)


def test_swap_of_deleted_ref_is_stale(refs: Refs) -> None:
    """A deleted ref is not brought back."""
    first = move(refs)
    refs.delete(RefKind.BRANCH, "main")

    stale = refs.compare_and_swap(RefKind.BRANCH, "main", expected=first.version, new=make_record())

    assert stale == Stale(None, None)


@pytest.mark.parametrize("exists", [False, True])
def test_lost_answer_is_success(refs: Refs, backend: FaultyBackend, exists: bool) -> None:
    """A write whose answer was lost is found by its write id, with the version to go on from."""
    before = move(refs).version if exists else None
    backend.lose_answers = 1

    moved = refs.compare_and_swap(RefKind.BRANCH, "main", expected=before, new=make_record())

    assert isinstance(moved, Moved)
    assert refs.get(RefKind.BRANCH, "main") == (moved.record, moved.version)


@pytest.mark.parametrize("exists", [False, True])
def test_lost_request_is_sent_again(refs: Refs, backend: FaultyBackend, exists: bool) -> None:
    """A write that did not arrive is repeated under the same condition."""
    before = move(refs).version if exists else None
    backend.lose_requests = 2

    moved = refs.compare_and_swap(RefKind.BRANCH, "main", expected=before, new=make_record())

    assert isinstance(moved, Moved)
    assert refs.get(RefKind.BRANCH, "main") == (moved.record, moved.version)


def test_lost_answer_of_a_lost_race_is_stale(refs: Refs, backend: FaultyBackend) -> None:
    """When a rival wrote first and then our answer is lost, we are told of the rival."""
    first = move(refs)
    backend.before_write = lambda: move(refs, moved_by="rival") and None
    backend.lose_answers = 1

    stale = refs.compare_and_swap(RefKind.BRANCH, "main", expected=first.version, new=make_record())

    assert isinstance(stale, Stale)
    assert stale.current is not None
    assert stale.current.moved_by == "rival"


def test_no_answer_at_all_is_unknown(refs: Refs, backend: FaultyBackend) -> None:
    """When reading back fails too, nothing is guessed."""
    backend.lose_answers = 1
    backend.lose_reads = 9999

    with pytest.raises(UnavailableError) as caught:
        refs.compare_and_swap(RefKind.BRANCH, "main", expected=None, new=make_record())

    assert caught.value.kind == "ref.unknown"
    assert 0 < 9999 - backend.lose_reads < 1000


def test_reading_back_is_tried_until_the_deadline(refs: Refs, backend: FaultyBackend) -> None:
    """A storm in which many reads fail too does not make a move "unknown"."""
    backend.lose_answers = 1
    backend.lose_reads = 10

    moved = refs.compare_and_swap(RefKind.BRANCH, "main", expected=None, new=make_record())

    assert isinstance(moved, Moved)
    assert backend.lose_reads == 0


@pytest.mark.parametrize("kind", sorted(UNCHANGED_KINDS))
def test_clear_refusal_is_no_doubt(refs: Refs, backend: FaultyBackend, kind: str) -> None:
    """Where the store says that nothing was done, so do we; but not after a lost answer."""

    def refuse() -> None:
        raise UnavailableError("refused", kind=kind)

    def lose() -> None:
        backend.before_write = refuse
        raise UnavailableError("lost")

    backend.before_write = refuse
    with pytest.raises(UnavailableError) as refused:
        refs.compare_and_swap(RefKind.BRANCH, "main", expected=None, new=make_record())
    backend.before_write = lose
    moved = refs.compare_and_swap(RefKind.BRANCH, "main", expected=None, new=make_record())

    assert refused.value.kind == kind
    assert isinstance(moved, Moved)


def test_requests_that_never_arrive_are_unknown(refs: Refs, backend: FaultyBackend) -> None:
    """A late request may still arrive, so giving up is not failure."""
    backend.lose_requests = 9999

    with pytest.raises(UnavailableError) as caught:
        refs.compare_and_swap(RefKind.BRANCH, "main", expected=None, new=make_record())

    assert caught.value.kind == "ref.unknown"


def test_a_thousand_lost_answers_make_a_chain(refs: Refs, backend: FaultyBackend) -> None:
    """No false conflict, no double move: each of 1000 moves lands once."""
    moved = move(refs)
    for number in range(1000):
        backend.lose_answers, backend.lose_requests = number % 2, number % 3
        answer = refs.compare_and_swap(
            RefKind.BRANCH, "main", expected=moved.version, new=make_record(moved_by=f"{number}")
        )
        assert isinstance(answer, Moved)
        moved = answer
    assert refs.get(RefKind.BRANCH, "main")[0].moved_by == "999"


def test_full_store_is_no_space(refs: Refs, backend: FaultyBackend) -> None:
    """The ref stays where it was."""
    moved = move(refs)
    backend.full_after_writes = 0

    with pytest.raises(NoSpaceError):
        refs.compare_and_swap(RefKind.BRANCH, "main", expected=moved.version, new=make_record())

    assert refs.get(RefKind.BRANCH, "main") == (moved.record, moved.version)


def test_every_flipped_byte_is_found() -> None:
    """No single changed byte of a value is read as a record; the key is named."""
    value = encode_ref(make_record())
    for at in range(len(value)):
        with pytest.raises(IntegrityError, match="refs/branches/main"):
            decode_ref(flip_byte(at)(value), key="refs/branches/main")


def test_every_cut_is_found() -> None:
    """No shortened or lengthened value is read as a record."""
    value = encode_ref(make_record())
    for length in range(len(value)):
        with pytest.raises(IntegrityError):
            decode_ref(value[:length], key="k")
    for more in (b"\n", b" ", b"{}", b"\0"):
        with pytest.raises(IntegrityError):
            decode_ref(value + more, key="k")


@pytest.mark.parametrize(
    "value", [b"", b"null", b"[]", b"{}", b'"x"', b"[" * 100_000, b"\xff\xfe", b"1" * 10_000]
)
def test_other_values_are_damage(value: bytes) -> None:
    """Whatever lies at the key of a ref, it is refused by name."""
    with pytest.raises(IntegrityError, match="refs/tags/x"):
        decode_ref(value, key="refs/tags/x")


def signed(**members: object) -> bytes:
    """Return a value with changed members and a check that fits: what a forger can make."""
    document = json.loads(encode_ref(make_record()))
    del document["check"]
    document.update(members)
    document = {key: value for key, value in document.items() if value != "remove"}

    def line() -> bytes:
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode() + b"\n"

    document["check"] = blake3(line()).hexdigest()
    return line()


@pytest.mark.parametrize(
    "members",
    [
        {"commit": "00" * 32},
        {"commit": "zz"},
        {"commit": None},
        {"commit": 5},
        {"body": "*"},
        {"body": base64.b64encode(b"other").decode()},
        {"body": 7},
        {"locators": None},
        {"locators": [["00" * 16, 1, 2, 3]]},
        {"locators": [["00", 1, 2, 3, 4]]},
        {"locators": [["00" * 16, 1, 2, 3, 2**64]]},
        {"locators": [["00" * 16, 1, 2, 3, True]]},
        {"locator": 1.5},
        {"write_id": None},
        {"moved_at_ns": "now"},
        {"session": {}},
        {"session": []},
        {"extra": 1},
        {"format": "1"},
        {"format": 0},
        {"format": 2},
        {"format": 3},
        {"write_id": "remove"},
    ],
)
def test_forged_members_are_refused(members: dict[str, object]) -> None:
    """A value that checks but says what no ref says is damage, not a crash."""
    with pytest.raises(IntegrityError, match="refs/x"):
        decode_ref(signed(**members), key="refs/x")


@pytest.mark.parametrize(
    "members",
    [
        {"policy": {}},
        {"policy": None},
        {"policy": {"ttl_s": 0}},
        {"policy": {"ttl_s": None}},
        {"policy": {"ttl_s": 1.5}},
        {"policy": {"ttl_s": True}},
        {"policy": {"ttl_s": 2**62}},
        {"policy": {"ephemeral": 1}},
        {"policy": {"other_s": 5}},
        {"left": {}},
        {"left": None},
        {"renamed_from": ""},
        {"renamed_to": 5},
        {"state": "closed"},
    ],
)
def test_forged_policies_are_refused(members: dict[str, object]) -> None:
    """What a session of format 3 may say, and nothing else."""
    session = json.loads(encode_ref(make_record()))["session"]
    good = {**session, "policy": {"ttl_s": 5}}
    assert decode_ref(signed(format=3, session=good), key="refs/x").session is not None

    with pytest.raises(IntegrityError, match="refs/x"):
        decode_ref(signed(format=3, session={**good, **members}), key="refs/x")


def test_newer_format_is_refused() -> None:
    """A newer value is told apart from damage."""
    with pytest.raises(RefusedError) as caught:
        decode_ref(signed(format=5), key="refs/x")

    assert caught.value.kind == "format.newer"


def test_foreign_key_among_refs_is_named(refs: Refs, backend: FaultyBackend) -> None:
    """A key that no ref can have is reported, not skipped."""
    backend.put("refs/branches/a/b", [b""])

    with pytest.raises(IntegrityError, match="refs/branches/a/b"):
        list(refs.iter(RefKind.BRANCH))


def test_keys_are_as_documented() -> None:
    """Slashes become commas."""
    assert ref_key(RefKind.BRANCH, "a/b") == "refs/branches/a,b"
    assert ref_key(RefKind.TAG, "v1") == "refs/tags/v1"
    assert ref_key(RefKind.SESSION, "me/one") == "refs/sessions/me,one"


def _append(root: Path, worker: int, times: int) -> None:
    refs = Refs(FileBackend(root), SystemClock())
    for number in range(times):
        while True:
            record, version = refs.get(RefKind.BRANCH, "main")
            new = RefRecord(moved_by=f"{record.moved_by} {worker}.{number}")
            if isinstance(
                refs.compare_and_swap(RefKind.BRANCH, "main", expected=version, new=new), Moved
            ):
                break


def test_racing_processes_lose_no_move(tmp_path: Path) -> None:
    """3 processes that append to one ref make a chain with all that they appended, in order."""
    Refs(FileBackend(tmp_path), SystemClock()).compare_and_swap(
        RefKind.BRANCH, "main", expected=None, new=RefRecord()
    )
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_append, args=(tmp_path, worker, 30)) for worker in range(3)]

    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    record, _ = Refs(FileBackend(tmp_path), SystemClock()).get(RefKind.BRANCH, "main")
    words = record.moved_by.split()
    assert len(words) == 90
    for worker_number in range(3):
        own = [word for word in words if word.startswith(f"{worker_number}.")]
        assert own == [f"{worker_number}.{number}" for number in range(30)]
