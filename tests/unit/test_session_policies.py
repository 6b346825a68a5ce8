"""When policies fire; and that changing one takes nothing from whoever has the session mounted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.clocks import TurnedClock
from tests.unit.vfs_session import Session
from workspacefs.errors import BusyError, MovedError, RefusedError, UnavailableError, UsageError
from workspacefs.ids import CommitId
from workspacefs.objects.commits import Provenance
from workspacefs.refs import Lease, Moved, RefKind, RefRecord, SessionPolicy, SessionRecord
from workspacefs.testing.faulty import FaultyBackend
from workspacefs.workspace.commit import Committed, commit_pending, settle_ref
from workspacefs.workspace.policies import (
    Pause,
    Step,
    Stillness,
    change_policy,
    pause_due,
    step_due,
)
from workspacefs.workspace.saving import record_work, store_work
from workspacefs.workspace.seal import SealedContents
from workspacefs.workspace.sessions import OpenSession, drop_lease, open_session, take_lease
from workspacefs.workspace.workspace import Workspace

OURS = Lease(saver="aa", host="here", since_ns=1)
THEIRS = Lease(saver="bb", host="there", since_ns=2)


@pytest.fixture
def mine(backend: FaultyBackend, tmp_path: Path) -> Iterator[Session]:
    """A session that we have, with a commit and work on top."""
    workspace = Workspace.create(backend)
    workspace = Workspace.open(backend, retry=TurnedClock().policy())
    made = Session(tmp_path, workspace=workspace)
    made.session = take_lease(workspace, made.session, OURS, steals=False)
    made.make("a", b"a" * 1000)
    made.commit()
    made.make("b", b"b" * 1000)
    yield made
    made.close()


def commit(mine: Session) -> Committed:
    made = commit_pending(
        mine.workspace, mine.session, mine.pending(), message="m", provenance=Provenance(),
        meta={}, before_move=lambda commit_id: None,
    )  # fmt: skip
    assert isinstance(made, Committed)
    return made


def save(mine: Session) -> OpenSession:
    stored = store_work(
        mine.workspace, mine.session, mine.pending(), saver=OURS.saver, provenance=Provenance(),
        contents=SealedContents(), find_stored=lambda object_id: None,
    )  # fmt: skip
    return record_work(mine.workspace, mine.session, stored.work, saver=OURS.saver)


def give_back(mine: Session) -> OpenSession:
    return drop_lease(mine.workspace, mine.session, has_work=False)


def stored(mine: Session) -> SessionRecord:
    session = mine.workspace.refs.get(RefKind.SESSION, "s")[0].session
    assert session is not None
    return session


def rob(mine: Session) -> None:
    take_lease(
        mine.workspace, open_session(mine.workspace, "s", branch="main", owner="they")[0],
        THEIRS, steals=True,
    )  # fmt: skip


@pytest.mark.parametrize("act", [lambda mine: commit(mine).session, save, give_back])
def test_policy_changed_elsewhere_is_adopted(
    mine: Session, act: Callable[[Session], OpenSession]
) -> None:
    """A commit, a save and giving the lease back go on; none of them takes the policy back."""
    change_policy(mine.workspace, "s", {"ttl_s": 60})
    change_policy(mine.workspace, "s", {"idle_pause_s": 5, "ttl_s": None})

    session = act(mine)

    assert session.session == stored(mine)
    assert session.session.policy == SessionPolicy(idle_pause_s=5)
    assert session.version == mine.workspace.refs.get(RefKind.SESSION, "s")[1]


@pytest.mark.parametrize("act", [commit, save])
def test_robbery_is_told_though_the_policy_was_changed_too(
    mine: Session, act: Callable[[Session], object]
) -> None:
    """Adopting must not go so far as to take a session back."""
    change_policy(mine.workspace, "s", {"ttl_s": 60})
    rob(mine)
    change_policy(mine.workspace, "s", {"ttl_s": 61})
    before = mine.workspace.refs.get(RefKind.SESSION, "s")

    with pytest.raises(MovedError) as caught:
        act(mine)

    assert caught.value.kind == "session.moved"
    give_back(mine)
    assert mine.workspace.refs.get(RefKind.SESSION, "s") == before


def test_commit_after_a_policy_change_is_in_the_log_once(
    mine: Session, backend: FaultyBackend
) -> None:
    """With the value that it really replaced as the one before it."""
    changed = change_policy(mine.workspace, "s", {"ttl_s": 60})

    made = commit(mine)

    entries = [json.loads(backend.get(info.key)) for info in backend.iter_keys("ops/")]
    (entry,) = [entry for entry in entries if entry["new"] == made.ref.id.hex()]
    assert entry["write_id"] == made.session.record.write_id
    assert entry["previous_write_id"] == changed.record.write_id


def test_commit_whose_answer_was_lost_and_whose_policy_was_changed_is_found(
    mine: Session, backend: FaultyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write id is gone by the time that we look; the commit itself tells."""
    put = backend.put_if_version

    def lose(key: str, data: bytes, version: object) -> object:
        put(key, data, version)  # type: ignore[arg-type]
        monkeypatch.undo()
        change_policy(mine.workspace, "s", {"ttl_s": 60})
        raise UnavailableError("no answer", kind="store.unclear")

    monkeypatch.setattr(backend, "put_if_version", lose)

    made = commit(mine)

    assert made.session.record.commit_id == made.ref.id
    assert made.session.session.policy.ttl_s == 60
    entries = [json.loads(backend.get(info.key)) for info in backend.iter_keys("ops/")]
    assert made.ref.id.hex() in [entry["new"] for entry in entries]


