"""Which directory stands in which, when both sides moved directories."""

from __future__ import annotations

from workspacefs.ids import FileId
from workspacefs.merge.identity import Identities, Identity
from workspacefs.merge.place import Origin, Place, Seen


def settle_directories(
    identities: Identities, prefer: Origin
) -> tuple[dict[FileId, Place], set[FileId]]:
    """Return the place of each directory, and those that both sides moved into each other.

    Following the places always leads to the root. Where the sides disagree, `prefer` has its way;
    so it has where their moves together would make a ring of directories.
    """
    places: dict[FileId, Place] = {}
    for identity in identities:
        if identity.is_dir and identity.key != identities.root:
            place = _choose(identity, prefer, identities)
            if place is not None:
                places[identity.key] = place
    crossed: set[FileId] = set()
    while rings := _find_rings(places):
        for key in rings:
            ours, theirs = _place_of(identities[key].ours), _place_of(identities[key].theirs)
            # One at least of each ring is such a directory, and is not yet where `prefer` has it:
            # neither side alone has a ring.
            if ours is not None and theirs is not None and ours != theirs:
                crossed.add(key)
                places[key] = ours if prefer is Origin.OURS else theirs
    return places, crossed


def find_agreed(identities: Identities, ours: Place, theirs: Place) -> Place | None:
    """Return the place of what has one path on both sides, though its directory is not the same.

    So it is when one side was merged from the other, and two directories became one in that. The
    directory that both sides have goes on; None: neither does, or both.
    """
    shared = [
        place
        for place in (ours, theirs)
        if None not in identities[place.directory].seen[Origin.OURS :]
    ]
    paths = identities.path_of(Origin.OURS, ours), identities.path_of(Origin.THEIRS, theirs)
    return shared[0] if len(shared) == 1 and paths[0] == paths[1] else None


def _choose(identity: Identity, prefer: Origin, identities: Identities) -> Place | None:
    base, ours, theirs = (_place_of(seen) for seen in identity.seen)
    if ours is None or theirs is None:
        return theirs if ours is None else ours
    if ours == theirs or theirs == base:
        return ours
    if ours == base:
        return theirs
    agreed = find_agreed(identities, ours, theirs)
    if agreed is not None:
        return agreed
    return ours if prefer is Origin.OURS else theirs


def _place_of(seen: Seen | None) -> Place | None:
    return next(iter(seen.places)) if seen is not None else None


def _find_rings(places: dict[FileId, Place]) -> list[FileId]:
    """Return all directories that lie below themselves."""
    rings: list[FileId] = []
    done: set[FileId] = set()
    for start in places:
        way: dict[FileId, int] = {}
        key = start
        while key in places and key not in done and key not in way:
            way[key] = len(way)
            key = places[key].directory
        if key in way:
            rings += list(way)[way[key] :]
        done.update(way)
    return rings
