"""Branches, tags and sessions: the only keys that change, moved by compare-and-swap alone."""

from workspacefs.refs.record import RefKind, RefRecord, SessionRecord
from workspacefs.refs.swap import Moved, Refs, Stale

__all__ = ["Moved", "RefKind", "RefRecord", "Refs", "SessionRecord", "Stale"]
