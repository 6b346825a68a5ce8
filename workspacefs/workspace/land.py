"""Landing commits on branches: only forward, the branch's tip must be among a commit's ancestors.

Three requests, one after the other: look at the branch, log the move, move it. The entry names the
value that is replaced, so it cannot be written before that was read; and it must be durable before
the branch moves. For a commit made just now the first two are done beside its own requests
(see commit.py), so that landing it costs one more write.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from workspacefs.backend.contract import Version
from workspacefs.errors import MovedError, WorkspaceError
from workspacefs.ids import CommitId
from workspacefs.objects.refs import Ref
from workspacefs.packs.writer import WriteSummary
from workspacefs.refs import Moved, RefKind, RefRecord
from workspacefs.workspace.ancestry import is_ancestor
from workspacefs.workspace.publish import (
    PlannedMove,
    RefMove,
    SealedCommit,
    log_move,
    make_move,
    plan_move,
)
from workspacefs.workspace.sessions import OpenSession
from workspacefs.workspace.workspace import Workspace

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tip:
    """What a branch holds."""

    branch: str
    record: RefRecord | None
    version: Version | None


@dataclass(frozen=True, slots=True)
class Landing:
    """What was done ahead of landing a commit."""

    commit_id: CommitId
    tip: Tip
    planned: PlannedMove | None
    """Logged, from `tip`; None: not."""


def find_tip(workspace: Workspace, branch: str) -> Tip | None:
    """Return what a branch holds; None: no branch was named, or it cannot be read now."""
    if not branch:
        return None
    try:
        return _read_tip(workspace, branch)
    except WorkspaceError as exc:
        log.info("landing.not_prepared", extra={"branch": branch, "reason": str(exc)})
        return None


def log_landing(
    workspace: Workspace,
    sealed: SealedCommit,
    session: OpenSession,
    tip: Tip | None,
    moved_by: str,
    built_on: Collection[CommitId],
) -> Landing | None:
    """Log that a commit of a session will land on a tip, if it is known without looking to build
    on it; None: there is no tip.
    """
    if tip is None:
        return None
    commit_id = CommitId(sealed.ref.id)
    parents = [CommitId(parent.id) for parent in sealed.commit.parents]
    if not _is_built_on(tip, [*parents, session.session.base, *built_on]):
        return Landing(commit_id, tip, None)
    planned = plan_move(workspace, commit_id, _move_from(tip, moved_by))
    try:
        log_move(workspace, planned)
    except WorkspaceError as exc:
        log.info("landing.not_prepared", extra={"branch": tip.branch, "reason": str(exc)})
        return Landing(commit_id, tip, None)
    return Landing(commit_id, tip, planned)


def land_commit(
    workspace: Workspace,
    head: OpenSession | Ref,
    branch: str,
    *,
    moved_by: str,
    landing: Landing | None = None,
    built_on: Collection[CommitId] = (),
) -> bool:
    """Move a branch forward to a commit that is stored; tell whether it had to be moved.

    Args:
        workspace: Where both are.
        head: A session, whose head lands; or any commit, whose record is then loaded.
        branch: Which is moved, or begun.
        moved_by: Who, for people.
        landing: What commit_pending returned for this commit and branch.
        built_on: Commits that `head` descends from for certain, such as those that it landed as
            before: a tip among them needs no look at the history.

    Raises:
        MovedError: The branch has commits that this one does not build on; nothing landed.
    """
    sealed = _sealed_of(workspace, head)
    known = [CommitId(sealed.ref.id), *(CommitId(one.id) for one in sealed.commit.parents)]
    if isinstance(head, OpenSession):
        known.append(head.session.base or known[0])
    known += built_on
    planned = None
    if landing is not None and landing.tip.branch == branch and landing.commit_id == known[0]:
        tip, planned = landing.tip, landing.planned
    else:
        tip = _read_tip(workspace, branch)
    while True:
        record = tip.record
        if record is not None and record.commit_id == sealed.ref.id:
            return False
        if planned is None:
            if not _is_built_on(tip, known):
                _require_ancestor(workspace, sealed, record, branch)
            planned = plan_move(workspace, known[0], _move_from(tip, moved_by))
            log_move(workspace, planned)
        answer = make_move(workspace, planned, sealed.record())
        if isinstance(answer, Moved):
            return True
        # Lost a race: whoever won moved the branch, so this ends in one of the answers above, or
        # in a win.
        tip, planned = Tip(branch, answer.current, answer.version), None


def _read_tip(workspace: Workspace, branch: str) -> Tip:
    found = workspace.refs.find(RefKind.BRANCH, branch)
    return Tip(branch, None, None) if found is None else Tip(branch, *found)


def _move_from(tip: Tip, moved_by: str) -> RefMove:
    return RefMove(
        kind=RefKind.BRANCH,
        name=tip.branch,
        expected=tip.version,
        previous=tip.record,
        action="land",
        moved_by=moved_by,
    )


def _is_built_on(tip: Tip, known: Collection[CommitId | None]) -> bool:
    return tip.record is None or tip.record.commit_id is None or tip.record.commit_id in known


def _sealed_of(workspace: Workspace, head: OpenSession | Ref) -> SealedCommit:
    if isinstance(head, Ref):
        ref, (body, locators) = head, workspace.store.load_commit_record(head)
        commit = workspace.store.load_commit(head)
    else:
        record, found = head.record, head.head
        assert found is not None
        ref, body, locators = found, record.commit_body, record.commit_locators
        commit = record.commit()
    references = [*commit.parents]
    root = commit.root.subtree.root
    if root is not None:
        references.append(root)
    for reference, locator in zip(references, locators, strict=True):
        reference.locator = locator
    return SealedCommit(ref, commit, body, tuple(references), WriteSummary((), 0, 0, 0, 0))


def _require_ancestor(
    workspace: Workspace, sealed: SealedCommit, tip: RefRecord | None, branch: str
) -> None:
    assert tip is not None
    ref = tip.ref()
    assert ref is not None
    older, newer = (ref, tip.commit()), (sealed.ref, sealed.commit)
    if is_ancestor(older, newer, workspace.store, workspace.backend):
        return
    raise MovedError(
        f"commit {sealed.ref.id.hex()[:12]} is safe on its session, but did not land: {branch} "
        f"has moved to {ref.id.hex()[:12]} (by {tip.moved_by or 'someone'}), which it does "
        "not build on. Mount a new session to get that state, and bring your change there",
        kind="branch.moved",
        branch=branch,
        commit=sealed.ref.id.hex(),
        tip=ref.id.hex(),
    )
