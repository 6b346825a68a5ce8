"""Importing into a store far away: what it asks for, and what lost answers leave behind."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.unit.recording_backend import RecordingBackend, is_after
from workspacefs.backend.memory import MemoryBackend
from workspacefs.backend.retry import RetryPolicy
from workspacefs.clock import SystemClock
from workspacefs.errors import UnavailableError
from workspacefs.refs import RefKind, Refs
from workspacefs.testing.faulty import FaultyBackend
from workspacefs.trees.walk import walk
from workspacefs.workspace.file_ids import FileIdAllocator, claim_epoch
from workspacefs.workspace.landing import import_directory
from workspacefs.workspace.workspace import Workspace

ONCE = RetryPolicy(attempts=1)
AT_ONCE = RetryPolicy(sleep=lambda _: None)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """300 files in 30 directories."""
    for number in range(300):
        path = tmp_path / "source" / f"d{number % 30}" / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d " % number * 100)
    return tmp_path / "source"


def test_import_of_a_small_tree_takes_three_round_trips(source: Path) -> None:
    """Look at the branch; pack, log entry and epoch of file ids together; move the branch."""
    backend = RecordingBackend()
    workspace = Workspace.create(backend)

    with (
        backend.recorded() as made,
        backend.together(["put packs", "put ops", "swap ids"]),
    ):
        import_directory(workspace, source, message="m")

    assert sorted(one.kind for one in made) == [
        "get refs", "put ops", "put packs", "swap ids", "swap refs",
    ]  # fmt: skip
    assert made[0].kind == "get refs"
    assert made[-1].kind == "swap refs"
    assert is_after(made[-1], made[:-1])


def test_importing_the_same_again_writes_nothing(source: Path) -> None:
    """One look at the branch, few reads of nodes, and no epoch is spent."""
    backend = RecordingBackend()
    import_directory(Workspace.create(backend), source, message="m")
    workspace = Workspace.open(backend)

    with backend.recorded() as made:
        result = import_directory(workspace, source, message="m")

    assert not result.is_new
    assert made[0].kind == "get refs"
    assert {one.kind for one in made[1:]} == {"get packs"}
    assert len(made) <= 4


def test_import_with_an_epoch_that_is_taken_lands_nothing(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The branch does not move to a tree whose file ids someone else may hand out too."""
    backend = RecordingBackend()
    workspace = Workspace.create(backend)
    monkeypatch.setattr("workspacefs.workspace.file_ids.draw_epoch", lambda: 5)
    assert claim_epoch(backend, SystemClock(), 5)

    with pytest.raises(UnavailableError) as caught:
        import_directory(workspace, source, message="m")

    assert caught.value.kind == "ids.taken"
    assert workspace.refs.find(RefKind.BRANCH, "main") is None


def test_import_whose_answer_was_lost_keeps_its_packs(source: Path) -> None:
    """The branch has moved, though nobody knows: all that it names must stay."""
    backend = FaultyBackend(MemoryBackend(secrets.token_hex(8)))
    workspace = Workspace.create(backend)
    workspace.refs = Refs(backend, workspace.clock, retry=ONCE)

    def lose_the_move(*_: int) -> None:
        backend.lose_answers = 1
        backend.before_write = lambda: setattr(backend, "lose_reads", 1)

    with pytest.raises(UnavailableError) as caught:
        # Told last when all files are read: the only conditional write to come is the move.
        import_directory(workspace, source, message="m", progress=lose_the_move)

    assert caught.value.kind == "ref.unknown"
    root = Workspace.open(backend).resolve("main")[1].root
    assert sum(1 for _ in walk(root, workspace.store)) == 330


@pytest.mark.parametrize("fault", ["lose_answers", "lose_requests"])
def test_claim_whose_answer_was_lost_is_ours(fault: str) -> None:
    """The claim is sent again, and recognised if it had arrived."""
    backend = FaultyBackend(MemoryBackend(secrets.token_hex(8)))
    setattr(backend, fault, 2)

    assert claim_epoch(backend, SystemClock(), 7, retry=AT_ONCE)
    assert not claim_epoch(backend, SystemClock(), 7, retry=AT_ONCE)


def test_claim_of_someone_else_is_never_ours() -> None:
    """Lost requests do not make another's epoch ours."""
    backend = FaultyBackend(MemoryBackend(secrets.token_hex(8)))
    assert claim_epoch(backend, SystemClock(), 7)
    backend.lose_requests = 2

    assert not claim_epoch(backend, SystemClock(), 7, retry=AT_ONCE)


def test_ids_in_the_background_are_claimed_when_settled() -> None:
    """Ids come at once; after settle their epoch has its key."""
    backend = RecordingBackend()
    ids = FileIdAllocator(backend, SystemClock(), in_background=True)

    first = ids.allocate()
    ids.settle()

    assert [info.key for info in backend.inner.iter_keys("ids/")] == [f"ids/{first >> 24:010x}"]
