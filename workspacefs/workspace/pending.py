"""Uncommitted changes: what a session's layers say beside its base commit.

Only name rows are followed, from the root down (see layers/rows.py), so the cost is that of the
changes, whatever the size of the workspace. Reads snapshots; safe beside the session that writes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from workspacefs.errors import IntegrityError
from workspacefs.ids import ROOT_FILE_ID, FileId
from workspacefs.layers.bodies import (
    BodyContent,
    ChunkSource,
    OwnFile,
    Run,
    content_from_desc,
    read_body,
)
from workspacefs.layers.database import Snapshot, iter_inode_rows
from workspacefs.layers.layer import Layer
from workspacefs.layers.rows import (
    InodeRow,
    OwnFileDesc,
    RunDesc,
    decode_inode,
    decode_name,
    inode_key,
    name_key,
)
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.trees.ahead import AHEAD_NAMES, Way, prefetch_ways
from workspacefs.trees.nodes import NodeSource
from workspacefs.trees.walk import find_entry, iter_entries


class PendingSource(NodeSource, ChunkSource, Protocol):
    """Gives the objects of the base, blocking."""


@dataclass(frozen=True, slots=True)
class PendingFile:
    """One name as the layers show it."""

    file_id: FileId
    row: InodeRow | None
    """None: no layer changed the file itself; it is as `base` says, perhaps with changes below."""
    base: Entry | None
    """What the base commit has under the same name in the same directory."""

    @property
    def is_dir(self) -> bool:
        """Whether this is a directory."""
        mode = self.row.mode if self.row is not None else self._entry.mode
        return (mode & 0o170000) == 0o040000

    @property
    def state(self) -> InodeRow:
        """Attributes and content."""
        return self.row if self.row is not None else row_of(self._entry)

    @property
    def subtree(self) -> Subtree:
        """What a directory shows of the base: where that directory was when the base was made."""
        if self.row is None:
            return self._entry.subtree
        assert isinstance(self.row.content, Subtree)
        return self.row.content

    @property
    def _entry(self) -> Entry:
        assert self.base is not None
        return self.base


class Pending:
    """The layers of a session at one moment, over its base."""

    def __init__(
        self,
        root: Entry,
        snapshots: Sequence[Snapshot],
        layers: Mapping[int, Layer],
        source: PendingSource,
    ) -> None:
        """Look at `root` under `snapshots` (newest first) of `layers`."""
        self.root = root
        self.source = source
        self.snapshots = snapshots
        """The newest first."""
        self._layers = layers
        self._extra: dict[FileId, dict[bytes, FileId]] = {}

    def row_count(self) -> int:
        """Return how many rows the layers have together: a measure of the work ahead."""
        return sum(layer.rows.count() for layer in self._layers.values())

    def root_file(self) -> PendingFile:
        """Return the root directory."""
        return PendingFile(ROOT_FILE_ID, self.find_row(ROOT_FILE_ID), self.root)

    def find_row(self, file_id: FileId) -> InodeRow | None:
        """Return the newest row of a file, or None: no layer has changed it."""
        key = inode_key(file_id)
        for snapshot in self.snapshots:
            value = snapshot.get(key)
            if value is not None:
                return decode_inode(value)
        return None

    def iter_bodies(self) -> Iterator[tuple[FileId, InodeRow]]:
        """Yield the files whose content lies in a layer, those with names and orphans alike."""
        seen: set[FileId] = set()
        for snapshot in self.snapshots:
            for key, value in iter_inode_rows(snapshot):
                file_id = FileId(int.from_bytes(key[1:], "big"))
                row = decode_inode(value)
                if file_id not in seen and self.is_in_layer(row):
                    yield file_id, row
                seen.add(file_id)

    def changed_names(
        self, directory: PendingFile
    ) -> list[tuple[bytes, PendingFile | None, Entry | None]]:
        """Return (name, file or None, base entry or None) of every name with a row, in order.

        Raises:
            IntegrityError: A row leads to a file that neither layer nor base has.
        """
        rows = self._name_rows(directory)
        names, root = sorted(rows), directory.subtree.root
        found: list[tuple[bytes, PendingFile | None, Entry | None]] = []
        for number, name in enumerate(names):
            if root is not None and number % AHEAD_NAMES == 0:
                ahead = min(number + AHEAD_NAMES, len(names))
                prefetch_ways(self.source, [Way(root, names, number, ahead)])
            file_id = rows[name]
            base = find_entry(directory.subtree, name, self.source)
            if file_id is None:
                found.append((name, None, base))
                continue
            found.append((name, self._file(file_id, name, base), base))
        return found

    def names_in(self, directory: PendingFile) -> list[bytes]:
        """Return every name with a row, in order, without looking at the base."""
        return sorted(self._name_rows(directory))

    def find_child(self, directory: PendingFile, name: bytes) -> PendingFile | None:
        """Return what a directory shows under a name, or None."""
        key = name_key(directory.file_id, name)
        for snapshot in self.snapshots:
            value = snapshot.get(key)
            if value is not None:
                file_id = decode_name(value)
                if file_id is None:
                    return None
                base = find_entry(directory.subtree, name, self.source)
                return self._file(file_id, name, base)
        base = find_entry(directory.subtree, name, self.source)
        return None if base is None else self._file(base.file_id, name, base)

    def iter_children(self, directory: PendingFile) -> Iterator[tuple[bytes, PendingFile]]:
        """Yield everything that a directory shows; those with rows come last."""
        rows = self._name_rows(directory)
        beneath: dict[bytes, Entry] = {}
        for entry in iter_entries(directory.subtree, self.source):
            if entry.name in rows:
                beneath[entry.name] = entry
            else:
                yield entry.name, self._file(entry.file_id, entry.name, entry)
        for name, file_id in rows.items():
            if file_id is not None:
                yield name, self._file(file_id, name, beneath.get(name))

    def _file(self, file_id: FileId, name: bytes, base: Entry | None) -> PendingFile:
        row = self.find_row(file_id)
        if row is None and (base is None or base.file_id != file_id):
            raise _dangling(name, file_id)
        return PendingFile(file_id, row, base)

    def names_over(
        self, directory: PendingFile, other: Entry
    ) -> list[tuple[bytes, PendingFile | None, Entry | None]]:
        """Return (name, file or None, entry of `other` or None) of every name in a directory, or in
        the base directory `other` that it stands in the place of.
        """
        shown: dict[bytes, PendingFile | None] = {
            entry.name: PendingFile(
                entry.file_id, self.find_row(entry.file_id) or row_of(entry), entry
            )
            for entry in iter_entries(directory.subtree, self.source)
        }
        for name, file, _ in self.changed_names(directory):
            if file is not None and file.row is None and file.base is not None:
                file = PendingFile(file.file_id, row_of(file.base), file.base)
            shown[name] = file
        before = {entry.name: entry for entry in iter_entries(other.subtree, self.source)}
        return [
            (name, shown.get(name), before.get(name))
            for name in sorted(shown.keys() | before.keys())
        ]

    def read(self, row: InodeRow, file_id: FileId, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes of a regular file."""
        return read_body(self._content(row, file_id), offset, length, self.source)

    def is_in_layer(self, row: InodeRow) -> bool:
        """Tell whether a file's bytes have no chunk ids yet."""
        return isinstance(row.content, RunDesc | OwnFileDesc)

    def body(self, row: InodeRow, file_id: FileId) -> Run | OwnFile:
        """Return the body of a file whose bytes are in a layer."""
        content = self._content(row, file_id)
        assert isinstance(content, Run | OwnFile)
        return content

    def iter_file_rows(self) -> Iterator[tuple[FileId, InodeRow]]:
        """Yield the newest row of every file that any layer has changed."""
        seen: set[bytes] = set()
        for snapshot in self.snapshots:
            for key, value in iter_inode_rows(snapshot):
                if key not in seen:
                    seen.add(key)
                    yield FileId(int.from_bytes(key[1:], "big")), decode_inode(value)

    def reach_other_names(self, reached: set[FileId]) -> bool:
        """Find names that lead to changed files but have no row; tell whether there were any.

        That is so for a file with several names in the base: a change under one of them concerns
        all. Looks only below directories whose totals say that such files are there; a file that
        is still missing after that (its last known name went while it was open) is looked for
        everywhere.
        """
        wanted: set[FileId] = set()
        unreached: set[FileId] = set()
        for file_id, row in self.iter_file_rows():
            if isinstance(row.content, Subtree) or row.nlink == 0:
                continue
            if file_id not in reached:
                unreached.add(file_id)
                wanted.add(file_id)
            elif row.nlink > 1:
                wanted.add(file_id)
        if not wanted:
            return False
        found = self._scan(wanted, only_hardlinked=True)
        if unreached - found:
            self._scan(unreached - found, only_hardlinked=False)
        return bool(self._extra)

    def _name_rows(self, directory: PendingFile) -> dict[bytes, FileId | None]:
        names: dict[bytes, FileId | None] = {}
        for snapshot in reversed(self.snapshots):
            names.update(snapshot.iter_names(directory.file_id))
        for name, other_id in self._extra.get(directory.file_id, {}).items():
            names.setdefault(name, other_id)
        return names

    def find_linked(
        self, wanted: Collection[FileId]
    ) -> Iterator[tuple[FileId, bytes, PendingFile]]:
        """Yield (directory id, name, file) of names that lead to certain files, in places where a
        file may have other names that no layer tells of. Most of a base has none.
        """
        stack = [self.root_file()]
        while stack and wanted:
            directory = stack.pop()
            names: Iterable[tuple[bytes, PendingFile | None]]
            if directory.subtree.totals.hardlinked:
                names = self.iter_children(directory)
            else:
                marked = self.names_in(directory)
                names = ((name, self.find_child(directory, name)) for name in marked)
            for name, file in names:
                if file is None:
                    continue
                if file.is_dir:
                    stack.append(file)
                elif file.file_id in wanted:
                    yield directory.file_id, name, file

    def _scan(self, wanted: set[FileId], *, only_hardlinked: bool) -> set[FileId]:
        found: set[FileId] = set()
        stack = [(self.root, [ROOT_FILE_ID], [b""])]
        while stack:
            directory, ids, names = stack.pop()
            if only_hardlinked and not directory.subtree.totals.hardlinked:
                continue
            for entry in iter_entries(directory.subtree, self.source):
                if entry.is_dir:
                    stack.append((entry, [*ids, entry.file_id], [*names, entry.name]))
                elif entry.file_id in wanted:
                    found.add(entry.file_id)
                    self._extra.setdefault(directory.file_id, {})[entry.name] = entry.file_id
                    for at in range(len(ids) - 1):
                        below = self._extra.setdefault(ids[at], {})
                        below[names[at + 1]] = ids[at + 1]
        return found

    def _content(self, row: InodeRow, file_id: FileId) -> BodyContent:
        return content_from_desc(row.content, file_id, self._layers)


