"""Counting what a merge changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from workspacefs.ids import FileId
from workspacefs.merge.identity import Identities, Identity, find_identities
from workspacefs.merge.place import Place
from workspacefs.objects.commits import ChangeCounts
from workspacefs.objects.entry import Entry
from workspacefs.trees.nodes import NodeSource


def count_changes(
    identities: Identities,
    places: Mapping[FileId, Sequence[Place]],
    row_of: Callable[[Identity], Entry],
) -> ChangeCounts:
    """Return how a result differs from ours, in names.

    A directory that moved counts as one name gone and one come, whatever is in it.

    Args:
        identities: Whatever may differ.
        places: Where they stand in the result.
        row_of: Gives the row of one that stands there, under any name.
    """
    added = modified = removed = 0
    for identity in identities:
        ours = identity.ours
        before = ours.places if ours is not None else set()
        after = set(places.get(identity.key, ()))
        added += len(after - before)
        removed += len(before - after)
        stays = after & before
        if ours is not None and not identity.is_dir and stays:
            is_same = row_of(identity)._replace(name=b"") == ours.entry._replace(name=b"")
            modified += 0 if is_same else len(stays)
    return ChangeCounts(added=added, modified=modified, removed=removed)


def count_forward(base: Entry, theirs: Entry, source: NodeSource) -> ChangeCounts:
    """Return how a side differs from the base, which is also ours."""
    identities = find_identities(base, base, theirs, source)
    places = {
        identity.key: list(identity.theirs.places)
        for identity in identities
        if identity.theirs is not None
    }

    def row_of(identity: Identity) -> Entry:
        assert identity.theirs is not None
        return identity.theirs.entry

    return count_changes(identities, places, row_of)
