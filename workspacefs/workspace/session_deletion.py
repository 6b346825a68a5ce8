"""Deleting a session: its ref becomes a gravestone, and its work on this machine goes.

No other session is touched: forks name the layers that they need themselves.
"""

from __future__ import annotations

from dataclasses import replace

from workspacefs.errors import MovedError, NotFoundError, RefusedError
from workspacefs.layers.database import Database
from workspacefs.refs import Moved, RefKind, RefRecord, Stale
from workspacefs.statedir import StateDir
from workspacefs.workspace.local import LocalSession
from workspacefs.workspace.local_record import LocalRecord
from workspacefs.workspace.publish import RefMove, log_move, make_move, plan_move
from workspacefs.workspace.sessions import OpenSession, held_error, is_taken
from workspacefs.workspace.workspace import Workspace


def delete_session(
    workspace: Workspace, state: StateDir, name: str, *, deleted_by: str, is_forced: bool
) -> RefRecord:
    """Delete a session that is not mounted on this machine; return what its ref was.

    Its commits stay where they have landed; the operation log has its last commit. Survives power
    loss on return.

    Args:
        workspace: Where it is.
        state: Where this machine keeps its uncommitted work.
        name: Of the session.
        deleted_by: Who deletes, for the operation log.
        is_forced: Whether to delete it though another machine has it mounted, or there is work here
            that was never committed.

    Raises:
        NotFoundError: There is no such session, or it was deleted before.
        BusyError: It is mounted, on this machine or another one.
        RefusedError: It has uncommitted work here, or on the disk of another machine alone (kind
            "session.has_work").
        MovedError: Somebody else moved its ref just now.
    """
    found = workspace.refs.find(RefKind.SESSION, name)
    session = None if found is None else found[0].session
    if found is None or session is None or session.is_deleted:
        raise NotFoundError(
            f"there is no session {name} in {workspace.url}; workspacefs session list "
            f"{workspace.url} names those that there are",
            kind="session.absent",
            session=name,
        )
    local = LocalSession.lock(state, workspace.id, name)
    try:
        record = local.load()
        if record is not None and record.session_id != session.session_id:
            record = None  # of an earlier session of that name, and none of our business
        held = session.lease
        if held is not None and not is_forced and (record is None or record.saver != held.saver):
            raise held_error(name, held, "If that machine is gone, delete it with --force")
        left = session.left
        if left is not None and not is_forced and (record is None or record.saver != left.saver):
            raise RefusedError(
                f"session {name} has work that is on the disk of {left.host} alone; mount it there "
                "and commit, or delete the session with --force",
                kind="session.has_work",
                session=name,
            )
        if record is not None and not is_forced and has_work(local, record):
            raise RefusedError(
                f"session {name} has work on this machine that was never committed; mount it and "
                "commit, or delete that too with --force",
                kind="session.has_work",
                session=name,
            )
        answer = bury(workspace, OpenSession(session, *found), deleted_by=deleted_by)
        if not isinstance(answer, Moved):
            raise MovedError(
                f"session {name} was moved by someone else just now; look, and try again",
                kind="session.moved",
                session=name,
            )
        if record is not None:
            local.forget(record)
    finally:
        local.close()
    return found[0]


def bury(workspace: Workspace, session: OpenSession, *, deleted_by: str) -> Moved | Stale:
    """Make the ref of a session a gravestone, if it is as we know it; nothing here is deleted."""
    move = RefMove(
        kind=RefKind.SESSION,
        name=session.session.name,
        expected=session.version,
        previous=session.record,
        action="delete",
        moved_by=deleted_by,
        session=replace(session.session, state="deleted"),
    )
    planned = plan_move(workspace, session.record.commit_id, move)
    log_move(workspace, planned)
    return make_move(workspace, planned, session.record)


def end_ephemeral(workspace: Workspace, session: OpenSession, *, ended_by: str) -> bool:
    """Delete an ephemeral session that we have, at its end. False: it is not ephemeral any more, or
    somebody else has it; then it stays.
    """
    while True:
        answer = bury(workspace, session, deleted_by=ended_by)
        if isinstance(answer, Moved):
            return True
        found = answer.current
        there = None if found is None else found.session
        if found is None or there is None or answer.version is None:
            return True
        if is_taken(there, session.session) or not there.policy.ephemeral:
            return False
        session = OpenSession(there, found, answer.version)


def has_work(local: LocalSession, record: LocalRecord) -> bool:
    """Tell whether a session that we have locked has changes here that are in no commit; those of
    its checkpoints count.
    """
    for place in record.all_places():
        directory = local.layer_directory(place)
        if not (directory / "data.mdb").exists():
            continue
        rows = Database(directory, is_frozen=True)  # nobody has it mounted
        try:
            if rows.has_rows(b"I") or rows.has_rows(b"D"):
                return True
        finally:
            rows.close()
    return False
