"""Bringing together what sessions and branches did, as the control socket asks for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

import trio

from workspacefs.errors import RefusedError, UsageError
from workspacefs.merge.landing import Refusal
from workspacefs.names import check_ref_name
from workspacefs_daemon.landing import land, landing_document
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.publishing import check_is_session, given_provenance, text_in

log = logging.getLogger(__name__)


class Merging:
    """Operations of the control socket; see docs/protocol.md for their arguments and answers."""

    def __init__(self, mounted: Mounted) -> None:
        self._mounted = mounted

    async def land(self, args: Mapping[str, object]) -> dict[str, object]:
        """Land the session's commits on a branch; what is not committed stays as it is."""
        mounted = self._mounted
        check_is_session(mounted)
        into = text_in(args, "into")
        if not into:
            raise UsageError("say which branch to land on", kind="args.invalid")
        check_ref_name(into)
        provenance = given_provenance(mounted, args)
        began = time.monotonic()
        await mounted.demands.check(provenance, None)
        async with mounted.committing:
            with trio.CancelScope(shield=True), mounted.noting_loss():
                await mounted.settle(moved_by=provenance.author)
            landed = await land(mounted, into, provenance, None)
        if landed is None:
            raise RefusedError(
                f"session {mounted.name} has no commits yet, so there is nothing to land; "
                f"workspacefs commit -m WHY --into {into} makes one and lands it",
                kind="session.no_commits",
            )
        is_refused = isinstance(landed, Refusal)
        log.info(
            "landing.refused" if is_refused else "landing.done",
            extra={
                "session": mounted.name,
                "branch": into,
                "conflicts": len(landed.conflicts) if isinstance(landed, Refusal) else 0,
                "duration_ms": round((time.monotonic() - began) * 1000, 3),
            },
        )
        return {
            "commit": None if mounted.base is None else mounted.base.id.hex(),
            "has_changes": mounted.chain.has_changes(),
            "is_moved": landed.is_moved if not isinstance(landed, Refusal) else False,
            **landing_document(into, landed),
        }
