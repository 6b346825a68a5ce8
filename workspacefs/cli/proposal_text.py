"""Proposals as a person and as a program read them, and the words that name one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence

from workspacefs.cli.commit_text import time_text
from workspacefs.cli.context import Context, short_id
from workspacefs.cli.parser import add_provenance_flags, add_store_flags
from workspacefs.cli.revision import open_place
from workspacefs.errors import UsageError
from workspacefs.refs.proposal import Decision, ProposalRecord
from workspacefs.workspace.proposals import Proposal, is_proposal_id
from workspacefs.workspace.workspace import Workspace


def add_decision_flags(parser: argparse.ArgumentParser) -> None:
    """Add what names a proposal, and what every decision about one takes."""
    parser.add_argument(
        "words",
        metavar="[URL|PATH] ID",
        nargs="+",
        help="the workspace (default: here), and the proposal: p- and 8 hex digits",
    )
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="go on though another reviewer has begun to decide and was cut off",
    )
    add_provenance_flags(parser, meta=False)
    add_store_flags(parser)


def workspace_and_id(
    words: Sequence[str], options: argparse.Namespace, context: Context
) -> tuple[Workspace, str | None]:
    """Return what [URL|PATH] [ID] names; the id may be missing."""
    ids = [word for word in words if is_proposal_id(word)]
    places = [word for word in words if not is_proposal_id(word)]
    if len(ids) > 1 or len(places) > 1:
        raise UsageError(
            f"{' '.join(words)}: give one workspace and one proposal (p- and 8 hex digits)",
            kind="usage.arguments",
        )
    place = open_place(places[0] if places else None, None, options, context)
    return place.workspace, ids[0] if ids else None


def decided_place(options: argparse.Namespace, context: Context) -> tuple[Workspace, str]:
    """Return the workspace and the proposal that the words of a decision name."""
    workspace, proposal_id = workspace_and_id(options.words, options, context)
    if proposal_id is None:
        raise UsageError(
            f"{' '.join(options.words)} names no proposal: p- and 8 hex digits; workspacefs "
            "review lists them",
            kind="usage.arguments",
        )
    return workspace, proposal_id


def proposal_document(proposal: Proposal) -> dict[str, object]:
    """Return what --json says of a proposal."""
    stated, ref = proposal.stated, proposal.record.commit_id
    who, claim = stated.who, stated.claim
    return {
        "proposal": proposal.id,
        "state": stated.state,
        "commit": None if ref is None else ref.hex(),
        "branch": stated.branch,
        "base": None if stated.base is None else stated.base.hex(),
        "message": stated.message,
        "time": time_text(stated.created_ns),
        "time_ns": stated.created_ns,
        "author": who.author,
        "agent": who.agent,
        "session": who.session,
        "run": who.run,
        "claim": None if claim is None else {"action": claim.action, "by": claim.by},
        "decision": None if stated.decision is None else _decision_document(stated.decision),
    }


def iter_proposal_lines(proposal: Proposal) -> Iterator[str]:
    """Yield the lines that tell a person of a proposal."""
    stated = proposal.stated
    commit = proposal.record.commit_id
    yield f"{proposal.id}  {_state(stated)}"
    yield f"  commit {short_id(commit.hex() if commit else None)} into {stated.branch}"
    agent = f", agent {stated.who.agent}" if stated.who.agent else ""
    session = f", session {stated.who.session}" if stated.who.session else ""
    yield f"  by {stated.who.author or 'someone'}{agent}{session}, {time_text(stated.created_ns)}"
    for line in stated.message.splitlines():
        yield f"    {line}"


def _state(stated: ProposalRecord) -> str:
    decision = stated.decision
    if decision is None:
        claim = stated.claim
        return stated.state + (f", {claim.by} has begun to {claim.action} it" if claim else "")
    text = f"{stated.state} by {decision.by or 'someone'}, {time_text(decision.decided_ns)}"
    if decision.result is not None:
        text += f", as {short_id(decision.result.hex())}"
    if decision.paths:
        text += f", of it only {', '.join(decision.paths)}"
    return text + (f": {decision.reason}" if decision.reason else "")


def _decision_document(decision: Decision) -> Mapping[str, object]:
    return {
        "by": decision.by,
        "agent": decision.agent,
        "time": time_text(decision.decided_ns),
        "time_ns": decision.decided_ns,
        "reason": decision.reason,
        "result": None if decision.result is None else decision.result.hex(),
        "paths": list(decision.paths),
    }