def test_settling_does_not_take_a_session_back(mine: Session) -> None:
    """Somebody took it over while a commit was unclear: the commit may not go on in it."""
    rob(mine)

    with pytest.raises(MovedError):
        settle_ref(mine.workspace, mine.session, CommitId(b"x" * 32), moved_by="me")


def test_settling_takes_a_changed_policy_along(mine: Session) -> None:
    """What was on its way cannot land any more, and the policy stays."""
    change_policy(mine.workspace, "s", {"ttl_s": 60})

    found = settle_ref(mine.workspace, mine.session, CommitId(b"x" * 32), moved_by="me")

    assert found.session.policy.ttl_s == 60


def test_work_that_is_left_is_told(mine: Session) -> None:
    """Until its machine has the session again, or somebody goes on without it."""
    mine.session = drop_lease(mine.workspace, mine.session, has_work=True)
    assert stored(mine).left == OURS

    mine.session = take_lease(mine.workspace, mine.session, THEIRS, steals=False)
    mine.session = drop_lease(mine.workspace, mine.session, has_work=False)
    assert stored(mine).left == OURS

    mine.session = take_lease(mine.workspace, mine.session, OURS, steals=False)
    assert stored(mine).left is None

    mine.session = drop_lease(mine.workspace, mine.session, has_work=True)
    mine.session = take_lease(mine.workspace, mine.session, THEIRS, steals=False)
    commit(mine)
    assert stored(mine).left is None


def test_mount_says_a_policy_together_with_the_lease(mine: Session) -> None:
    """Also on a machine that has the lease still."""
    changes = {"ttl_s": 60, "idle_pause_s": 5}

    mine.session = take_lease(mine.workspace, mine.session, OURS, steals=False, changes=changes)
    mine.session = take_lease(
        mine.workspace, mine.session, OURS, steals=False, changes={"ttl_s": None}
    )

    assert stored(mine).policy == SessionPolicy(idle_pause_s=5)
    with pytest.raises(BusyError):
        take_lease(mine.workspace, mine.session, THEIRS, steals=False, changes={"ttl_s": 1})


