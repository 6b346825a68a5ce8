"""Deciding about proposals: landing one on its branch, rejecting it, withdrawing it.

Two refs are involved, and whoever decides may die, or be slow, at any point. The order is:

1. the branch is read, the merge is made and stored;
2. the proposal is claimed, by a swap: of two who decide, one gets it;
3. the branch moves, from what was read in 1;
4. the proposal is marked.

A claim does not run out. Whoever takes one over first has the branch written anew as it is: so a
landing that was begun under the old claim can no longer meet its condition; or it has landed, and
is found. Nothing of this needs a clock.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from workspacefs.errors import BusyError, MovedError, NotFoundError, RefusedError
from workspacefs.ids import CommitId
from workspacefs.merge.acceptance import Acceptance
from workspacefs.merge.landing import Refusal
from workspacefs.objects.commits import Commit, Provenance
from workspacefs.objects.refs import Ref
from workspacefs.refs import Claim, Decision, Moved, RefKind, RefRecord
from workspacefs.refs.proposal import ACCEPTED, REJECTED, WITHDRAWN
from workspacefs.workspace.ancestry import is_ancestor
from workspacefs.workspace.land import Landed, Tip, head_of
from workspacefs.workspace.proposals import (
    Proposal,
    change_proposal,
    check_open,
    decided_error,
    find_proposal,
    has_commit,
    read_tip,
    time_of,
)
from workspacefs.workspace.publish import (
    RefMove,
    log_move,
    make_move,
    plan_move,
    withdraw_move,
)
from workspacefs.workspace.workspace import Workspace

_STATES = {"reject": REJECTED, "withdraw": WITHDRAWN}


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of a proposal."""

    proposal: Proposal
    landed: Landed | None = None
    """Of an accepted one: what the branch has of it; is_moved: brought there just now."""


def find_landed(workspace: Workspace, proposal: Proposal, tip: Tip) -> tuple[Ref, Commit] | None:
    """Return what a branch has of a proposal nobody has marked as accepted, or None: nothing.

    The commit that was made when it was accepted; or, when it got there in another way, the tip.
    """
    if not has_commit(tip):
        return None
    at, head, claim = head_of(tip), proposal.head(), proposal.stated.claim
    if claim is not None:
        found = _find_named(workspace, proposal.id, at, until=claim.tip)
        if found is not None:
            return found
    return at if is_ancestor(head, at, workspace.store, workspace.backend) else None


def accept(
    workspace: Workspace,
    proposal_id: str,
    *,
    reviewer: Provenance,
    message: str = "",
    paths: Sequence[bytes] = (),
    takes_over: bool = False,
) -> Decided | Refusal:
    """Land a proposal on its branch, merged with what that has; Refusal: they are in conflict, and
    nothing landed, nor was anything decided. What is returned survives power loss.

    Args:
        workspace: Where it is.
        proposal_id: Which.
        reviewer: Who accepts.
        message: Why, for the commit and the proposal.
        paths: What alone shall land, as from selection.check_paths; none: all.
        takes_over: Whether to go on though somebody else has begun to decide.

    Raises:
        MovedError: Somebody else has decided, or was faster.
        BusyError: Somebody else has begun to decide (kind "proposal.claimed").
        RefusedError, NotFoundError: The paths cannot be landed alone; nothing was changed.
    """
    proposal, tip, done = _look(workspace, proposal_id, "accept", reviewer, takes_over=takes_over)
    if done is not None:
        return done
    acceptance = Acceptance(workspace, proposal, reviewer=reviewer, message=message, paths=paths)
    while True:
        try:
            joined = acceptance.join(tip)
        except (RefusedError, NotFoundError):
            _release(workspace, proposal, reviewer)
            raise
        if isinstance(joined, Refusal):
            _release(workspace, proposal, reviewer)
            return joined
        sealed, planned = joined
        try:
            proposal = _hold(workspace, proposal, tip, reviewer, paths)
        except MovedError:
            withdraw_move(workspace, planned)
            raise
        answer = make_move(workspace, planned, sealed.record())
        if isinstance(answer, Moved):
            break
        tip = Tip(tip.branch, answer.current, answer.version)
    landed = Landed(sealed.ref, sealed.commit, is_moved=True)
    return _mark(workspace, proposal, reviewer, message, landed)


def turn_down(
    workspace: Workspace,
    proposal_id: str,
    action: str,
    *,
    by: Provenance,
    reason: str,
    takes_over: bool = False,
) -> Decided:
    """Reject or withdraw a proposal: it can land no more. Survives power loss on return.

    Args:
        workspace: Where it is.
        proposal_id: Which.
        action: "reject" or "withdraw".
        by: Who.
        reason: Why.
        takes_over: Whether to go on though somebody else has begun to decide.

    Raises:
        MovedError: Somebody else has decided or was faster, or its commit is in the branch.
        BusyError: Somebody else has begun to decide (kind "proposal.claimed").
    """
    proposal, _, done = _look(workspace, proposal_id, action, by, takes_over=takes_over)
    if done is not None:
        raise decided_error(proposal_id, done.proposal.stated)
    decision = _decision(workspace, by, reason)
    return Decided(
        change_proposal(
            workspace, proposal, action, by=by.author, state=_STATES[action], claim=None,
            decision=decision,
        )
    )  # fmt: skip


