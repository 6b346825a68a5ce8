"""Building the tree of the result: ours, edited from the bottom up."""

from __future__ import annotations

from collections.abc import Mapping

from workspacefs.ids import FileId
from workspacefs.merge.content import MergeSink, MergeSource
from workspacefs.merge.identity import Identities, Identity
from workspacefs.merge.layout import Layout
from workspacefs.merge.outcomes import Outcomes
from workspacefs.merge.place import Origin, Place
from workspacefs.merge.rows import is_same_attributes, merge_times
from workspacefs.merge.table import Table
from workspacefs.objects.entry import Entry
from workspacefs.trees.edit import edit_directory
from workspacefs.trees.parameters import TreeParameters


class Assembly:
    """Builds one result."""

    def __init__(
        self,
        identities: Identities,
        outcomes: Outcomes,
        table: Table,
        layout: Layout,
        source: MergeSource,
        sink: MergeSink,
        tree_params: TreeParameters,
        time_ns: int,
    ) -> None:
        self._identities = identities
        self._outcomes = outcomes
        self._table = table
        self._layout = layout
        self._source = source
        self._sink = sink
        self._tree_params = tree_params
        self._time_ns = time_ns
        self._built: dict[FileId, Entry] = {}

    def build(self) -> Entry:
        """Write all nodes that are new; return the root."""
        for directory in reversed(self._directories()):
            self._built[directory] = self._build_directory(self._identities[directory])
        return self._built[self._identities.root]._replace(name=b"")

    def row_of(self, identity: Identity) -> Entry:
        """Return the row that an identity has in the result. Call after `build`."""
        if identity.is_dir:
            return self._built[identity.key]
        entry = self._outcomes.get(identity.key).entry
        return entry._replace(nlink=len(self._layout.places[identity.key]))

    def _directories(self) -> list[FileId]:
        """Return all directories on the way to a name that somebody looked at, root first."""
        found: list[FileId] = []
        pending = [self._identities.root]
        while pending:
            directory = pending.pop()
            found.append(directory)
            for key in self._layout.names.get(directory, {}).values():
                if key is not None and self._identities[key].is_dir:
                    pending.append(key)
        return found

    def _build_directory(self, identity: Identity) -> Entry:
        origin = Origin.OURS if identity.ours is not None else Origin.THEIRS
        seen = identity.seen[origin]
        assert seen is not None
        names = self._layout.names.get(identity.key, {})
        changes: dict[bytes, Entry | None] = {}
        nlink = seen.entry.nlink
        for name, key in names.items():
            row = None
            if key is not None:
                row = self.row_of(self._identities[key])._replace(name=name)
            before = self._identities.find_at(origin, Place(identity.key, name))
            nlink += (row is not None and row.is_dir) - (before is not None and before.is_dir)
            changes[name] = row
        subtree = edit_directory(
            seen.entry.subtree, changes, self._source, self._sink, self._tree_params
        )
        entry = self._outcomes.get(identity.key).entry
        mtime_ns, ctime_ns = self._times_of(identity, entry, names)
        return entry._replace(content=subtree, nlink=nlink, mtime_ns=mtime_ns, ctime_ns=ctime_ns)

    def _times_of(
        self, identity: Identity, entry: Entry, names: Mapping[bytes, FileId | None]
    ) -> tuple[int, int]:
        """Return the times of a directory: a side's, if that has the same names and attributes."""
        if self._table.is_united(identity.key):
            return self._time_ns, self._time_ns  # a side had two directories where one is now
        base = identity.base.entry if identity.base is not None else None
        return merge_times(
            base,
            self._same_directory(identity, Origin.OURS, entry, names),
            self._same_directory(identity, Origin.THEIRS, entry, names),
            self._time_ns,
        )

    def _same_directory(
        self,
        identity: Identity,
        origin: Origin,
        entry: Entry,
        names: Mapping[bytes, FileId | None],
    ) -> Entry | None:
        """Return a side's row, if it says the same and the directory lists the same names."""
        seen = identity.seen[origin]
        if seen is None or not is_same_attributes(seen.entry, entry):
            return None
        for name, key in names.items():
            before = self._identities.find_at(origin, Place(identity.key, name))
            if (before is None) != (key is None):
                return None
        return seen.entry
