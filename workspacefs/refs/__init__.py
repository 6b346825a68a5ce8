"""Branches, tags and sessions: the only keys that change, moved by compare-and-swap alone."""

from workspacefs.refs.policy import SessionPolicy
from workspacefs.refs.record import (
    Lease,
    RefKind,
    RefRecord,
    SavedWork,
    SessionRecord,
    StoredCheckpoint,
)
from workspacefs.refs.swap import Moved, Refs, Stale

__all__ = [
    "Lease", "Moved", "RefKind", "RefRecord", "Refs", "SavedWork", "SessionPolicy",
    "SessionRecord",
    "StoredCheckpoint", "Stale",
]  # fmt: skip
