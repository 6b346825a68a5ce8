"""Conflicts that were found, and where they stand in the result once that is known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from workspacefs.ids import FileId
from workspacefs.merge.conflicts import Conflict, ConflictKind, Version
from workspacefs.merge.identity import Identities, Identity
from workspacefs.merge.layout import Layout
from workspacefs.merge.place import Origin, Place


class Report(NamedTuple):
    """A conflict whose path in the result is not known yet."""

    kind: ConflictKind
    place: Place | None
    """In the result; None: wherever the one that it is about stands."""
    base: Version | None
    ours: Version | None
    theirs: Version | None
    keys: tuple[FileId, ...]
    """Identities that it is about."""


def report_identity(kind: ConflictKind, identity: Identity, identities: Identities) -> Report:
    """Return a conflict about one identity."""
    base, ours, theirs = (identities.find_version(identity, origin) for origin in Origin)
    return Report(kind, None, base, ours, theirs, (identity.key,))


def list_conflicts(reports: Iterable[Report], layout: Layout) -> tuple[Conflict, ...]:
    """Return what was found, in order of path."""
    conflicts = [
        Conflict(
            report.kind,
            _path_of(report, layout),
            report.base,
            report.ours,
            report.theirs,
            _find_beside(report, layout),
        )
        for report in reports
    ]
    return tuple(sorted(conflicts, key=_order_of))


def _order_of(conflict: Conflict) -> tuple[bytes, str, list[bytes]]:
    versions = (conflict.base, conflict.ours, conflict.theirs)
    paths = [b"" if version is None else version.path for version in versions]
    return conflict.path, conflict.kind.value, paths


def _path_of(report: Report, layout: Layout) -> bytes:
    if report.place is not None:
        return layout.path_of(report.place)
    # What is in conflict by itself never becomes one with another, so it stands somewhere: the
    # root alone does not.
    places = layout.places.get(report.keys[0], ())
    return min((layout.path_of(place) for place in places), default=b"")


def _find_beside(report: Report, layout: Layout) -> bytes | None:
    """Return the path of what stepped aside in a conflict about one name."""
    for key in report.keys:
        if report.place is not None and (key, report.place) in layout.aside:
            return layout.path_of(layout.aside[key, report.place])
    return None