def _look(
    workspace: Workspace, proposal_id: str, action: str, by: Provenance, *, takes_over: bool
) -> tuple[Proposal, Tip, Decided | None]:
    """Return a proposal that is open and that nobody else has claimed, its branch as it was read
    then, and what has become of it, if it has landed and was not marked.
    """
    proposal = find_proposal(workspace, proposal_id)
    check_open(proposal)
    tip = read_tip(workspace, proposal.stated.branch)
    done = _finish_landed(workspace, proposal, tip, by)
    if done is None and proposal.stated.claim is not None:
        proposal = _take_over(workspace, proposal, action, by, takes_over=takes_over)
        tip = read_tip(workspace, proposal.stated.branch)
        done = _finish_landed(workspace, proposal, tip, by)
    return proposal, tip, done


def _hold(
    workspace: Workspace,
    proposal: Proposal,
    tip: Tip,
    reviewer: Provenance,
    paths: Sequence[bytes],
) -> Proposal:
    """Claim a proposal, or see that nobody has taken our claim over; after the branch was read."""
    claim = Claim(
        action="accept",
        by=reviewer.author,
        since_ns=workspace.clock.now_ns(),
        tip=head_id(tip),
        paths=tuple(map(os.fsdecode, paths)),
    )
    # Also a claim that is ours is written anew: it fails if it is not ours any more.
    return change_proposal(workspace, proposal, "claim", by=reviewer.author, claim=claim)


def head_id(tip: Tip) -> CommitId | None:
    """Return the commit that a branch is at, if it has one."""
    return None if tip.record is None else tip.record.commit_id


def _release(workspace: Workspace, proposal: Proposal, by: Provenance) -> None:
    """Give our claim back, if we have one: nothing was decided."""
    if proposal.stated.claim is not None:
        change_proposal(workspace, proposal, "claim", by=by.author, claim=None)


def _take_over(
    workspace: Workspace, proposal: Proposal, action: str, by: Provenance, *, takes_over: bool
) -> Proposal:
    """Have the claim of somebody else, whose landing has taken place on return, or never will."""
    held = proposal.stated.claim
    assert held is not None
    if not takes_over:
        raise BusyError(
            f"{held.by} has begun to {held.action} proposal {proposal.id} at "
            f"{time_of(held.since_ns)}; if that was cut off, go on with --take-over",
            kind="proposal.claimed",
            proposal=proposal.id,
        )
    # The tip stays that of the first claim: what landed since then may be what it was for.
    claim = Claim(
        action=action, by=by.author, since_ns=workspace.clock.now_ns(), tip=held.tip,
        paths=held.paths,
    )  # fmt: skip
    taken = change_proposal(workspace, proposal, "claim", by=by.author, claim=claim)
    tip = read_tip(workspace, proposal.stated.branch)
    planned = plan_move(
        workspace,
        head_id(tip),
        RefMove(
            kind=RefKind.BRANCH, name=tip.branch, expected=tip.version, previous=tip.record,
            action="settle", moved_by=by.author,
        ),
    )  # fmt: skip
    log_move(workspace, planned)
    make_move(workspace, planned, tip.record or RefRecord())  # stale: it has moved, which will do
    return taken


def _finish_landed(
    workspace: Workspace, proposal: Proposal, tip: Tip, by: Provenance
) -> Decided | None:
    """Mark a proposal as accepted whose commit is in the branch; None: it is not."""
    found = find_landed(workspace, proposal, tip)
    if found is None:
        return None
    return _mark(workspace, proposal, by, "", Landed(*found, is_moved=False))


def _mark(
    workspace: Workspace, proposal: Proposal, by: Provenance, reason: str, landed: Landed
) -> Decided:
    meta, claim = dict(landed.commit.meta), proposal.stated.claim
    is_named = meta.get("proposal") == proposal.id
    is_found = is_named and not landed.is_moved
    who = Provenance(author=meta.get("reviewed-by", "")) if is_found else by
    is_part = is_named and "proposed-commit" in meta
    paths = claim.paths if is_part and claim is not None else ()
    decision = _decision(workspace, who, reason, CommitId(landed.ref.id), paths)
    try:
        marked = change_proposal(
            workspace, proposal, "accept", by=by.author, state=ACCEPTED, claim=None,
            decision=decision,
        )  # fmt: skip
    except MovedError:
        # Whoever took the claim over, or came by, has found what landed.
        marked = find_proposal(workspace, proposal.id)
        if marked.stated.state != ACCEPTED:
            raise
    return Decided(marked, landed)


def _decision(
    workspace: Workspace,
    by: Provenance,
    reason: str,
    result: CommitId | None = None,
    paths: tuple[str, ...] = (),
) -> Decision:
    return Decision(
        by=by.author, agent=by.agent, decided_ns=workspace.clock.now_ns(), reason=reason.strip(),
        result=result, paths=paths,
    )  # fmt: skip


def _find_named(
    workspace: Workspace, proposal_id: str, at: tuple[Ref, Commit], *, until: CommitId | None
) -> tuple[Ref, Commit] | None:
    """Return the commit that was made for a proposal, among those a branch went through."""
    ref, commit = at
    while ref.id != until:
        if dict(commit.meta).get("proposal") == proposal_id:
            return ref, commit
        if not commit.parents:
            return None
        ref = commit.parents[0]
        commit = workspace.store.load_commit(ref)
    return None
