"""`workspacefs accept`: a proposal lands on its branch, and the branch says who reviewed it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from workspacefs.cli.context import Context, count_text, short_id
from workspacefs.cli.landing_text import exit_code_of, tell_conflicts
from workspacefs.cli.main import EXIT_MEMBER
from workspacefs.cli.proposal_text import (
    add_decision_flags,
    decided_place,
    proposal_document,
)
from workspacefs.cli.provenance import new_provenance
from workspacefs.merge.deciding import Decided, accept
from workspacefs.merge.documents import conflict_document
from workspacefs.merge.landing import Refusal
from workspacefs.merge.selection import check_paths
from workspacefs.workspace.proposals import find_proposal
from workspacefs.workspace.settings import check_required, load_settings

EXAMPLE = """\
  workspacefs accept p-5f2c1a90 -m "tried it, works"
  workspacefs accept s3://bucket/shop p-5f2c1a90 --paths src/login docs/login.md"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_decision_flags(parser)
    parser.add_argument("-m", "--message", default="", help="why, for the commit")
    parser.add_argument(
        "--paths",
        metavar="PATH",
        nargs="+",
        default=[],
        help="land what was changed at and below these paths alone; the proposal is decided then",
    )


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Land it; with conflicts nothing lands."""
    workspace, proposal_id = decided_place(options, context)
    reviewer = new_provenance(options, context)
    check_required(load_settings(workspace)[0], reviewer, None)
    outcome = accept(
        workspace,
        proposal_id,
        reviewer=reviewer,
        message=options.message,
        paths=check_paths(options.paths),
        takes_over=options.take_over,
    )
    out = context.out
    if isinstance(outcome, Refusal):
        proposal = find_proposal(workspace, proposal_id)
        conflicts = [conflict_document(one) for one in outcome.conflicts]
        tell_conflicts(conflicts, proposal_id, proposal.stated.branch, out)
        out.note(
            f"nothing landed: {count_text(len(conflicts), 'conflict')} with "
            f"{proposal.stated.branch} (at {short_id(outcome.tip.id.hex())}). The proposal waits "
            "on; reject it, or have its session brought to what both need, and proposed again"
        )
        document: dict[str, object] = {
            **proposal_document(proposal), "landed_on": None, "is_moved": False,
            "branch_commit": outcome.tip.id.hex(), "conflicts": conflicts,
        }  # fmt: skip
        return {**document, EXIT_MEMBER: exit_code_of(document)}
    return _landed(outcome, context)


def _landed(decided: Decided, context: Context) -> Mapping[str, object]:
    proposal, landed = decided.proposal, decided.landed
    assert landed is not None
    branch, result = proposal.stated.branch, landed.ref.id.hex()
    if landed.is_moved:
        context.out.line(f"accepted: {branch} is at {short_id(result)}")
    else:
        context.out.line(f"{branch} had it already, by {short_id(result)}; noted as accepted")
    return {
        **proposal_document(proposal), "landed_on": branch, "is_moved": landed.is_moved,
        "branch_commit": result, "conflicts": [],
    }  # fmt: skip
