"""Which names of which directories are claimed in the result, and by whom.

Holds only names that somebody looked at; all others of a directory are as in each tree that has it.
Two directories that come to the same name become one here: its names are those of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from workspacefs.ids import FileId
from workspacefs.merge.identity import Identities, Identity
from workspacefs.merge.links import iter_names
from workspacefs.merge.place import Origin, Place
from workspacefs.merge.standing import Standing
from workspacefs.objects.entry import Entry
from workspacefs.trees.nodes import NodeSource
from workspacefs.trees.walk import find_entry, iter_entries


class Claim(NamedTuple):
    """Somebody who shall have a name."""

    key: FileId
    directory: FileId
    """The directory that a side has it in: of directories that became one, either."""


class Table:
    """Claims by directory and name."""

    def __init__(
        self, identities: Identities, standings: dict[FileId, Standing], source: NodeSource
    ) -> None:
        self._identities = identities
        self._standings = standings
        self._source = source
        self._names: dict[FileId, dict[bytes, list[Claim]]] = {}
        self._became: dict[FileId, FileId] = {}
        self._members: dict[FileId, tuple[FileId, FileId]] = {}
        for identity in identities:
            for seen in identity.seen:
                for place in seen.places if seen is not None else ():
                    self._claims(place.directory, place.name)
        for key, standing in standings.items():
            for place in standing.claims:
                self._claims(place.directory, place.name).append(Claim(key, place.directory))

    def directories(self) -> Iterator[FileId]:
        """Yield the directories that hold names here."""
        yield from list(self._names)

    def names_of(self, directory: FileId) -> Mapping[bytes, list[Claim]]:
        """Return the claims in a directory by name; nobody claims a name that is free now."""
        return self._names.get(directory, {})

    def ordered(self, directory: FileId, name: bytes) -> list[Claim]:
        """Return the claims to a name, ours before theirs."""
        members = self._members.get(directory)

        def order(claim: Claim) -> tuple[int, int]:
            member = members.index(claim.directory) if members else 0
            return self.side_of(claim, name), member

        return sorted(self.names_of(directory).get(name, ()), key=order)

    def side_of(self, claim: Claim, name: bytes) -> int:
        """Return 0 for what only ours has at a place, 2 for what only theirs has, 1 for both."""
        origins = self._identities[claim.key].origins_of(Place(claim.directory, name))
        if len(origins) == 2:
            return 1
        return 0 if Origin.OURS in origins else 2

    def current(self, directory: FileId) -> FileId:
        """Return the directory that this one became, or itself."""
        return self._became.get(directory, directory)

    def is_united(self, directory: FileId) -> bool:
        """Tell whether two directories became this one."""
        return directory in self._members

    def remove(self, directory: FileId, name: bytes, key: FileId) -> None:
        """Take back a claim."""
        claims = self._names[directory][name]
        claims[:] = [claim for claim in claims if claim.key != key]

    def unite(self, first: FileId, second: FileId) -> tuple[FileId, list[bytes]]:
        """Make two directories one; return which of both goes on, and the names that came to it.

        Names of the other one are moved over, so the one with more unread names goes on.
        """
        stays, goes = first, second
        if self._unread_of(second) > self._unread_of(first):
            stays, goes = second, first
        self._add_unchanged(goes, self._iter_unread(self._identities[goes]))
        moved = self._names.pop(goes, {})
        self._became[goes] = stays
        self._members[stays] = (first, second)
        found = (self._find_unread(self._identities[stays], name) for name in moved)
        self._add_unchanged(stays, (entry for entry in found if entry is not None))
        for name, claims in moved.items():
            there = self._claims(stays, name)
            keys = {claim.key for claim in there}
            there += [claim for claim in claims if claim.key not in keys]
        return stays, list(moved)

    def is_free(self, directory: FileId, name: bytes) -> bool:
        """Tell whether nothing will have this name."""
        claims = self.names_of(directory).get(name)
        if claims is not None:
            return not claims
        return self._find_unread(self._identities[directory], name) is None

    def _claims(self, directory: FileId, name: bytes) -> list[Claim]:
        return self._names.setdefault(directory, {}).setdefault(name, [])

    def _unread_of(self, directory: FileId) -> int:
        identity = self._identities[directory]
        if identity.ours is None or not identity.is_everywhere:
            return 0
        totals = identity.ours.entry.subtree.totals
        return 1 + totals.files + totals.dirs

    def _find_unread(self, identity: Identity, name: bytes) -> Entry | None:
        """Return what has a name that nobody looked at."""
        if identity.ours is None or not identity.is_everywhere:
            return None
        if name in self.names_of(identity.key):
            return None
        return find_entry(identity.ours.entry.subtree, name, self._source)

    def _iter_unread(self, identity: Identity) -> Iterator[Entry]:
        """Yield what has names that nobody looked at."""
        if identity.ours is None or not identity.is_everywhere:
            return
        for entry in iter_entries(identity.ours.entry.subtree, self._source):
            if entry.name not in self.names_of(identity.key):
                yield entry

    def _add_unchanged(self, directory: FileId, entries: Iterable[Entry]) -> None:
        """Take in names that are as they were on both sides, and all names of files with several:
        where one of these is in the way, the rows of all change.
        """
        linked: set[FileId] = set()
        for entry in entries:
            self._put(entry, Place(directory, entry.name))
            if entry.nlink > 1 and not entry.is_dir:
                linked.add(entry.file_id)
        root = self._identities[self._identities.root].base
        if linked and root is not None:
            for place, entry in iter_names(root.entry, linked, self._source):
                self._put(entry, place)

    def _put(self, entry: Entry, place: Place) -> None:
        if not self._identities.add_unchanged(entry, place):
            return
        standing = self._standings.setdefault(entry.file_id, Standing(set(), set()))
        standing.places.add(place)
        standing.claims.add(place)
        claims = self._claims(self.current(place.directory), place.name)
        claims.append(Claim(entry.file_id, place.directory))
