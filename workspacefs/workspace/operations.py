"""The operation log: which refs moved from where to where, by whom; and moving one back.

An entry is written before its move (publish.py), so there may be some of moves that never were.
Reading it takes one request for each thousand entries, and one for each that is shown.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from workspacefs.errors import (
    IntegrityError,
    MovedError,
    NotFoundError,
    RefusedError,
    UsageError,
)
from workspacefs.ids import CommitId
from workspacefs.objects.refs import Ref
from workspacefs.refs import Moved, RefKind, RefRecord, SavedWork, SessionRecord
from workspacefs.statedir import StateDir
from workspacefs.workspace.local import LocalSession
from workspacefs.workspace.publish import OPS_PREFIX, RefMove, log_move, make_move, plan_move
from workspacefs.workspace.session_deletion import has_work
from workspacefs.workspace.sessions import held_error
from workspacefs.workspace.workspace import Workspace

_FORMAT: Final = 1
_ID_MIN: Final = 4
_OF_COMMITS: Final = ("commit", "settle")
"""What moves a session's ref to a commit that was made in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One entry of the log."""

    id: str
    """Write id of the move, hex."""
    action: str
    kind: RefKind
    name: str
    old: CommitId | None
    new: CommitId | None
    time_ns: int
    by: str


def newest_operations(workspace: Workspace, limit: int) -> list[Operation]:
    """Return the latest operations, the newest first.

    Raises:
        IntegrityError: An entry is damaged.
    """
    keys = deque(_iter_keys(workspace), maxlen=limit)
    return [_load(workspace, key) for key in reversed(keys)]


def find_operation(workspace: Workspace, prefix: str) -> Operation:
    """Return the operation whose id begins with some digits.

    Raises:
        NotFoundError: There is none.
        UsageError: There are several, or the digits are fewer than four.
    """
    if len(prefix) < _ID_MIN:
        raise UsageError(f"give at least {_ID_MIN} digits of an operation's id", kind="op.short")
    keys = [key for key in _iter_keys(workspace) if key.rpartition("-")[2].startswith(prefix)]
    if not keys:
        raise NotFoundError(
            f"there is no operation {prefix}; workspacefs oplog lists them", kind="op.absent"
        )
    if len(keys) > 1:
        raise UsageError(
            f"{prefix} is the beginning of {len(keys)} operations; give more digits",
            kind="op.ambiguous",
        )
    return _load(workspace, keys[0])


def undo_operation(
    workspace: Workspace, state: StateDir, operation: Operation, *, moved_by: str
) -> RefRecord:
    """Move a ref back to where it was before an operation, if it is where that left it; return what
    the ref holds now. It survives power loss on return. Of a branch, the undoing can be undone.

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
        target, session = _record_at(workspace, operation.old), None
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


def _record_at(workspace: Workspace, commit_id: CommitId | None) -> RefRecord:
    if commit_id is None:
        return RefRecord()
    ref, _ = workspace.resolve(commit_id.hex())
    body, locators = workspace.store.load_commit_record(Ref(ref.id, ref.locator))
    return RefRecord(
        commit_id=commit_id, commit_body=body, commit_locators=locators, locator=ref.locator
    )


def _moved_on(operation: Operation, current: RefRecord) -> MovedError:
    return MovedError(
        f"{operation.kind.value} {operation.name} has moved since operation {operation.id[:12]} "
        f"(by {current.moved_by or 'someone'}); undo what came after it first",
        kind="op.superseded",
        operation=operation.id,
    )


def _iter_keys(workspace: Workspace) -> Iterator[str]:
    return (info.key for info in workspace.backend.iter_keys(OPS_PREFIX))


def _load(workspace: Workspace, key: str) -> Operation:
    try:
        entry: dict[str, Any] = json.loads(workspace.backend.get(key))
        if entry["format"] > _FORMAT:
            raise RefusedError(
                f"{key} is of format {entry['format']}, newer than {_FORMAT}; use a newer release",
                kind="format.newer",
            )
        return Operation(
            id=str(entry["write_id"]),
            action=str(entry["action"]),
            kind=RefKind(entry["kind"]),
            name=str(entry["name"]),
            old=_commit(entry["old"]),
            new=_commit(entry["new"]),
            time_ns=int(entry["time_ns"]),
            by=str(entry["by"]),
        )
    except (ValueError, KeyError, TypeError) as exc:
        raise IntegrityError(f"{key} is damaged", kind="op.damaged") from exc


def _commit(text: str | None) -> CommitId | None:
    return None if text is None else CommitId(bytes.fromhex(text))
