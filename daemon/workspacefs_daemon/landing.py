"""Bringing a session's commits to a branch, alone or joined with what that has moved to."""

from __future__ import annotations

import trio

from workspacefs.merge.documents import conflict_document
from workspacefs.merge.landing import LandingMerge, Refusal
from workspacefs.objects.commits import Provenance
from workspacefs.statedir import StateDir
from workspacefs.workspace.commit import Committed
from workspacefs.workspace.land import Landed, land_commit
from workspacefs.workspace.turns import turn
from workspacefs_daemon.identity import owner_name
from workspacefs_daemon.mounted import Mounted


async def land(
    mounted: Mounted, into: str, provenance: Provenance, committed: Committed | None
) -> Landed | Refusal | None:
    """Land a session's head on a branch; None: the session has no commits. The caller holds
    `committing`.

    Args:
        mounted: Whose head it is.
        into: The branch.
        provenance: Who lands.
        committed: What was just committed, if anything was.
    """
    session = mounted.session
    if session is None or session.head is None:
        return None
    joining = LandingMerge(mounted.workspace, name=mounted.name, provenance=provenance)

    def run() -> Landed | None:
        with turn(StateDir(mounted.spec.state_dir), mounted.workspace.id, into):
            return land_commit(
                mounted.workspace,
                session,
                into,
                moved_by=owner_name(),
                landing=committed.landing if committed is not None else None,
                built_on=mounted.own_commits,
                join=joining.join,
            )

    with trio.CancelScope(shield=True):
        landed = await mounted.blocking.job(run)
    assert landed is not None or joining.refusal is not None
    return landed or joining.refusal


def landing_document(into: str, landed: Landed | Refusal | None) -> dict[str, object]:
    """Return what an answer says of a landing; see docs/protocol.md."""
    if isinstance(landed, Refusal):
        return {
            "landed_on": None,
            "branch_commit": landed.tip.id.hex(),
            "bases": [base.id.hex() for base in landed.bases],
            "conflicts": [conflict_document(conflict) for conflict in landed.conflicts],
        }
    return {
        "landed_on": None if landed is None else into,
        "branch_commit": None if landed is None else landed.ref.id.hex(),
        "is_merge": landed is not None and len(landed.commit.parents) > 1,
        "conflicts": [],
    }
