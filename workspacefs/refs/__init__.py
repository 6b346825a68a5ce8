"""Branches, tags and sessions: the only keys that change, moved by compare-and-swap alone."""

from workspacefs.refs.policy import SessionPolicy
from workspacefs.refs.proposal import Claim, Decision, ProposalRecord
from workspacefs.refs.record import RefKind, RefRecord
from workspacefs.refs.session import Lease, SavedWork, SessionRecord, StoredCheckpoint
from workspacefs.refs.swap import Moved, Refs, Stale

__all__ = [
    "Claim", "Decision", "Lease", "Moved", "ProposalRecord", "RefKind", "RefRecord", "Refs",
    "SavedWork", "SessionPolicy",
    "SessionRecord",
    "StoredCheckpoint", "Stale",
]  # fmt: skip
