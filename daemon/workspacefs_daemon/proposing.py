"""Proposing what a session has committed, as the control socket asks for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import trio

from workspacefs.errors import RefusedError
from workspacefs.workspace.proposals import make_proposal
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.publishing import check_is_session, given_provenance, text_in

log = logging.getLogger(__name__)


class Proposing:
    """The operation `propose`; see docs/protocol.md for its arguments and answer."""

    def __init__(self, mounted: Mounted) -> None:
        self._mounted = mounted

    async def propose(self, args: Mapping[str, object]) -> dict[str, object]:
        """Propose the session's head for a branch; what is not committed stays as it is."""
        mounted = self._mounted
        check_is_session(mounted)
        who, into = given_provenance(mounted, args), text_in(args, "into")
        message = text_in(args, "message")
        async with mounted.committing:
            with trio.CancelScope(shield=True), mounted.noting_loss():
                await mounted.settle(moved_by=who.author)
            session = mounted.session
            head = None if session is None else session.head
            if session is None or head is None:
                raise RefusedError(
                    f"session {mounted.name} has no commits yet, so there is nothing to propose; "
                    "workspacefs commit -m WHY makes one",
                    kind="session.no_commits",
                )
            commit = session.record.commit()
            with trio.CancelScope(shield=True):
                proposal = await mounted.blocking.job(
                    lambda: make_proposal(
                        mounted.workspace, (head, commit), into, message=message, who=who
                    )
                )
        log.info(
            "proposal.made",
            extra={"session": mounted.name, "proposal": proposal.id, "branch": into},
        )
        base = proposal.stated.base
        return {
            "proposal": proposal.id,
            "state": proposal.stated.state,
            "commit": head.id.hex(),
            "branch": into,
            "base": None if base is None else base.hex(),
            "message": proposal.stated.message,
            "session": mounted.name,
            "has_changes": mounted.chain.has_changes(),
        }
