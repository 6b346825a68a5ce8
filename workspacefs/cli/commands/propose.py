"""`workspacefs propose`: a commit waits for a reviewer, who lands it or does not."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping

from workspacefs.cli.context import Context, short_id
from workspacefs.cli.parser import add_provenance_flags, add_store_flags, given_provenance
from workspacefs.client.locate import find_session_of
from workspacefs.errors import UsageError

EXAMPLE = """\
  workspacefs propose --into main -m "fix the login form"       # the commits of this session
  workspacefs propose s3://bucket/shop agent-7 --into main -m "as agent-7 left it"
  workspacefs propose --withdraw p-5f2c1a90 -m "was wrong"
  workspacefs review                                            # what waits"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "where",
        metavar="PATH|URL",
        nargs="?",
        help="a mount, whose session is meant (default: here); or a store",
    )
    parser.add_argument("rev", metavar="REV", nargs="?", help="what is proposed (default: main)")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--into", metavar="BRANCH", help="where it shall land")
    what.add_argument("--withdraw", metavar="ID", help="take a proposal back instead")
    parser.add_argument("-m", "--message", required=True, help="why, in a line or more")
    add_provenance_flags(parser, meta=False)
    add_store_flags(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Propose, or withdraw."""
    if not options.message.strip():
        raise UsageError("say why (-m)", kind="proposal.message")
    if options.withdraw:
        return _withdraw(options, context)
    session = None
    if options.rev is None:
        session = find_session_of(options.where or ".", context.state)
    if session is None or session.session.startswith("@"):
        answer = _propose_revision(options, context)
    else:
        args = {
            "into": options.into,
            "message": options.message,
            **given_provenance(options, context.environ),
        }
        with session.connect() as connection:
            answer = connection.call("propose", args)
    context.out.line(
        f"proposal {answer['proposal']}: commit {short_id(answer['commit'])} into {options.into}"
    )
    if answer.get("has_changes"):
        context.out.note(
            "what is not committed yet is no part of it; commit, and propose that commit"
        )
    return answer


def _propose_revision(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    # By name: they load the whole library, and asking a session needs none of it.
    text = importlib.import_module("workspacefs.cli.proposal_text")
    proposals = importlib.import_module("workspacefs.workspace.proposals")
    revision = importlib.import_module("workspacefs.cli.revision")
    place = revision.open_place(options.where, options.rev, options, context)
    proposal = proposals.make_proposal(
        place.workspace,
        place.load(),
        options.into,
        message=options.message,
        who=_who(options, context),
    )
    document: Mapping[str, object] = text.proposal_document(proposal)
    return {**document, "has_changes": False}


def _withdraw(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    deciding = importlib.import_module("workspacefs.merge.deciding")
    text = importlib.import_module("workspacefs.cli.proposal_text")
    revision = importlib.import_module("workspacefs.cli.revision")
    decided = deciding.turn_down(
        revision.open_place(options.where, options.rev, options, context).workspace,
        options.withdraw,
        "withdraw",
        by=_who(options, context),
        reason=options.message,
    )
    context.out.line(f"proposal {options.withdraw} is withdrawn")
    document: Mapping[str, object] = text.proposal_document(decided.proposal)
    return document


def _who(options: argparse.Namespace, context: Context) -> object:
    return importlib.import_module("workspacefs.cli.provenance").new_provenance(options, context)
