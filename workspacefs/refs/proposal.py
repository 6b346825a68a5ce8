"""What a proposal's ref says beyond the commit that is proposed: whereto, why, and what came of it.

As a value and as a member of the ref's JSON; see docs/format.md.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from workspacefs.ids import CommitId
from workspacefs.objects.commits import Provenance
from workspacefs.refs.members import (
    Json,
    commit_id_in,
    int64_of,
    name_of,
    require,
    text_of,
)

PROPOSAL_FORMAT: Final = 4
"""The first format of refs that has proposals."""
OPEN: Final = "open"
ACCEPTED: Final = "accepted"
REJECTED: Final = "rejected"
WITHDRAWN: Final = "withdrawn"
_STATES: Final = (OPEN, ACCEPTED, REJECTED, WITHDRAWN)
_WHO: Final = ("author", "agent", "session", "run", "tool_call", "model", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Somebody is about to decide. Does not run out; whoever takes it over keeps the other from
    landing.
    """

    action: str
    """What is being done: "accept", "reject" or "withdraw"."""
    by: str
    since_ns: int
    """Wall time there, for people."""
    tip: CommitId | None
    """What the branch was at: what lands comes after it."""
    paths: tuple[str, ...] = ()
    """What alone shall land, as in Decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What came of a proposal."""

    by: str
    agent: str
    decided_ns: int
    """Wall time there, for people."""
    reason: str = ""
    result: CommitId | None = None
    """Of an accepted one: the commit of the branch that has it."""
    paths: tuple[str, ...] = ()
    """What alone landed, as text of os.fsdecode; empty: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalRecord:
    """A commit that waits for a reviewer to land it, or did."""

    branch: str
    """Where it shall land."""
    base: CommitId | None
    """Where it parted from the branch, when it was proposed; None: nowhere."""
    who: Provenance
    """Who proposes."""
    message: str
    """Why."""
    created_ns: int
    """Wall time there, for people."""
    state: str = OPEN
    claim: Claim | None = None
    """Of an open one: None, unless somebody is just deciding."""
    decision: Decision | None = None
    """None: it is open."""

    @property
    def is_open(self) -> bool:
        """Whether nobody has decided."""
        return self.state == OPEN


def proposal_json(proposal: ProposalRecord) -> Json:
    """Return what a ref says of its proposal."""
    claim, decision = proposal.claim, proposal.decision
    document: Json = {
        "branch": proposal.branch,
        "base": _hex(proposal.base),
        "who": asdict(proposal.who),
        "message": proposal.message,
        "created_ns": proposal.created_ns,
        "state": proposal.state,
    }
    if claim is not None:
        document["claim"] = {
            "action": claim.action,
            "by": claim.by,
            "since_ns": claim.since_ns,
            "tip": _hex(claim.tip),
            "paths": list(claim.paths),
        }
    if decision is not None:
        document["decision"] = {
            "by": decision.by,
            "agent": decision.agent,
            "decided_ns": decision.decided_ns,
            "reason": decision.reason,
            "result": _hex(decision.result),
            "paths": list(decision.paths),
        }
    return document


def proposal_of(value: object) -> ProposalRecord:
    """Return the proposal that a ref says; `value` is used up.

    Raises:
        KeyError, TypeError, ValueError: It is malformed.
    """
    value = _object(value)
    who = _object(value.pop("who"))
    proposal = ProposalRecord(
        branch=name_of(value.pop("branch")),
        base=commit_id_in(value.pop("base")),
        who=Provenance(**{name: text_of(who.pop(name)) for name in _WHO}),
        message=text_of(value.pop("message")),
        created_ns=int64_of(value.pop("created_ns")),
        state=text_of(value.pop("state")),
        claim=_claim_of(value.pop("claim")) if "claim" in value else None,
        decision=_decision_of(value.pop("decision")) if "decision" in value else None,
    )
    require(not value and not who and proposal.state in _STATES)
    require(proposal.is_open == (proposal.decision is None))
    require(proposal.is_open or proposal.claim is None)
    return proposal


def _claim_of(value: object) -> Claim:
    value = _object(value)
    claim = Claim(
        action=name_of(value.pop("action")),
        by=text_of(value.pop("by")),
        since_ns=int64_of(value.pop("since_ns")),
        tip=commit_id_in(value.pop("tip")),
        paths=_texts_of(value.pop("paths")),
    )
    require(not value)
    return claim


def _decision_of(value: object) -> Decision:
    value = _object(value)
    decision = Decision(
        by=text_of(value.pop("by")),
        agent=text_of(value.pop("agent")),
        decided_ns=int64_of(value.pop("decided_ns")),
        reason=text_of(value.pop("reason")),
        result=commit_id_in(value.pop("result")),
        paths=_texts_of(value.pop("paths")),
    )
    require(not value)
    return decision


def _texts_of(value: object) -> tuple[str, ...]:
    require(isinstance(value, list))
    assert isinstance(value, list)
    return tuple(map(text_of, value))


def _object(value: object) -> Json:
    require(isinstance(value, dict))
    assert isinstance(value, dict)
    return value


def _hex(commit_id: CommitId | None) -> str | None:
    return None if commit_id is None else commit_id.hex()
