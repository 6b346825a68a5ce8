"""Names that more than one file or directory of the result shall have.

Two that say the same become one, as do two directories, and two texts (with markers, if need be).
Of all others one keeps the name, and a conflict says so. Directories come before what is in them,
since that may collide only once they are one.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import combinations

from workspacefs.ids import FileId
from workspacefs.merge.conflicts import ConflictKind, Version
from workspacefs.merge.content import ContentMerger, MergedContent, is_same_content
from workspacefs.merge.identity import Identities, Identity
from workspacefs.merge.outcomes import Outcomes
from workspacefs.merge.place import Origin, Place
from workspacefs.merge.reports import Report
from workspacefs.merge.rows import RowMerger, is_same_state
from workspacefs.merge.side import kind_of
from workspacefs.merge.standing import Standing
from workspacefs.merge.table import Claim, Table


class Collisions:
    """Settles them one after the other."""

    def __init__(
        self,
        identities: Identities,
        standings: dict[FileId, Standing],
        outcomes: Outcomes,
        table: Table,
        rows: RowMerger,
        contents: ContentMerger,
    ) -> None:
        self._identities = identities
        self._standings = standings
        self._outcomes = outcomes
        self._table = table
        self._rows = rows
        self._contents = contents
        self._queue: list[tuple[int, FileId, bytes]] = []
        self._depths: dict[FileId, int] = {identities.root: 0}
        self.reports: list[Report] = []
        self.covered: set[FileId] = set()
        """Identities whose removal on one side is told of by another conflict."""

    def settle(self) -> None:
        """Settle all; changes standings, outcomes and the table."""
        self._queue = [
            (self._depth_of(directory), directory, name)
            for directory in self._table.directories()
            for name, claims in self._table.names_of(directory).items()
            if len(claims) > 1
        ]
        heapify(self._queue)
        while self._queue:
            _, directory, name = heappop(self._queue)
            claims = self._table.ordered(directory, name)
            if len(claims) == 2 and self._unite(directory, name, *claims):
                continue
            for first, second in combinations(claims, 2):
                self._report_pair(directory, name, first, second)

    def _depth_of(self, directory: FileId) -> int:
        way = []
        while directory not in self._depths:
            way.append(directory)
            standing = self._standings.get(directory)
            if standing is None:
                return 0  # it is gone: nothing collides in it
            (place,) = standing.places
            directory = place.directory
        depth = self._depths[directory]
        for below in reversed(way):
            depth += 1
            self._depths[below] = depth
        return depth

    def _unite(self, directory: FileId, name: bytes, first: Claim, second: Claim) -> bool:
        """Make one of two, if that can be; tell whether it was."""
        keys = first.key, second.key
        if any(self._standings[key].is_contested for key in keys):
            return False
        left, right = (self._outcomes.get(key) for key in keys)
        if left.conflicts or right.conflicts or kind_of(left.entry) != kind_of(right.entry):
            return False
        if left.entry.is_dir:
            self._unite_directories(directory, name, first, second)
            return True
        if any(len(self._standings[key].places) > 1 for key in keys):
            return is_same_state(left.entry, right.entry) and self._drop_one(directory, name, *keys)
        content = self._merge_content(*keys)
        if content is None:
            return False
        self._merge_rows(directory, name, first, second, content)
        del self._standings[second.key]
        self._table.remove(directory, name, second.key)
        return True

    def _unite_directories(
        self, directory: FileId, name: bytes, first: Claim, second: Claim
    ) -> None:
        left = self._outcomes.get(first.key).entry
        content = MergedContent(left.content, left.size_bytes)
        stays, names = self._table.unite(first.key, second.key)
        goes = first.key if stays == second.key else second.key
        self._merge_rows(directory, name, first, second, content)
        del self._standings[goes]
        self._table.remove(directory, name, goes)
        depth = self._depth_of(directory) + 1
        for moved in names:
            if len(self._table.names_of(stays)[moved]) > 1:
                heappush(self._queue, (depth, stays, moved))

    def _drop_one(self, directory: FileId, name: bytes, left: FileId, right: FileId) -> bool:
        """Take the name from one of two files that say the same, and have other names."""
        keeps = self._senior(left, right)
        loses = right if keeps == left else left
        self._table.remove(directory, name, loses)
        standing = self._standings[loses]
        for places in (standing.places, standing.claims):
            places -= {
                place
                for place in places
                if (self._table.current(place.directory), place.name) == (directory, name)
            }
        if not standing.places:
            del self._standings[loses]
        return True

    def _senior(self, left: FileId, right: FileId) -> FileId:
        """Return the one that the base has, else that of the smaller id: both sides agree."""
        is_old = [self._identities[key].base is not None for key in (left, right)]
        if is_old[0] != is_old[1]:
            return left if is_old[0] else right
        return min(left, right, key=lambda key: self._outcomes.get(key).entry.file_id)

    def _merge_content(self, left: FileId, right: FileId) -> MergedContent | None:
        """Return one content for two files; None if each must go on by itself."""
        ours, theirs = self._outcomes.get(left), self._outcomes.get(right)
        if is_same_content(ours.entry, theirs.entry):
            return MergedContent(ours.entry.content, ours.entry.size_bytes)
        if not ours.entry.is_regular:
            return None
        texts = [self._outcomes.load_text(key, self._contents) for key in (left, right)]
        if texts[0] is None or texts[1] is None:
            return None
        return self._contents.merge_texts(b"", texts[0], texts[1], ConflictKind.ADD_ADD)

    def _merge_rows(
        self, directory: FileId, name: bytes, first: Claim, second: Claim, content: MergedContent
    ) -> None:
        """Give both the row of one file, and report what conflicts in it."""
        left, right = (self._outcomes.get(claim.key).entry for claim in (first, second))
        file_id = self._outcomes.get(self._senior(first.key, second.key)).entry.file_id
        outcome = self._rows.assemble(None, left, right, content, file_id)
        for claim in (first, second):
            self._outcomes.set(claim.key, outcome)
        for kind in outcome.conflicts:
            self._report(kind, directory, name, first, second)

    def _report_pair(self, directory: FileId, name: bytes, first: Claim, second: Claim) -> None:
        """Report two that cannot have one name."""
        one, other = self._identities[first.key], self._identities[second.key]
        kinds = [kind_of(self._outcomes.get(claim.key).entry) for claim in (first, second)]
        for survivor, claim in ((one, second), (other, first)):
            if self._survives_only_for(survivor, claim, name):
                if kinds[0] == kinds[1]:
                    return  # that it was changed and removed says it all
                self.covered.add(survivor.key)
        if one.is_dir != other.is_dir:
            kind = ConflictKind.DIRECTORY_FILE
        else:
            kind = ConflictKind.ADD_ADD if kinds[0] == kinds[1] else ConflictKind.KIND
        self._report(kind, directory, name, first, second)

    def _survives_only_for(self, survivor: Identity, claim: Claim, name: bytes) -> bool:
        """Tell whether the side that has another file at a name removed what was there."""
        standing = self._standings[survivor.key]
        if standing.conflict is not ConflictKind.MODIFY_DELETE or standing.removed_by is None:
            return False
        origins = self._identities[claim.key].origins_of(Place(claim.directory, name))
        return origins == {standing.removed_by}

    def _report(
        self, kind: ConflictKind, directory: FileId, name: bytes, first: Claim, second: Claim
    ) -> None:
        pairs = [
            (self._identities[claim.key], Place(claim.directory, name)) for claim in (first, second)
        ]
        bases = [
            self._identities.find_version(identity, Origin.BASE, place)
            for identity, place in pairs
            if identity.base is not None and place in identity.base.places
        ]
        self.reports.append(
            Report(
                kind,
                Place(directory, name),
                bases[0] if len(bases) == 1 else None,
                self._version_of(*pairs[0], Origin.OURS),
                self._version_of(*pairs[1], Origin.THEIRS),
                (first.key, second.key),
            )
        )

    def _version_of(self, identity: Identity, place: Place, side: Origin) -> Version | None:
        """Return what a side has; what came with its directory may be the other side's alone."""
        seen_by = side if identity.seen[side] is not None else side.other
        return self._identities.find_version(identity, seen_by, place)
