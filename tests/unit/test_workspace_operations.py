"""The operation log read back, and moves that are undone or refused."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.vfs_session import Session
from workspacefs.backend.memory import MemoryBackend
from workspacefs.errors import BusyError, MovedError, NotFoundError, RefusedError, UsageError
from workspacefs.refs import Lease, RefKind
from workspacefs.statedir import StateDir, ensure_state_dir
from workspacefs.workspace.land import land_commit
from workspacefs.workspace.operations import (
    find_operation,
    newest_operations,
    undo_operation,
)
from workspacefs.workspace.renaming import rename_session
from workspacefs.workspace.session_deletion import delete_session
from workspacefs.workspace.workspace import Workspace


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    """A machine that has nothing of the workspace."""
    made = StateDir(str(tmp_path / "state"))
    ensure_state_dir(made)
    return made


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """A session with two commits, the first one landed."""
    workspace = Workspace.create(MemoryBackend(secrets.token_hex(8)))
    made = Session(tmp_path, workspace=workspace)
    made.make("first", b"1")
    made.commit()
    land_commit(workspace, made.session, "main", moved_by="me")
    made.make("second", b"2")
    made.commit()
    yield made
    made.close()


def actions(workspace: Workspace) -> list[str]:
    """Return what happened, the newest first."""
    return [one.action for one in newest_operations(workspace, 100)]


def test_operations_are_listed_and_found(session: Session) -> None:
    """The newest first, as many as asked for; by the beginning of their ids."""
    workspace = session.workspace
    assert actions(workspace) == ["commit", "land", "commit"]
    (newest,) = newest_operations(workspace, 1)
    assert newest.new == session.session.record.commit_id
    assert find_operation(workspace, newest.id[:10]) == newest
    with pytest.raises(NotFoundError):
        find_operation(workspace, "zzzzzzzz")
    with pytest.raises(UsageError):
        find_operation(workspace, newest.id[:3])


def test_landing_is_undone_and_done_again(session: Session, state: StateDir) -> None:
    """A branch that was begun by it is empty then; undoing that brings it back."""
    workspace = session.workspace
    landing = next(one for one in newest_operations(workspace, 9) if one.action == "land")

    record = undo_operation(workspace, state, landing, moved_by="me")

    assert record.commit_id is None
    with pytest.raises(MovedError):
        undo_operation(workspace, state, landing, moved_by="me")
    (undoing,) = newest_operations(workspace, 1)
    again = undo_operation(workspace, state, undoing, moved_by="me")
    assert again.commit_id == landing.new


def test_commit_becomes_work_again(session: Session, state: StateDir) -> None:
    """What it had is saved work beyond the commit before; nothing is undone beneath that."""
    workspace = session.workspace
    newest, _, first = newest_operations(workspace, 9)

    record = undo_operation(workspace, state, newest, moved_by="me")

    assert record.commit_id == newest.old
    assert record.session is not None
    assert record.session.saved is not None
    assert record.session.saved.commit_id == newest.new
    with pytest.raises(RefusedError):
        undo_operation(workspace, state, first, moved_by="me")


@pytest.mark.parametrize("member", ["lease", "left"])
def test_session_in_use_is_left_alone(session: Session, state: StateDir, member: str) -> None:
    """One that somebody has mounted, or that has work on another machine's disk."""
    workspace = session.workspace
    (newest,) = newest_operations(workspace, 1)
    record, version = workspace.refs.get(RefKind.SESSION, "s")
    assert record.session is not None
    holder = Lease(saver="other", host="elsewhere", since_ns=1)
    held = replace(record.session, lease=holder) if member == "lease" else None
    new = held or replace(record.session, left=holder)
    workspace.refs.compare_and_swap(
        RefKind.SESSION, "s", expected=version, new=replace(record, write_id="", session=new)
    )

    with pytest.raises((BusyError, RefusedError)):
        undo_operation(workspace, state, newest, moved_by="me")

    now, _ = workspace.refs.get(RefKind.SESSION, "s")
    assert now.session == new
    assert now.commit_id == newest.new


def test_deletion_is_undone_and_renaming_is_not(session: Session, state: StateDir) -> None:
    """A gravestone that leads to another name must not become a second session."""
    workspace = session.workspace
    delete_session(workspace, state, "s", deleted_by="me", is_forced=False)
    (deletion,) = newest_operations(workspace, 1)
    record = undo_operation(workspace, state, deletion, moved_by="me")
    assert record.session is not None
    assert not record.session.is_deleted

    rename_session(workspace, state, "s", "t", renamed_by="me")

    for operation in newest_operations(workspace, 2):
        with pytest.raises(RefusedError):
            undo_operation(workspace, state, operation, moved_by="me")
    old, _ = workspace.refs.get(RefKind.SESSION, "s")
    new, _ = workspace.refs.get(RefKind.SESSION, "t")
    assert old.session is not None
    assert new.session is not None
    assert (old.session.is_deleted, new.session.is_deleted) == (True, False)
