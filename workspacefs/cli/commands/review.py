"""`workspacefs review`: which proposals wait, and what one would land."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from workspacefs.cli.context import Context, count_text, short_id
from workspacefs.cli.landing_text import tell_conflicts
from workspacefs.cli.parser import add_store_flags
from workspacefs.cli.proposal_text import (
    iter_proposal_lines,
    proposal_document,
    workspace_and_id,
)
from workspacefs.errors import UsageError
from workspacefs.merge.documents import conflict_document
from workspacefs.merge.reviewing import Review, review
from workspacefs.workspace.difftext import iter_patch, iter_stat
from workspacefs.workspace.proposals import Proposal, find_proposal, list_proposals
from workspacefs.workspace.workspace import Workspace

EXAMPLE = """\
  workspacefs review                         # what waits, of the workspace that one is in
  workspacefs review ./store --all
  workspacefs review p-5f2c1a90              # what it would land, as a patch, and conflicts
  workspacefs accept p-5f2c1a90 && workspacefs reject p-0c9d77e1 -m "no tests\""""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "words",
        metavar="[URL|PATH] [ID]",
        nargs="*",
        help="the workspace (default: here), and a proposal (default: list them)",
    )
    parser.add_argument("--all", action="store_true", help="list also what was decided")
    parser.add_argument("--stat", action="store_true", help="lines added and removed, no patch")
    add_store_flags(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """List proposals, or show one."""
    workspace, proposal_id = workspace_and_id(options.words, options, context)
    if proposal_id is None:
        return _list(workspace, options, context)
    if options.all:
        raise UsageError("--all lists proposals; give no ID with it", kind="usage.arguments")
    proposal = find_proposal(workspace, proposal_id)
    found = review(workspace, proposal)
    patch = "".join((iter_stat if options.stat else iter_patch)(found.changes, found.contents))
    _tell(proposal, found, patch, context)
    landed = found.landed
    return {
        **proposal_document(proposal),
        "url": workspace.url,
        "branch_commit": None if found.tip is None else found.tip.hex(),
        "bases": [base.id.hex() for base in found.bases],
        "landed": None if landed is None else landed[0].id.hex(),
        "conflicts": [conflict_document(one) for one in found.conflicts],
        "stat" if options.stat else "patch": patch,
    }


def _list(
    workspace: Workspace, options: argparse.Namespace, context: Context
) -> Mapping[str, object]:
    proposals = [one for one in list_proposals(workspace) if options.all or one.stated.is_open]
    for number, proposal in enumerate(proposals):
        if number:
            context.out.line()
        for line in iter_proposal_lines(proposal):
            context.out.line(line)
    if not proposals:
        context.out.line("no proposals yet" if options.all else "no proposal waits")
    return {"url": workspace.url, "proposals": [proposal_document(one) for one in proposals]}


def _tell(proposal: Proposal, found: Review, patch: str, context: Context) -> None:
    out, branch = context.out, proposal.stated.branch
    for line in iter_proposal_lines(proposal):
        out.line(line)
    out.line()
    if patch:
        out.line(patch.rstrip("\n"))
        out.line()
    if found.landed is not None:
        out.line(
            f"accepted: {branch} has it, by commit {short_id(found.landed[0].id.hex())}; "
            f"workspacefs accept {proposal.id} notes that"
        )
    elif not proposal.stated.is_open:
        return
    elif found.conflicts:
        tell_conflicts(
            [conflict_document(one) for one in found.conflicts], proposal.id, branch, out
        )
        out.line(
            f"{count_text(len(found.conflicts), 'conflict')} with {branch} as it is now (at "
            f"{short_id(found.tip.hex() if found.tip else None)}): it cannot land like this"
        )
    else:
        out.line(f"no conflict with {branch} as it is now; workspacefs accept {proposal.id}")
