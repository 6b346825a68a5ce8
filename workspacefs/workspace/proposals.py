"""Proposals: commits that wait for a reviewer to land them on a branch. Each is a ref of its own.

A proposal is decided once. Rejecting it is one swap of its ref. Accepting it moves the branch, too,
and the two refs cannot be moved in one step: so it is claimed first, then the branch moves, then it
is marked. Who dies between the last two leaves an open proposal whose commit is in the branch;
whoever looks next finds that, and marks it (merge/deciding.py).
"""

from __future__ import annotations

import difflib
import re
import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from workspacefs.backend.contract import Version
from workspacefs.backend.rounds import iter_answers
from workspacefs.errors import BusyError, MovedError, NotFoundError, RefusedError, UsageError
from workspacefs.ids import CommitId
from workspacefs.names import check_ref_name
from workspacefs.objects.commits import Commit, Provenance
from workspacefs.objects.refs import Ref
from workspacefs.refs import Moved, ProposalRecord, RefKind, RefRecord, Stale
from workspacefs.workspace.land import Tip, head_of
from workspacefs.workspace.merge_bases import find_merge_bases
from workspacefs.workspace.publish import RefMove, log_move, make_move, plan_move
from workspacefs.workspace.workspace import Workspace

_ID: Final = re.compile(r"p-[0-9a-f]{8}")
_ATTEMPTS: Final = 8


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposal and the value of its ref that we know."""

    id: str
    """ "p-" and 8 hex digits; the name of the ref."""
    stated: ProposalRecord
    record: RefRecord
    version: Version

    def head(self) -> tuple[Ref, Commit]:
        """Return the commit that is proposed."""
        ref = self.record.ref()
        assert ref is not None
        return ref, self.record.commit()


def is_proposal_id(text: str) -> bool:
    """Tell whether a text is spelled as the id of a proposal is."""
    return _ID.fullmatch(text) is not None


def read_tip(workspace: Workspace, branch: str) -> Tip:
    """Return what a branch holds."""
    found = workspace.refs.find(RefKind.BRANCH, branch)
    return Tip(branch, None, None) if found is None else Tip(branch, *found)


def has_commit(tip: Tip) -> bool:
    """Tell whether a branch has been begun, and has a commit."""
    return tip.record is not None and tip.record.commit_id is not None


def make_proposal(
    workspace: Workspace,
    head: tuple[Ref, Commit],
    branch: str,
    *,
    message: str,
    who: Provenance,
) -> Proposal:
    """Propose a stored commit for a branch; survives power loss on return.

    Raises:
        RefusedError: The branch has it already.
        UsageError: There is no message, or no branch may have that name.
    """
    check_ref_name(branch)
    if not message.strip():
        raise UsageError("a proposal needs a message that says why (-m)", kind="proposal.message")
    ref, _ = head
    tip, base = read_tip(workspace, branch), None
    if has_commit(tip):
        bases = find_merge_bases(head_of(tip), head, workspace.store, workspace.backend)
        if [one.id for one, _ in bases] == [ref.id]:
            raise RefusedError(
                f"there is nothing to propose: {branch} has commit {ref.id.hex()[:12]} already",
                kind="proposal.landed",
            )
        base = CommitId(bases[0][0].id) if bases else None
    stated = ProposalRecord(
        branch=branch,
        base=base,
        who=who,
        message=message.strip(),
        created_ns=workspace.clock.now_ns(),
    )
    body, locators = workspace.store.load_commit_record(ref)
    target = RefRecord(
        commit_id=CommitId(ref.id), commit_body=body, commit_locators=tuple(locators),
        locator=ref.locator,
    )  # fmt: skip
    for _ in range(_ATTEMPTS):
        name = f"p-{secrets.token_hex(4)}"
        move = RefMove(
            kind=RefKind.PROPOSAL, name=name, expected=None, previous=None, action="propose",
            moved_by=who.author, proposal=stated,
        )  # fmt: skip
        planned = plan_move(workspace, target.commit_id, move)
        log_move(workspace, planned)
        answer = make_move(workspace, planned, target)
        if isinstance(answer, Moved):
            return Proposal(name, stated, answer.record, answer.version)
    raise BusyError("all ids that were drawn for the proposal are taken", kind="proposal.ids")


def find_proposal(workspace: Workspace, proposal_id: str) -> Proposal:
    """Return a proposal.

    Raises:
        NotFoundError: There is none of that id.
    """
    found = workspace.refs.find(RefKind.PROPOSAL, proposal_id)
    if found is not None and found[0].proposal is not None:
        return Proposal(proposal_id, found[0].proposal, *found)
    names = list(workspace.refs.iter_names(RefKind.PROPOSAL))
    near = difflib.get_close_matches(proposal_id, names, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else "workspacefs review --all lists them"
    raise NotFoundError(f"there is no proposal {proposal_id}; {hint}", kind="proposal.absent")


def list_proposals(workspace: Workspace) -> list[Proposal]:
    """Return all proposals, the latest first by the clocks of who made them; a listing, and a read
    of each.
    """
    names = list(workspace.refs.iter_names(RefKind.PROPOSAL))
    found = iter_answers(
        workspace.backend, lambda name: workspace.refs.find(RefKind.PROPOSAL, name), names
    )
    proposals = [
        Proposal(name, record.proposal, record, version)
        for name, value in zip(names, found, strict=True)
        if value is not None
        for record, version in [value]
        if record.proposal is not None
    ]
    return sorted(proposals, key=lambda one: (-one.stated.created_ns, one.id))


def change_proposal(
    workspace: Workspace, proposal: Proposal, action: str, *, by: str, **members: object
) -> Proposal:
    """Have a proposal say something else, if it is as we know it; survives power loss on return.

    Args:
        workspace: Where it is.
        proposal: As we know it.
        action: A word for the operation log.
        by: Who, for that.
        members: Of ProposalRecord, that change.

    Raises:
        MovedError: Somebody else was faster; the message says what they did.
    """
    stated = replace(proposal.stated, **members)  # type: ignore[arg-type]  # members by name
    move = RefMove(
        kind=RefKind.PROPOSAL,
        name=proposal.id,
        expected=proposal.version,
        previous=proposal.record,
        action=action,
        moved_by=by,
        proposal=stated,
    )
    planned = plan_move(workspace, proposal.record.commit_id, move)
    log_move(workspace, planned)
    answer = make_move(workspace, planned, proposal.record)
    if isinstance(answer, Moved):
        return Proposal(proposal.id, stated, answer.record, answer.version)
    raise _overtaken(proposal.id, answer)


def check_open(proposal: Proposal) -> None:
    """Raise MovedError unless nobody has decided about a proposal."""
    if not proposal.stated.is_open:
        raise decided_error(proposal.id, proposal.stated)


def decided_error(proposal_id: str, stated: ProposalRecord) -> MovedError:
    """Return the error that says who decided what."""
    decision = stated.decision
    assert decision is not None
    result = "" if decision.result is None else f" (commit {decision.result.hex()[:12]})"
    reason = f": {decision.reason}" if decision.reason else ""
    return MovedError(
        f"proposal {proposal_id} was {stated.state} by {decision.by} at "
        f"{time_of(decision.decided_ns)}{result}{reason}",
        kind="proposal.decided",
        proposal=proposal_id,
        state=stated.state,
    )


def time_of(time_ns: int) -> str:
    """Return a time as people read it."""
    return f"{datetime.fromtimestamp(time_ns // 1_000_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _overtaken(proposal_id: str, answer: Stale) -> MovedError:
    stated = None if answer.current is None else answer.current.proposal
    if stated is not None and not stated.is_open:
        return decided_error(proposal_id, stated)
    claim = None if stated is None else stated.claim
    who = f"{claim.by} was faster, and is about to {claim.action} it" if claim else "it was changed"
    return MovedError(
        f"proposal {proposal_id}: {who}; look at it again: workspacefs review {proposal_id}",
        kind="proposal.moved",
        proposal=proposal_id,
    )