def test_session_that_stands_for_another_is_refused_until_that_is_gone(mine: Session) -> None:
    """A rename that was not finished: one of the two names can be mounted, and only one."""
    refs, old = mine.workspace.refs, mine.session
    new = old.changed(name="t", renamed_from="s", lease=None)
    assert isinstance(refs.compare_and_swap(RefKind.SESSION, "t", expected=None, new=new), Moved)
    with pytest.raises(RefusedError, match="Mount s"):
        open_session(mine.workspace, "t", branch="main", owner="me")

    gone = old.changed(state="deleted", renamed_to="t")
    refs.compare_and_swap(RefKind.SESSION, "s", expected=old.version, new=gone)

    with pytest.raises(RefusedError, match="is called t now"):
        open_session(mine.workspace, "s", branch="main", owner="me")
    found, _ = open_session(mine.workspace, "t", branch="main", owner="me")
    assert take_lease(mine.workspace, found, OURS, steals=False).session.renamed_from == ""


@pytest.mark.parametrize(
    "changes",
    [{"ttl_s": 0}, {"ttl_s": 1.5}, {"ttl_s": "1"}, {"ephemeral": None}, {"other": 1}],
)
def test_policy_takes_no_nonsense(mine: Session, changes: dict[str, object]) -> None:
    """Nothing is stored then."""
    with pytest.raises(UsageError):
        change_policy(mine.workspace, "s", changes)

    assert stored(mine).policy == SessionPolicy()


# -- when they fire -----------------------------------------------------------------------------


def test_stillness_counts_from_the_last_change() -> None:
    """Of a count that is looked at now and then."""
    stillness = Stillness(count=0, now_s=100.0)

    assert stillness.seconds(count=0, now_s=103.0) == 3.0
    assert stillness.seconds(count=2, now_s=104.0) == 0.0
    assert stillness.seconds(count=2, now_s=109.0) == 5.0


@pytest.mark.parametrize(
    ("policy", "still_s", "mounted_s", "due"),
    [
        (SessionPolicy(), 1e9, 1e9, None),
        (SessionPolicy(idle_pause_s=60), 59.9, 1e9, None),
        (SessionPolicy(idle_pause_s=60), 60.0, 60.0, Pause.IDLE),
        (SessionPolicy(ttl_s=60), 59.9, 59.9, None),
        (SessionPolicy(ttl_s=60), 0.0, 60.0, Pause.TTL),
        (SessionPolicy(ttl_s=60, idle_pause_s=1), 70.0, 70.0, Pause.TTL),
        (SessionPolicy(archive_after_s=1, delete_after_s=1), 1e9, 1e9, None),
    ],
)
def test_mounted_session_pauses_when_it_is_due(
    policy: SessionPolicy, still_s: float, mounted_s: float, due: Pause | None
) -> None:
    """Not before."""
    assert pause_due(policy, still_s=still_s, mounted_s=mounted_s) == due


@pytest.mark.parametrize(
    ("members", "age_s", "due"),
    [
        ({}, 1e9, None),
        ({"policy": SessionPolicy(archive_after_s=60)}, 59, None),
        ({"policy": SessionPolicy(archive_after_s=60)}, 60, Step.ARCHIVE),
        ({"policy": SessionPolicy(archive_after_s=60)}, -1e9, None),
        ({"policy": SessionPolicy(archive_after_s=60), "state": "archived"}, 60, None),
        ({"policy": SessionPolicy(delete_after_s=60)}, 60, Step.DELETE),
        ({"policy": SessionPolicy(delete_after_s=60), "state": "archived"}, 60, Step.DELETE),
        ({"policy": SessionPolicy(delete_after_s=60), "state": "deleted"}, 60, None),
        ({"policy": SessionPolicy(delete_after_s=60), "lease": THEIRS}, 1e9, None),
        ({"policy": SessionPolicy(delete_after_s=60), "renamed_from": "x"}, 1e9, None),
        ({"policy": SessionPolicy(delete_after_s=60, archive_after_s=5)}, 30, Step.ARCHIVE),
    ],
)
def test_session_at_rest_is_put_away_when_it_is_due(
    members: dict[str, object], age_s: float, due: Step | None
) -> None:
    """Never one that is mounted, and not because a clock is behind."""
    session = SessionRecord(
        name="s", session_id="00", owner="me", base=None, branch="main", created_ns=0
    )
    record = RefRecord(moved_at_ns=10**18, session=replace(session, **members))  # type: ignore[arg-type]

    assert step_due(record, now_ns=10**18 + int(age_s * 1e9)) == due
