"""Renaming a branch: the new name is made, then the old one deleted; each of the two moves names
the other one.

In between both are there, so nobody finds neither. What a crash leaves is two branches on one
commit, of which either can be deleted.
"""

from __future__ import annotations

from typing import Final

from workspacefs.errors import BusyError, NotFoundError, UsageError
from workspacefs.names import check_ref_name
from workspacefs.refs import Moved, RefKind, RefRecord
from workspacefs.workspace.branches import (
    Found,
    check_free,
    exists_error,
    get_live,
    move_ref,
    moved_error,
)
from workspacefs.workspace.operation_log import Operation, find_operation
from workspacefs.workspace.publish import RefMove
from workspacefs.workspace.workspace import Workspace

RENAME: Final = "rename"
UNDO: Final = "undo"


def rename_branch(
    workspace: Workspace, name: str, new_name: str, *, renamed_by: str, action: str = RENAME
) -> RefRecord:
    """Give a branch another name; return what the ref of that name holds.

    Survives power loss on return. Sessions that began on it go on naming the old one.

    Args:
        workspace: Where it is.
        name: That it has now.
        new_name: That no branch and no tag has.
        renamed_by: Who does it, for the operation log.
        action: A word for the log.

    Raises:
        NotFoundError: There is no such branch.
        BusyError: The new name is taken.
        MovedError: Somebody else moved it just now; it has its old name.
    """
    check_ref_name(new_name, what="branch")
    if name == new_name:
        raise UsageError(f"branch {name} has that name already", kind="usage.arguments")
    record, version = get_live(workspace, RefKind.BRANCH, name)
    check_free(workspace, RefKind.BRANCH, new_name)
    there = workspace.refs.find(RefKind.BRANCH, new_name)
    if there is not None and there[0].commit_id is not None:
        if there[0].commit_id == record.commit_id:
            raise _both(name, new_name)
        raise exists_error(RefKind.BRANCH, new_name, there[0])
    begun = move_ref(workspace, _move(new_name, there, name, action, renamed_by), record)
    if not isinstance(begun, Moved):
        raise moved_error(RefKind.BRANCH, new_name)
    ended = move_ref(
        workspace,
        _move(name, (record, version), new_name, action, renamed_by),
        record.emptied(),
    )
    if not isinstance(ended, Moved):
        made = begun.record, begun.version
        move_ref(workspace, _move(new_name, made, name, UNDO, renamed_by), record.emptied())
        raise moved_error(RefKind.BRANCH, name)
    return begun.record


def rename_back(workspace: Workspace, operation: Operation, *, moved_by: str) -> RefRecord | None:
    """Take back the renaming that an operation is one half of; return what the ref of the old name
    holds. None: one of the two names has moved since, and nothing was changed.

    Raises:
        MovedError: Somebody else moved it just now.
    """
    name, new_name = operation.name, operation.other_name
    if operation.new is not None:
        name, new_name = new_name, name
    gone = workspace.refs.find(RefKind.BRANCH, name)
    there = workspace.refs.find(RefKind.BRANCH, new_name)
    if gone is None or there is None or operation.id not in (gone[0].write_id, there[0].write_id):
        return None
    for (record, _), other_name in ((gone, new_name), (there, name)):
        if not _is_half(workspace, record, other_name):
            return None
    return rename_branch(workspace, new_name, name, renamed_by=moved_by, action=UNDO)


def _move(name: str, found: Found | None, other_name: str, action: str, renamed_by: str) -> RefMove:
    previous, version = found if found is not None else (None, None)
    return RefMove(
        kind=RefKind.BRANCH,
        name=name,
        expected=version,
        previous=previous,
        action=action,
        moved_by=renamed_by,
        other_name=other_name,
    )


def _is_half(workspace: Workspace, record: RefRecord, other_name: str) -> bool:
    """Tell whether a ref was written last by a renaming, from or to `other_name`."""
    try:
        return find_operation(workspace, record.write_id).other_name == other_name
    except NotFoundError:
        return False


def _both(name: str, new_name: str) -> BusyError:
    return BusyError(
        f"there is a branch {new_name} already, on the same commit; if renaming was cut off, "
        f"finish it with: workspacefs branch delete {name}",
        kind="branch.exists",
        ref=new_name,
    )
