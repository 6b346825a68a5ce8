"""Archiving sessions, and what policies ask for of sessions that nobody has mounted.

A session is archived when all of its work is in the store and nothing of it is on this machine; its
state says so, until it is mounted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from workspacefs.errors import BusyError, MovedError, RefusedError, WorkspaceError
from workspacefs.refs import Moved, RefKind
from workspacefs.statedir import StateDir
from workspacefs.workspace.local import LocalSession, has_copy
from workspacefs.workspace.local_record import LocalRecord
from workspacefs.workspace.policies import Step, find_session, step_due
from workspacefs.workspace.session_deletion import bury, has_work
from workspacefs.workspace.sessions import OpenSession, held_error
from workspacefs.workspace.workspace import Workspace

_ATTEMPTS: Final = 8

PutAway = Callable[[str], None]
"""Stores all work of a session of that name, which nobody has mounted, and deletes it from this
machine. Raises BusyError when it is mounted, RefusedError when it has checkpoints."""


def archive_session(
    workspace: Workspace, state: StateDir, name: str, *, put_away: PutAway
) -> OpenSession:
    """Archive a session that is not mounted; idempotent, durable on return.

    Raises:
        NotFoundError: There is no such session.
        BusyError: It is mounted, on this machine or another one; or it has work that is on the disk
            of another machine alone (kind "session.left").
        RefusedError: It is ephemeral, or has checkpoints here.
        UnavailableError: The store does not answer; what is on this machine stays then.
    """
    found = find_session(workspace, name)
    record = _find_copy(workspace, state, found)
    _check_may_rest(found, record)
    if record is not None:
        put_away(name)
    for _ in range(_ATTEMPTS):
        found = find_session(workspace, name)
        _check_may_rest(found, None)
        if found.session.state == "archived":
            return found
        answer = workspace.refs.compare_and_swap(
            RefKind.SESSION, name, expected=found.version, new=found.changed(state="archived")
        )
        if isinstance(answer, Moved):
            assert answer.record.session is not None
            return OpenSession(answer.record.session, answer.record, answer.version)
    raise MovedError(
        f"session {name} is moved by others all the time; try again", kind="session.busy"
    )


def _find_copy(workspace: Workspace, state: StateDir, session: OpenSession) -> LocalRecord | None:
    """Return what this machine has of a session that is not mounted here, or None."""
    if not has_copy(state, workspace.id, session.session.name):
        return None
    local = LocalSession.lock(state, workspace.id, session.session.name)
    try:
        record = local.load()
    finally:
        local.close()
    is_same = record is not None and record.session_id == session.session.session_id
    return record if is_same else None


def _check_may_rest(found: OpenSession, record: LocalRecord | None) -> None:
    session, saver = found.session, None if record is None else record.saver
    if session.lease is not None and session.lease.saver != saver:
        raise held_error(session.name, session.lease, "Pause it there first")
    if session.left is not None and session.left.saver != saver:
        raise BusyError(
            f"session {session.name} has work that is on the disk of {session.left.host} alone; "
            "archive it there, or mount it there and commit or pause",
            kind="session.left",
            session=session.name,
            host=session.left.host,
        )
    if session.policy.ephemeral:
        raise RefusedError(
            f"session {session.name} is ephemeral, so it does not outlive its mount; to keep it, "
            f"first: workspacefs session set URL {session.name} --no-ephemeral",
            kind="session.ephemeral",
            session=session.name,
        )


# -- what policies ask for ---------------------------------------------------------------------


class Tidied(NamedTuple):
    """What a policy asked for, and what came of it."""

    session: str
    step: str
    is_done: bool
    reason: str | None = None
    """Why it is not done."""


def tidy_sessions(
    workspace: Workspace,
    state: StateDir,
    names: Iterable[str],
    *,
    tidied_by: str,
    put_away: PutAway,
    is_dry: bool = False,
) -> Iterator[Tidied]:
    """Archive and delete those of these sessions whose policies ask for that now; yield what was
    asked for. One that fails does not keep the others.

    Args:
        workspace: Where they are.
        state: What this machine has of them.
        names: Takes one request each, and some more where there is something to do.
        tidied_by: Who does this, for the operation log.
        put_away: See there.
        is_dry: Whether to do nothing, and say what would be tried.
    """
    for name in names:
        found = workspace.refs.find(RefKind.SESSION, name)
        if found is None or found[0].session is None:
            continue
        session = OpenSession(found[0].session, *found)
        step = step_due(session.record, now_ns=workspace.clock.now_ns())
        try:
            if step is None and not _has_archived_copy(workspace, state, session):
                continue
            step = step or Step.ARCHIVE
            if is_dry:
                yield Tidied(name, step.value, is_done=False)
                continue
            if step is Step.DELETE:
                _delete(workspace, state, session, deleted_by=tidied_by)
            else:
                archive_session(workspace, state, name, put_away=put_away)
        except WorkspaceError as exc:
            yield Tidied(name, (step or Step.ARCHIVE).value, is_done=False, reason=str(exc))
        else:
            yield Tidied(name, step.value, is_done=True)


def _has_archived_copy(workspace: Workspace, state: StateDir, session: OpenSession) -> bool:
    """Tell whether another machine archived a session that still takes space here."""
    if session.session.state != "archived" or session.session.lease is not None:
        return False
    return _find_copy(workspace, state, session) is not None


def _delete(
    workspace: Workspace, state: StateDir, session: OpenSession, *, deleted_by: str
) -> None:
    """Delete a session that is as we know it, and has no work that the store does not have."""
    name, left = session.session.name, session.session.left
    local = LocalSession.lock(state, workspace.id, name)
    try:
        record = local.load()
        if record is not None and record.session_id != session.session.session_id:
            record = None
        if left is not None and (record is None or record.saver != left.saver):
            raise BusyError(
                f"it has work that is on the disk of {left.host} alone", kind="session.left"
            )
        if record is not None and has_work(local, record):
            raise BusyError(
                "it has work on this machine that is in no commit; to delete that too: "
                f"workspacefs session delete URL {name} --force",
                kind="session.has_work",
            )
        if not isinstance(bury(workspace, session, deleted_by=deleted_by), Moved):
            raise MovedError("somebody else moved it just now", kind="session.moved")
        if record is not None:
            local.forget(record)
    finally:
        local.close()