def _dangling(name: bytes, file_id: FileId) -> IntegrityError:
    return IntegrityError(
        f"{name!r} leads to file {file_id:x}, which neither layer nor commit knows",
        kind="layer.dangling",
    )


def row_of(entry: Entry) -> InodeRow:
    """Return the row that an entry would have in a layer; trees keep no atime."""
    return InodeRow(
        *entry[1:5],
        entry.mtime_ns,
        entry.ctime_ns,
        entry.mtime_ns,
        entry.nlink,
        entry.content,
        entry.xattrs,
    )


def entries_in(root: Entry, pending: Pending) -> dict[FileId, Entry]:
    """Return the entries that a commit has for the files that `pending` changed, by file id.

    `root` is the tree that was made of exactly this state, by a process that died before it could
    say what became of each file. Same names lead to the same files in both.
    """
    found: dict[FileId, Entry] = {ROOT_FILE_ID: root}
    stack = [(pending.root_file(), root)]
    while stack:
        directory, there = stack.pop()
        for name, file, _ in pending.changed_names(directory):
            entry = find_entry(there.subtree, name, pending.source)
            if file is None or entry is None or entry.file_id != file.file_id:
                continue
            found[file.file_id] = entry
            if file.is_dir:
                stack.append((file, entry))
    return found
