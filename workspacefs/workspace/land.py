"""Landing commits on branches: only forward, the branch's tip must be among a commit's ancestors.

Where it is not, whoever lands may join both in a commit that descends from both (merge/landing.py).
Three requests, one after the other: look at the branch, log the move, move it. The entry names the
value that is replaced, so it cannot be written before that was read; and it must be durable before
the branch moves. For a commit made just now the first two are done beside its own requests
(see commit.py), so that landing it costs one more write.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from workspacefs.backend.contract import Version
from workspacefs.errors import MovedError, WorkspaceError
from workspacefs.ids import CommitId
from workspacefs.objects.commits import Commit
from workspacefs.objects.refs import Locator, Ref
from workspacefs.packs.writer import WriteSummary
from workspacefs.refs import Moved, RefKind, RefRecord
from workspacefs.workspace.merge_bases import find_merge_bases
from workspacefs.workspace.open_merge import conflicts_of
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

_SPREAD: Final = 4
"""Whoever loses a race again waits up to so many times as long as a try takes."""


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


class Landed(NamedTuple):
    """What a branch was brought to, or was at already."""

    ref: Ref
    commit: Commit
    is_moved: bool
    """Whether it had to be moved."""


Joined = tuple[SealedCommit, PlannedMove]
Join = Callable[[SealedCommit, Tip, Sequence[tuple[Ref, Commit]], RefMove], Joined | None]
"""Makes a commit that descends from another one and from a tip, whose best common ancestors it is
given, and logs the move to it; None: that cannot be done."""


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
    join: Join | None = None,
) -> Landed | None:
    """Move a branch forward to a commit that is stored, or to one that joins it with the branch.
    None: they cannot be joined, and nothing landed.

    Args:
        workspace: Where both are.
        head: A session, whose head lands; or any commit, whose record is then loaded.
        branch: Which is moved, or begun.
        moved_by: Who, for people.
        landing: What commit_pending returned for this commit and branch.
        built_on: Commits that `head` descends from for certain, such as those that it landed as
            before: a tip among them needs no look at the history.
        join: Called when the branch has commits that this one does not build on; again whenever it
            has moved meanwhile.

    Raises:
        MovedError: The branch has such commits, and there is no `join`; or the commit has conflicts
            that are not settled (kind "conflict.open"). Nothing landed.
    """
    sealed = _sealed_of(workspace, head)
    _check_settled(workspace, sealed)
    known = [CommitId(sealed.ref.id), *(CommitId(one.id) for one in sealed.commit.parents)]
    if isinstance(head, OpenSession):
        known.append(head.session.base or known[0])
    known += built_on
    step: Joined | Landed | None = None
    if landing is not None and landing.tip.branch == branch and landing.commit_id == known[0]:
        tip = landing.tip
        step = None if landing.planned is None else (sealed, landing.planned)
    else:
        tip = _read_tip(workspace, branch)
    losses, began_s = 0, time.monotonic()
    while True:
        step = step or _next_step(workspace, sealed, tip, known, moved_by, join)
        if step is None or isinstance(step, Landed):
            return step
        target, planned = step
        answer = make_move(workspace, planned, target.record())
        if isinstance(answer, Moved):
            return Landed(target.ref, target.commit, is_moved=True)
        # Lost a race: whoever won moved the branch, so this ends in an answer, or in a win.
        tip, step = Tip(branch, answer.current, answer.version), None
        losses += 1
        if losses > 1:
            # Many are at it, of whom one wins each time. All wait alike, however often they lost.
            time.sleep(random.uniform(0, _SPREAD) * (time.monotonic() - began_s))
            tip = _read_tip(workspace, branch)
        began_s = time.monotonic()


def _next_step(
    workspace: Workspace,
    sealed: SealedCommit,
    tip: Tip,
    known: Collection[CommitId | None],
    moved_by: str,
    join: Join | None,
) -> Joined | Landed | None:
    """Return what the branch shall move to, with the move logged; or that it has the commit
    already; None: they cannot be joined.
    """
    record, move = tip.record, _move_from(tip, moved_by)
    if record is not None and record.commit_id == sealed.ref.id:
        return Landed(sealed.ref, sealed.commit, is_moved=False)
    if not _is_built_on(tip, known):
        there, here = head_of(tip), (sealed.ref, sealed.commit)
        bases = find_merge_bases(there, here, workspace.store, workspace.backend)
        refs = [ref for ref, _ in bases]
        if refs == [sealed.ref]:
            return Landed(*there, is_moved=False)
        if refs != [there[0]]:
            if join is None:
                raise _moved(sealed, tip)
            return join(sealed, tip, bases, move)
    planned = plan_move(workspace, CommitId(sealed.ref.id), move)
    log_move(workspace, planned)
    return sealed, planned


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


def stored_commit(workspace: Workspace, ref: Ref) -> SealedCommit:
    """Return a commit that is in the store, to move a ref to it.

    Raises:
        IntegrityError: It is missing or damaged.
        UnavailableError: The store does not answer.
    """
    body, locators = workspace.store.load_commit_record(ref)
    return _sealed(ref, workspace.store.load_commit(ref), body, locators)


def _check_settled(workspace: Workspace, sealed: SealedCommit) -> None:
    """Let no branch get a commit in which something is left to be decided."""
    left = len(conflicts_of(sealed.commit, workspace.store))
    if left:
        raise MovedError(
            f"commit {sealed.ref.id.hex()[:12]} did not land: it has conflicts that nobody has "
            f"settled ({left}). workspacefs conflicts lists them, workspacefs resolve settles "
            "them; then commit, and land again",
            kind="conflict.open",
            commit=sealed.ref.id.hex(),
            conflicts=left,
        )


def _sealed_of(workspace: Workspace, head: OpenSession | Ref) -> SealedCommit:
    if isinstance(head, Ref):
        return stored_commit(workspace, head)
    record, found = head.record, head.head
    assert found is not None
    return _sealed(found, record.commit(), record.commit_body, record.commit_locators)


def _sealed(
    ref: Ref, commit: Commit, body: bytes, locators: Sequence[Locator | None]
) -> SealedCommit:
    references = commit.references()
    for reference, locator in zip(references, locators, strict=True):
        reference.locator = locator
    return SealedCommit(ref, commit, body, tuple(references), WriteSummary((), 0, 0, 0, 0))


def head_of(tip: Tip) -> tuple[Ref, Commit]:
    """Return the commit that a branch is at; it has one."""
    assert tip.record is not None
    ref = tip.record.ref()
    assert ref is not None
    return ref, tip.record.commit()


def _moved(sealed: SealedCommit, tip: Tip) -> MovedError:
    assert tip.record is not None
    tip_hex = head_of(tip)[0].id.hex()
    return MovedError(
        f"commit {sealed.ref.id.hex()[:12]} is safe on its session, but did not land: {tip.branch} "
        f"has moved to {tip_hex[:12]} (by {tip.record.moved_by or 'someone'}), which it does "
        "not build on. Mount a new session to get that state, and bring your change there",
        kind="branch.moved",
        branch=tip.branch,
        commit=sealed.ref.id.hex(),
        tip=tip_hex,
    )
