"""Moving a ref back to where it was before an operation of the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from workspacefs.errors import MovedError, NotFoundError, RefusedError
from workspacefs.ids import CommitId
from workspacefs.objects.refs import Locator, Ref
from workspacefs.refs import Moved, RefKind, RefRecord, SavedWork, SessionRecord
from workspacefs.statedir import StateDir
from workspacefs.workspace.branch_renaming import rename_back
from workspacefs.workspace.branches import record_of
from workspacefs.workspace.local import LocalSession
from workspacefs.workspace.operation_log import Operation, find_operation, newest_operations
from workspacefs.workspace.publish import RefMove, log_move, make_move, plan_move
from workspacefs.workspace.session_deletion import has_work
from workspacefs.workspace.sessions import held_error
from workspacefs.workspace.workspace import Workspace

__all__ = ["Operation", "find_operation", "newest_operations", "undo_operation"]

_OF_COMMITS: Final = ("commit", "settle")
"""What moves a session's ref to a commit that was made in it."""


def undo_operation(
    workspace: Workspace, state: StateDir, operation: Operation, *, moved_by: str
) -> RefRecord:
    """Move a ref back to where it was before an operation, if it is where that left it; return what
    the ref holds now. It survives power loss on return. Of a branch or tag, the undoing can be
    undone; of one that was renamed, both names are moved back, whichever of the two moves is given.

    A session keeps its files: what a commit made of them is uncommitted work again, and committing
    it is the way back.

    Args:
        workspace: Where it is.
        state: Where this machine has what it knows of sessions.
        operation: Which.
        moved_by: Who undoes it, for the operation log.

    Raises:
        MovedError: The ref has moved on since; nothing was changed.
        BusyError: The session is mounted somewhere.
        RefusedError: There is nothing to move back, or this machine has work that builds on what
            would be.
    """
    if operation.kind is RefKind.BRANCH and operation.other_name:
        return _undo_renaming(workspace, operation, moved_by)
    if operation.kind is RefKind.PROPOSAL:
        raise RefusedError(
            f"what was decided about proposal {operation.name} stays decided; propose the commit "
            "again, or undo the landing: workspacefs oplog names it",
            kind="op.nothing",
        )
    if operation.kind is not RefKind.SESSION:
        return _undo(workspace, operation, moved_by, lambda: None)
    local = LocalSession.lock(state, workspace.id, operation.name)
    try:
        record = local.load()
        if record is None or operation.action == "delete":
            return _undo(workspace, operation, moved_by, lambda: None)
        if has_work(local, record):
            raise _has_work(operation.name)
        # It has nothing but the commit, and would stand in the way of where the ref goes.
        return _undo(workspace, operation, moved_by, partial(local.forget, record))
    finally:
        local.close()


def _undo(
    workspace: Workspace, operation: Operation, moved_by: str, before_move: Callable[[], None]
) -> RefRecord:
    kind, name = operation.kind, operation.name
    found = workspace.refs.find(kind, name)
    if found is None:
        raise NotFoundError(f"there is no {kind.value} {name} any more", kind="ref.absent")
    current, version = found
    if current.commit_id != operation.new:
        raise _moved_on(operation, current)
    if current.session is not None:
        target, session = _session_before(workspace, operation, current, current.session)
    else:
        if current.write_id != operation.id:
            raise _moved_on(operation, current)
        target, session = _record_before(workspace, operation, current), None
    move = RefMove(
        kind=kind, name=name, expected=version, previous=current, action="undo",
        moved_by=moved_by, session=session,
    )  # fmt: skip
    planned = plan_move(workspace, target.commit_id, move)
    log_move(workspace, planned)
    before_move()
    answer = make_move(workspace, planned, target)
    if not isinstance(answer, Moved):
        raise _moved_on(operation, answer.current or current)
    return answer.record


def _session_before(
    workspace: Workspace, operation: Operation, current: RefRecord, session: SessionRecord
) -> tuple[RefRecord, SessionRecord]:
    if session.lease is not None:
        raise held_error(
            operation.name, session.lease,
            f"Unmount it first: workspacefs undo --op {operation.id[:12]} moves its ref",
        )  # fmt: skip
    if session.renamed_to:
        raise RefusedError(
            f"session {session.name} is called {session.renamed_to} now: workspacefs session "
            "rename gives it another name",
            kind="session.renamed",
        )
    if operation.action == "delete":
        if not session.is_deleted:
            raise RefusedError(f"session {session.name} is there already", kind="op.nothing")
        return current, replace(session, state="open")
    if operation.action not in _OF_COMMITS:
        raise RefusedError(
            f"operation {operation.id[:12]} ({operation.action}) of session {session.name} has "
            "nothing that could be moved back",
            kind="op.nothing",
        )
    if session.is_deleted:
        raise RefusedError(
            f"session {session.name} was deleted; undo that first", kind="session.deleted"
        )
    if session.saved is not None or session.left is not None:
        raise _has_work(session.name)
    if operation.old == operation.new or current.locator is None or current.commit_id is None:
        raise RefusedError("that operation moved nothing", kind="op.nothing")
    saved = SavedWork(
        commit_id=current.commit_id, locator=current.locator, saver="", host=operation.by,
        saved_ns=operation.time_ns,
    )  # fmt: skip
    return _record_at(workspace, operation.old), replace(session, saved=saved)


def _has_work(name: str) -> RefusedError:
    return RefusedError(
        f"session {name} has work, or checkpoints, on top of what would be taken back; mount it "
        "and commit, or restore HEAD and delete the checkpoints, first",
        kind="session.has_work",
        session=name,
    )


def _undo_renaming(workspace: Workspace, operation: Operation, moved_by: str) -> RefRecord:
    record = rename_back(workspace, operation, moved_by=moved_by)
    if record is None:
        found = workspace.refs.find(operation.kind, operation.name)
        raise _moved_on(operation, RefRecord() if found is None else found[0])
    return record


def _record_before(workspace: Workspace, operation: Operation, current: RefRecord) -> RefRecord:
    """Return what a branch or tag held before an operation after which it holds `current`."""
    if operation.old is None:
        return current.emptied()
    if current.commit_id is None and current.locator is not None:
        # It was deleted, so it may be that nothing else leads there.
        return record_of(workspace, Ref(operation.old, current.locator))
    return _record_at(workspace, operation.old)


def _record_at(workspace: Workspace, commit_id: CommitId | None) -> RefRecord:
    if commit_id is None:
        return RefRecord()
    return record_of(workspace, Ref(commit_id, _locate(workspace, commit_id)))


def _locate(workspace: Workspace, commit_id: CommitId) -> Locator | None:
    try:
        return workspace.resolve(commit_id.hex())[0].locator
    except NotFoundError:
        # Nothing leads there any more. The packs' own tables tell, after a longer search.
        locator = workspace.store.locate(commit_id)
        if locator is None:
            raise
        return locator


def _moved_on(operation: Operation, current: RefRecord) -> MovedError:
    return MovedError(
        f"{operation.kind.value} {operation.name} has moved since operation {operation.id[:12]} "
        f"(by {current.moved_by or 'someone'}); undo what came after it first",
        kind="op.superseded",
        operation=operation.id,
    )
