"""Renaming a session that nobody has mounted: its ref, and what this machine has of it.

In this order: a ref of the new name, which says that it takes the place of the old one; the old ref
becomes a gravestone that leads there; the local record moves. Until the gravestone the session is
the old one, from then on the new one, and never both: sessions.check_renamed refuses the other.
What a crash left is finished by the same command, or by mounting the session.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from workspacefs.backend.contract import Version
from workspacefs.errors import BusyError, MovedError, UsageError
from workspacefs.names import check_ref_name
from workspacefs.refs import Moved, RefKind, RefRecord, SessionRecord
from workspacefs.statedir import StateDir
from workspacefs.workspace.local import LocalSession, find_copy
from workspacefs.workspace.policies import find_session
from workspacefs.workspace.publish import RefMove, log_move, make_move, plan_move
from workspacefs.workspace.sessions import OpenSession, held_error
from workspacefs.workspace.workspace import Workspace

_ACTION: Final = "rename"


def rename_session(
    workspace: Workspace, state: StateDir, name: str, new_name: str, *, renamed_by: str
) -> None:
    """Give a session another name. Idempotent; survives power loss on return.

    Args:
        workspace: Where it is.
        state: Where this machine keeps its uncommitted work.
        name: That it has now.
        new_name: That no session has or had.
        renamed_by: Who does it, for the operation log.

    Raises:
        NotFoundError: There is no such session.
        BusyError: It is mounted, on this machine or another one; or the new name is taken.
        MovedError: Somebody else moved its ref just now.
        UnavailableError: The store does not answer: give it again.
    """
    check_ref_name(new_name, what="session")
    if name == new_name:
        raise UsageError(f"session {name} has that name already", kind="usage.arguments")
    old_local = LocalSession.lock(state, workspace.id, name)
    try:
        new_local = LocalSession.lock(state, workspace.id, new_name)
        try:
            session_id = _move_ref(workspace, old_local, name, new_name, renamed_by)
            record = old_local.load()
            if record is not None and record.session_id == session_id:
                new_local.take_over(old_local)
        finally:
            new_local.close()
    finally:
        old_local.close()
    _settle(workspace, new_name)


def _move_ref(
    workspace: Workspace, local: LocalSession, name: str, new_name: str, renamed_by: str
) -> str:
    """Have the new ref stand in the place of the old one; return the session's id."""
    at = workspace.refs.find(RefKind.SESSION, new_name)
    gone = workspace.refs.find(RefKind.SESSION, name)
    if gone is not None and gone[0].session is not None and gone[0].session.renamed_to == new_name:
        return gone[0].session.session_id  # an earlier call came so far
    old = find_session(workspace, name)
    record = local.load()
    held = old.session.lease
    if held is not None and (
        record is None or record.session_id != old.session.session_id or record.saver != held.saver
    ):
        raise held_error(name, held, "Unmount it there first")
    if at is not None and not _is_begun(at[0], old):
        raise BusyError(
            f"there is, or was, a session {new_name} already; choose another name",
            kind="session.exists",
            session=new_name,
        )
    begun = replace(old.session, name=new_name, renamed_from=name)
    previous, version = at if at is not None else (None, None)
    _write(workspace, old.record, renamed_by, previous, version, begun.name, session=begun)
    ended = replace(old.session, state="deleted", renamed_to=new_name)
    _write(workspace, old.record, renamed_by, old.record, old.version, name, session=ended)
    return old.session.session_id


def _is_begun(record: RefRecord, old: OpenSession) -> bool:
    """Tell whether a ref was made by an earlier call for this session, which did not get far."""
    there = record.session
    return (
        there is not None
        and not there.is_deleted
        and there.renamed_from == old.session.name
        and there.session_id == old.session.session_id
    )


def _write(
    workspace: Workspace,
    record: RefRecord,
    renamed_by: str,
    previous: RefRecord | None,
    expected: Version | None,
    name: str,
    *,
    session: SessionRecord,
) -> None:
    move = RefMove(
        kind=RefKind.SESSION,
        name=name,
        expected=expected,
        previous=previous,
        action=_ACTION,
        moved_by=renamed_by,
        session=session,
    )
    planned = plan_move(workspace, record.commit_id, move)
    log_move(workspace, planned)
    if not isinstance(make_move(workspace, planned, record), Moved):
        raise MovedError(
            f"session {name} was moved by someone else just now; look, and try again",
            kind="session.moved",
            session=name,
        )


def _settle(workspace: Workspace, name: str) -> None:
    """Have a ref say no more that it takes the place of another; mounting it does so too."""
    found = find_session(workspace, name)
    if found.session.renamed_from:
        workspace.refs.compare_and_swap(
            RefKind.SESSION, name, expected=found.version, new=found.changed(renamed_from="")
        )


def bring_copy(workspace: Workspace, state: StateDir, local: LocalSession, session_id: str) -> None:
    """Take what this machine has of a session under another name, if it was renamed elsewhere, or
    renaming was not finished. The caller has locked it under the new one.

    Raises:
        BusyError: A process still has it mounted under the old name.
    """
    if local.load() is not None:
        return
    name = find_copy(state, workspace.id, session_id)
    if name is None:
        return
    old = LocalSession.lock(state, workspace.id, name)
    try:
        record = old.load()
        if record is not None and record.session_id == session_id:
            local.take_over(old)
    finally:
        old.close()
