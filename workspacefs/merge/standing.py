"""What exists in the result of a merge, and where: three-way merge of places, by identity.

What is decided here is the same in both directions of a merge, but for where things stand that the
sides disagree on: there ours has its way, and both places count as claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from workspacefs.ids import FileId
from workspacefs.merge.conflicts import ConflictKind
from workspacefs.merge.directories import find_agreed, settle_directories
from workspacefs.merge.identity import Identities, Identity
from workspacefs.merge.place import SIDES, Origin, Place
from workspacefs.merge.rows import is_same_state

_REMOVALS: Final = (ConflictKind.MODIFY_DELETE, ConflictKind.RENAME_DELETE)


@dataclass(slots=True)
class Standing:
    """Of one file or directory of the result."""

    places: set[Place]
    """Where it stands, unless a name is taken."""
    claims: set[Place]
    """These, and places that only the other side of a conflict has it at."""
    conflict: ConflictKind | None = None
    """About where it stands, or whether it exists at all."""
    removed_by: Origin | None = None
    """The side that removed it."""
    is_kept: bool = False
    """Whether it exists only because a directory above it does, whose removal is in conflict."""

    @property
    def is_contested(self) -> bool:
        """Whether the sides disagree on where it stands or whether it exists."""
        return self.conflict is not None or self.is_kept


def find_standings(identities: Identities) -> dict[FileId, Standing]:
    """Return what stands where; what is not there is removed. The root stands nowhere."""
    return _Standings(identities).run()


class _Standings:
    def __init__(self, identities: Identities) -> None:
        self._identities = identities
        self._directories, crossed = settle_directories(identities, Origin.OURS)
        # The merge in the other direction must find the same conflicts.
        self._crossed = crossed | settle_directories(identities, Origin.THEIRS)[1]
        self._standings: dict[FileId, Standing] = {}

    def run(self) -> dict[FileId, Standing]:
        for identity in self._identities:
            standing = self._stand(identity)
            if standing is not None:
                self._standings[identity.key] = standing
        for side in SIDES:
            self._keep_below(side)
        self._keep_above()
        return self._standings

    def _stand(self, identity: Identity) -> Standing | None:
        """Return where it stands by its own, or None: whoever has it has not changed it."""
        base, ours, theirs = identity.seen
        if ours is not None and theirs is not None:
            if identity.is_dir:
                return self._stand_directory(identity)
            places, is_conflict = self._merge_places(
                base.places if base is not None else set(), ours.places, theirs.places
            )
            claims = ours.places | theirs.places if is_conflict else places
            kind = ConflictKind.RENAME_RENAME if is_conflict else None
            return Standing(places, claims, kind)
        if base is not None:
            return _stand_removed(identity)
        only = ours or theirs
        return None if only is None else Standing(set(only.places), set(only.places))

    def _stand_directory(self, identity: Identity) -> Standing:
        base, ours, theirs = identity.seen
        assert ours is not None
        assert theirs is not None
        if identity.key == self._identities.root:
            return Standing(set(), set())
        places = {self._directories[identity.key]}
        is_conflict = identity.key in self._crossed or (
            ours.places != theirs.places
            and (base is None or base.places not in (ours.places, theirs.places))
            and find_agreed(self._identities, *ours.places, *theirs.places) is None
        )
        if is_conflict:
            return Standing(places, ours.places | theirs.places, ConflictKind.RENAME_RENAME)
        return Standing(places, places)

    def _merge_places(
        self, base: set[Place], ours: set[Place], theirs: set[Place]
    ) -> tuple[set[Place], bool]:
        """Return the names that a file has after both sides' changes, and whether they conflict.

        They do if each moved the only name somewhere else, or if each removed the other's last one.
        """
        if ours == theirs:
            return set(ours), False
        is_one_name = len(ours) == len(theirs) == 1 and len(base) <= 1
        if is_one_name and base not in (ours, theirs):
            agreed = find_agreed(self._identities, *ours, *theirs)
            return (set(ours), True) if agreed is None else ({agreed}, False)
        merged = (ours - base) | (theirs - base) | (base & ours & theirs)
        return (merged, False) if merged else (set(ours), True)

    def _keep_below(self, remover: Origin) -> None:
        """Keep what a directory holds that one side removed, if that is in conflict.

        The side that has it has it whole: a directory that was moved shall not arrive empty.
        """
        decided: dict[FileId, bool] = {}
        for identity in self._identities:
            seen = identity.seen[remover.other]
            if seen is None or identity.key in self._standings or identity.base is None:
                continue
            kept = {place for place in seen.places if self._is_whole(place, remover, decided)}
            if kept:
                self._standings[identity.key] = Standing(
                    kept, set(kept), removed_by=remover, is_kept=True
                )

    def _is_whole(self, place: Place, remover: Origin, decided: dict[FileId, bool]) -> bool:
        """Tell whether the directory of a place is kept with all that is in it."""
        way: list[FileId] = []
        key = place.directory
        answer: bool | None = None
        while answer is None:
            standing = self._standings.get(key)
            if key in decided:
                answer = decided[key]
            elif standing is not None:
                answer = standing.removed_by is remover and (
                    standing.is_kept or standing.conflict in _REMOVALS
                )
            else:
                seen = self._identities[key].seen[remover.other]
                if seen is None or self._identities[key].seen[remover] is not None:
                    answer = False
                else:
                    way.append(key)
                    (above,) = seen.places
                    key = above.directory
        decided.update(dict.fromkeys(way, answer))
        return answer

    def _keep_above(self) -> None:
        """Keep every directory that something stands in, or is claimed to."""
        pending = [place for standing in self._standings.values() for place in standing.claims]
        while pending:
            key = pending.pop().directory
            if key in self._standings:
                continue
            identity = self._identities[key]
            remover = Origin.OURS if identity.ours is None else Origin.THEIRS
            places = {self._directories[key]}
            self._standings[key] = Standing(places, places, removed_by=remover)
            pending += places


def _stand_removed(identity: Identity) -> Standing | None:
    """Return where something stands that one side removed and the other changed."""
    base = identity.base
    assert base is not None
    for side in SIDES:
        seen = identity.seen[side]
        if seen is None:
            continue
        if seen.places - base.places:
            kind = ConflictKind.RENAME_DELETE
        elif not is_same_state(base.entry, seen.entry):
            kind = ConflictKind.MODIFY_DELETE
        else:
            return None
        return Standing(set(seen.places), set(seen.places), kind, removed_by=side.other)
    return None
