"""Files and directories as all three trees show them: what both sides did, joined by identity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from workspacefs.errors import IntegrityError
from workspacefs.ids import FileId
from workspacefs.merge.added import unite_added
from workspacefs.merge.conflicts import Version
from workspacefs.merge.differ import Differ
from workspacefs.merge.links import iter_names
from workspacefs.merge.place import SIDES, Origin, Place, Seen
from workspacefs.merge.side import Side, compare_side, kind_of
from workspacefs.objects.entry import Entry
from workspacefs.trees.nodes import NodeSource


@dataclass(slots=True)
class Identity:
    """One file or directory through the three trees."""

    key: FileId
    """Its id in the base; of what is new, that on the sides."""
    seen: tuple[Seen | None, Seen | None, Seen | None]
    """By Origin; None where it does not exist."""
    is_dir: bool = field(init=False)
    """Whether it is a directory; the kind is the same in all trees."""

    def __post_init__(self) -> None:
        self.is_dir = any(seen is not None and seen.entry.is_dir for seen in self.seen)

    @property
    def base(self) -> Seen | None:
        """In the base."""
        return self.seen[Origin.BASE]

    @property
    def ours(self) -> Seen | None:
        """On our side."""
        return self.seen[Origin.OURS]

    @property
    def theirs(self) -> Seen | None:
        """On their side."""
        return self.seen[Origin.THEIRS]

    @property
    def is_everywhere(self) -> bool:
        """Whether all three trees have it: then names in it that nobody looked at are equal."""
        return None not in self.seen

    def entries(self) -> tuple[Entry | None, Entry | None, Entry | None]:
        """Return its rows by Origin."""
        base, ours, theirs = (seen.entry if seen is not None else None for seen in self.seen)
        return base, ours, theirs

    def drop_empty(self) -> None:
        """Take trees in which it has no name for trees that do not have it."""
        base, ours, theirs = (seen if seen and seen.places else None for seen in self.seen)
        self.seen = base, ours, theirs

    def origins_of(self, place: Place) -> frozenset[Origin]:
        """Return the sides that have it at this place."""
        return frozenset(
            side for side in SIDES if (seen := self.seen[side]) is not None and place in seen.places
        )


class Identities:
    """All identities that differ anywhere, and the directories that lead to them."""

    def __init__(self, root: FileId, by_key: dict[FileId, Identity]) -> None:
        self.root = root
        self._by_key = by_key
        self._standing: dict[tuple[Origin, Place], FileId] = {}
        for identity in by_key.values():
            self._index(identity)

    def __getitem__(self, key: FileId) -> Identity:
        return self._by_key[key]

    def __iter__(self) -> Iterator[Identity]:
        return iter(list(self._by_key.values()))

    def find_at(self, origin: Origin, place: Place) -> Identity | None:
        """Return what one tree has at a place that somebody looked at."""
        key = self._standing.get((origin, place))
        return None if key is None else self._by_key[key]

    def add_unchanged(self, entry: Entry, place: Place) -> bool:
        """Take in what all three trees have alike; False: somebody has looked at the place."""
        if self.find_at(Origin.BASE, place) is not None:
            return False
        identity = self._by_key.get(entry.file_id)
        if identity is None:
            seen = Seen(entry, {place})
            identity = self._by_key[entry.file_id] = Identity(entry.file_id, (seen, seen, seen))
        for seen_by_one in identity.seen:
            if seen_by_one is not None:
                seen_by_one.places.add(place)
        self._index(identity)
        return True

    def path_of(self, origin: Origin, place: Place) -> bytes:
        """Return the path of a place in one tree."""
        parts = [place.name]
        while place.directory != self.root:
            seen = self._by_key[place.directory].seen[origin]
            assert seen is not None
            (place,) = seen.places
            parts.append(place.name)
        return b"/".join(reversed(parts))

    def find_version(
        self, identity: Identity, origin: Origin, place: Place | None = None
    ) -> Version | None:
        """Return what one tree has of an identity, at this place if there: else the first path."""
        seen = identity.seen[origin]
        if seen is None:
            return None
        places = {place} if place in seen.places else seen.places
        if not places:
            return Version(b"", seen.entry)
        path = min(self.path_of(origin, place) for place in places if place is not None)
        return Version(path, seen.entry._replace(name=path.rpartition(b"/")[2]))

    def _index(self, identity: Identity) -> None:
        for origin in Origin:
            seen = identity.seen[origin]
            for place in seen.places if seen is not None else ():
                self._standing[origin, place] = identity.key


def find_identities(base: Entry, ours: Entry, theirs: Entry, source: NodeSource) -> Identities:
    """Compare both sides with the base; equal subtrees are not read.

    Raises:
        IntegrityError: A tree contradicts itself, or another one: it is damaged.
    """
    separate: set[FileId] = set()
    differs = Differ(source), Differ(source)
    while True:
        left = compare_side(base, ours, differs[0], separate=separate)
        right = compare_side(base, theirs, differs[1], separate=separate)
        disputed = _disputed(left, right) | _disputed(right, left)
        if not disputed:
            break
        separate |= disputed
    left, right = unite_added(left, right)
    keys = left.base.keys() | left.now.keys() | right.base.keys() | right.now.keys()
    identities = Identities(base.file_id, {key: _join(key, left, right) for key in sorted(keys)})
    _find_other_names(identities, base, source)
    return identities


def _find_other_names(identities: Identities, base: Entry, source: NodeSource) -> None:
    """Look for names of files that have more than the comparisons came by.

    There are none in trees that we wrote: who changes one name of a file changes its rows in all.
    """
    partial = {
        identity.key
        for identity in identities
        if identity.base is not None
        and not identity.is_dir
        and identity.base.entry.nlink > len(identity.base.places)
    }
    if not partial:
        return
    for place, entry in iter_names(base, partial, source):
        identities.add_unchanged(entry, place)
    for key in partial:
        identities[key].drop_empty()


def _disputed(side: Side, other: Side) -> set[FileId]:
    """Return ids that took the place of another on one side, and are something else on the other.

    Both sides may know a file that the base does not: one was forked from the other.
    """
    keys = {seen.entry.file_id: key for key, seen in other.now.items()}
    return {new for new, key in side.replaced.items() if keys.get(new, key) != key}


def _join(key: FileId, left: Side, right: Side) -> Identity:
    """Return what is known from either side: what one did not visit is there as in the base."""
    bases = [side.base[key] for side in (left, right) if key in side.base]
    if not bases:
        return _checked(Identity(key, (None, left.now.get(key), right.now.get(key))))
    entry = bases[0].entry
    places = {place for seen in bases for place in seen.places}
    return _checked(
        Identity(
            key,
            (
                Seen(entry, places),
                _now(key, left, Seen(entry, places)),
                _now(key, right, Seen(entry, places)),
            ),
        )
    )


def _now(key: FileId, side: Side, base: Seen) -> Seen | None:
    visited = side.base.get(key)
    if visited is None:
        return Seen(base.entry, set(base.places))
    now = side.now.get(key)
    if now is None:
        return None
    return Seen(now.entry, now.places | (base.places - visited.places))


def _checked(identity: Identity) -> Identity:
    kinds = {kind_of(seen.entry) for seen in identity.seen if seen is not None}
    if len(kinds) > 1:
        raise IntegrityError(
            f"file id {identity.key} stands for files of different kinds in the trees that are "
            "merged; a stored tree is damaged",
            kind="tree.inconsistent",
            file_id=identity.key,
        )
    return identity
