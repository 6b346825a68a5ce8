"""`workspacefs reject`: a proposal does not land, and says why."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from workspacefs.cli.context import Context
from workspacefs.cli.proposal_text import (
    add_decision_flags,
    decided_place,
    proposal_document,
)
from workspacefs.cli.provenance import new_provenance
from workspacefs.errors import UsageError
from workspacefs.merge.deciding import turn_down

EXAMPLE = """\
  workspacefs reject p-5f2c1a90 -m "the form loses what was typed\""""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_decision_flags(parser)
    parser.add_argument("-m", "--message", required=True, help="why")


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Reject it; its commit stays where it is."""
    if not options.message.strip():
        raise UsageError("say why (-m): who proposed it reads that", kind="proposal.message")
    workspace, proposal_id = decided_place(options, context)
    decided = turn_down(
        workspace,
        proposal_id,
        "reject",
        by=new_provenance(options, context),
        reason=options.message,
        takes_over=options.take_over,
    )
    context.out.line(f"proposal {proposal_id} is rejected")
    return proposal_document(decided.proposal)
