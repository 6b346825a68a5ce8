"""Ephemeral sessions whose process was killed: what it would have done at its end is done here.

A file in the session's directory marks that it was mounted as one. The mark is a hint: what counts
is the policy in the store.
"""

from __future__ import annotations

import logging

from workspacefs.errors import BusyError, WorkspaceError
from workspacefs.layers.journal import sync_directory
from workspacefs.refs import RefKind
from workspacefs.statedir import StateDir
from workspacefs.workspace.local import EPHEMERAL_MARK, LocalSession, session_name, sessions_dir
from workspacefs.workspace.session_deletion import end_ephemeral
from workspacefs.workspace.sessions import OpenSession
from workspacefs.workspace.workspace import Workspace

log = logging.getLogger(__name__)


def note_ephemeral(local: LocalSession, *, is_so: bool) -> None:
    """Mark a session that we have locked, or take the mark away; survives power loss on return."""
    mark = local.directory / EPHEMERAL_MARK
    if is_so == mark.exists():
        return
    if is_so:
        mark.touch(mode=0o600)
    else:
        mark.unlink()
    sync_directory(local.directory)


def end_leftovers(
    workspace: Workspace, state: StateDir, *, ended_by: str, is_dry: bool = False
) -> list[str]:
    """Delete the ephemeral sessions that were mounted on this machine and are not any more, or do
    nothing if `is_dry`; return their names. What cannot be deleted now is left for the next time.
    """
    ended = []
    for mark in sorted(sessions_dir(state, workspace.id).glob(f"*/{EPHEMERAL_MARK}")):
        name = session_name(mark.parent)
        try:
            local = LocalSession.lock(state, workspace.id, name)
        except BusyError:
            continue  # it is mounted
        try:
            if end_leftover(workspace, local, name, ended_by=ended_by, is_dry=is_dry):
                ended.append(name)
        except WorkspaceError as exc:
            extra = {"session": name, "kind": exc.kind, "reason": str(exc)}
            log.warning("session.not_deleted", extra=extra)
        finally:
            local.close()
    return ended


def end_leftover(
    workspace: Workspace, local: LocalSession, name: str, *, ended_by: str, is_dry: bool = False
) -> bool:
    """Delete a session that we have locked, if it was mounted as an ephemeral one and its process
    was killed; tell whether it is gone, or would be if this were not `is_dry`.
    """
    if not (local.directory / EPHEMERAL_MARK).exists():
        return False
    record = local.load()
    found = workspace.refs.find(RefKind.SESSION, name)
    session = None if found is None else found[0].session
    if (
        record is None
        or found is None
        or session is None
        or session.session_id != record.session_id
        or not session.policy.ephemeral
        or (session.lease is not None and session.lease.saver != record.saver)
    ):
        if not is_dry:
            note_ephemeral(local, is_so=False)  # changed elsewhere, or somebody else has it
        return False
    if is_dry:
        return True
    is_gone = session.is_deleted or end_ephemeral(
        workspace, OpenSession(session, *found), ended_by=ended_by
    )
    if is_gone:
        local.forget(record)
        log.info("session.deleted", extra={"session": name, "why": "ephemeral"})
    return is_gone
