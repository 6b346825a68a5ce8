"""Making, deleting and renaming branches and tags.

Each is one move of a ref by compare-and-swap, logged before it is made, so that undo_operation
takes it back; renaming is two. What is deleted keeps its key, with no commit under it: so a write
that comes late cannot bring it back, and the log's chain of writes goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from workspacefs.backend.contract import Version
from workspacefs.backend.rounds import iter_answers
from workspacefs.errors import BusyError, MovedError, NotFoundError, RefusedError
from workspacefs.ids import CommitId
from workspacefs.names import check_ref_name
from workspacefs.objects.commits import Commit
from workspacefs.objects.refs import Ref
from workspacefs.refs import Moved, RefKind, RefRecord, Stale
from workspacefs.workspace.ancestry import is_ancestor_of_any
from workspacefs.workspace.near import near_names
from workspacefs.workspace.publish import RefMove, log_move, make_move, plan_move
from workspacefs.workspace.workspace import Workspace

CREATE: Final = "create"
DELETE: Final = "delete"

Found = tuple[RefRecord, Version]


@dataclass(frozen=True, slots=True)
class Created:
    """A branch or tag as it is now."""

    record: RefRecord
    is_new: bool
    """False: a tag that was there already, on just this commit."""
    is_session: bool
    """Whether a session has the same name: where a revision is taken, the name means this now."""


def list_refs(workspace: Workspace, kind: RefKind) -> list[tuple[str, RefRecord]]:
    """Return name and record of all branches, or of all tags, in order of name.

    Raises:
        IntegrityError: A value is damaged; the message names its key.
    """
    names = sorted(workspace.refs.iter_names(kind))
    found = iter_answers(
        workspace.backend, lambda name: workspace.refs.find_live(kind, name), names
    )
    return [(name, one[0]) for name, one in zip(names, found, strict=True) if one is not None]


def create_ref(
    workspace: Workspace, kind: RefKind, name: str, target: Ref, *, created_by: str
) -> Created:
    """Make a branch or tag that leads to a commit. Survives power loss on return.

    A tag that is there already on just this commit is left as it is.

    Args:
        workspace: Where it shall be.
        kind: A branch or a tag.
        name: Of it.
        target: A commit of this workspace, with its locator.
        created_by: Who does it, for the operation log.

    Raises:
        UsageError: It cannot have such a name.
        BusyError: There is one already (kind "branch.exists", "tag.exists"); or a tag has the name
            that a branch shall have, or the other way round (kind "ref.hidden").
    """
    refs = workspace.refs
    check_ref_name(name, what=kind.value)
    check_free(workspace, kind, name)
    session = refs.find(RefKind.SESSION, name)
    is_session = (
        session is not None and session[0].session is not None and not session[0].session.is_deleted
    )
    found = refs.find(kind, name)
    while True:
        if found is not None and found[0].commit_id is not None:
            if kind is RefKind.TAG and found[0].commit_id == target.id:
                return Created(found[0], is_new=False, is_session=is_session)
            raise exists_error(kind, name, found[0])
        answer = move_ref(
            workspace,
            _move(kind, name, found, CREATE, created_by),
            record_of(workspace, target),
        )
        if isinstance(answer, Moved):
            return Created(answer.record, is_new=True, is_session=is_session)
        found = found_in(answer)


def delete_ref(
    workspace: Workspace, kind: RefKind, name: str, *, deleted_by: str, is_forced: bool
) -> RefRecord:
    """Delete a branch or tag; return what it was. Survives power loss on return.

    No commit is deleted, and undo_operation brings the name back.

    Args:
        workspace: Where it is.
        kind: A branch or a tag.
        name: Of it.
        deleted_by: Who does it, for the operation log.
        is_forced: Whether to delete it though nothing else leads to some of its commits.

    Raises:
        NotFoundError: There is none.
        RefusedError: It is the last way to some of its commits (kind "ref.last").
        MovedError: Somebody else moved it just now; nothing was changed.
    """
    record, version = get_live(workspace, kind, name)
    if not is_forced and not _is_kept_elsewhere(workspace, kind, name, record):
        raise RefusedError(
            f"no other branch, tag or session has the newest commits of {kind.value} {name}; "
            "delete it all the same with --force (undo --op brings it back)",
            kind="ref.last",
            ref=name,
        )
    move = _move(kind, name, (record, version), DELETE, deleted_by)
    if not isinstance(move_ref(workspace, move, record.emptied()), Moved):
        raise moved_error(kind, name)
    return record


def move_ref(workspace: Workspace, move: RefMove, target: RefRecord) -> Moved | Stale:
    """Log a move, and make it. See make_move."""
    planned = plan_move(workspace, target.commit_id, move)
    log_move(workspace, planned)
    return make_move(workspace, planned, target)


def record_of(workspace: Workspace, target: Ref) -> RefRecord:
    """Return what a branch or tag holds that leads to a commit.

    Raises:
        IntegrityError: The commit is not stored, or damaged.
    """
    body, locators = workspace.store.load_commit_record(target)
    return RefRecord(
        commit_id=CommitId(target.id),
        commit_body=body,
        commit_locators=locators,
        locator=target.locator,
    )


def get_live(workspace: Workspace, kind: RefKind, name: str) -> Found:
    """Return a branch or tag that is there.

    Raises:
        NotFoundError: There is none (kind "branch.absent", "tag.absent"); the message has near
            names.
    """
    check_ref_name(name, what=kind.value)
    found = workspace.refs.find_live(kind, name)
    if found is not None:
        return found
    near = near_names(name, workspace.refs.iter_names(kind))
    hint = (
        f"did you mean {', '.join(near)}?"
        if near
        else f"workspacefs {kind.value} lists those that there are"
    )
    raise NotFoundError(
        f"there is no {kind.value} {name}; {hint}", kind=f"{kind.value}.absent", ref=name
    )


def check_free(workspace: Workspace, kind: RefKind, name: str) -> None:
    """Raise BusyError (kind "ref.hidden") if a tag has the name that a branch shall have, or the
    other way round.
    """
    other = RefKind.TAG if kind is RefKind.BRANCH else RefKind.BRANCH
    if workspace.refs.find_live(other, name) is not None:
        raise BusyError(
            f"there is a {other.value} {name}; a {kind.value} of that name would be mistaken for "
            "it: choose another one",
            kind="ref.hidden",
            ref=name,
        )


def exists_error(kind: RefKind, name: str, record: RefRecord) -> BusyError:
    """Return the error that says that a branch or tag is there already."""
    assert record.commit_id is not None
    at = record.commit_id.hex()[:12]
    if kind is RefKind.TAG:
        message = f"there is a tag {name} already, on commit {at}, and tags never move"
    else:
        message = f"there is a branch {name} already, at commit {at}"
    return BusyError(
        f"{message}; choose another name, or delete it first",
        kind=f"{kind.value}.exists",
        ref=name,
    )


def moved_error(kind: RefKind, name: str) -> MovedError:
    """Return the error that says that a branch or tag was moved under us."""
    return MovedError(
        f"{kind.value} {name} was moved by someone else just now; look, and try again",
        kind="ref.moved",
        ref=name,
    )


def found_in(answer: Stale) -> Found | None:
    """Return what a ref was found to hold in the place of what was expected."""
    if answer.current is None or answer.version is None:
        return None
    return answer.current, answer.version


def _move(kind: RefKind, name: str, found: Found | None, action: str, moved_by: str) -> RefMove:
    previous, version = found if found is not None else (None, None)
    return RefMove(
        kind=kind,
        name=name,
        expected=version,
        previous=previous,
        action=action,
        moved_by=moved_by,
    )


def _is_kept_elsewhere(workspace: Workspace, kind: RefKind, name: str, record: RefRecord) -> bool:
    ref = record.ref()
    assert ref is not None
    head = ref, record.commit()
    others = _iter_other_heads(workspace, kind, name)
    return is_ancestor_of_any(head, others, workspace.store, workspace.backend)


def _iter_other_heads(
    workspace: Workspace, kind: RefKind, name: str
) -> Iterator[tuple[Ref, Commit]]:
    """Yield what other branches and tags lead to, and sessions that were not deleted. Proposals
    count for nothing: what was only proposed is in no history.
    """
    for other_kind in (RefKind.BRANCH, RefKind.TAG, RefKind.SESSION):
        for other, record in workspace.refs.iter(other_kind):
            ref = record.ref()
            is_deleted = record.session is not None and record.session.is_deleted
            if ref is not None and not is_deleted and (other_kind, other) != (kind, name):
                yield ref, record.commit()
