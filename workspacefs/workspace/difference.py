"""What differs between two states of a session over one base: for going from one to the other.

Names are followed from the root down, and only those with rows in layers that the two states do not
have in common; so the cost is that of the difference. Directories are known by their ids, wherever
they lie in either state; one that only one of them has is listed whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from workspacefs.ids import ROOT_FILE_ID, FileId
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.objects.refs import ChunkRef, Ref
from workspacefs.trees.diff import Change
from workspacefs.workspace.changes import PathChange, classify
from workspacefs.workspace.content import ContentSource
from workspacefs.workspace.pending import Pending, PendingFile
from workspacefs.workspace.status import PendingContent

_OLD: Final = 0
_NEW: Final = 1


@dataclass(frozen=True, slots=True)
class State:
    """One of the two."""

    all: Pending
    own: Pending
    """Only of layers that the other one does not have: it tells which names may differ."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file is in the new state, and as what."""

    directory_id: FileId
    name: bytes
    file: PendingFile


@dataclass(slots=True)
class Difference:
    """What a file was that is not named here, it is."""

    places: dict[FileId, Place] = field(default_factory=dict)
    """Of files that may be otherwise than before; the directories that lead there are among
    them, but for the root."""
    gone: set[FileId] = field(default_factory=set)
    """Files that the new state does not have."""
    names: set[tuple[FileId, bytes]] = field(default_factory=set)
    """(directory, name) of names that may lead elsewhere, or nowhere."""

    def add(self, other: Difference) -> None:
        """Take in what else differs from the same new state."""
        self.places |= other.places
        self.gone = (self.gone | other.gone) - self.places.keys()
        self.names |= other.names


def find_difference(old: State, new: State) -> Difference:
    """Return what differs.

    Raises:
        IntegrityError: Either state is damaged.
    """
    return _Comparison(old, new).run()


def list_changes(old: State, new: State) -> tuple[list[PathChange], ContentSource]:
    """Return what differs as a status tells it, and what gives the content of both sides.

    Raises:
        IntegrityError: Either state is damaged.
    """
    visits: list[_Visit] = []
    _Comparison(old, new, visits).run()
    contents = (PendingContent(old.all), PendingContent(new.all))
    above: tuple[dict[FileId, _Visit], dict[FileId, _Visit]] = ({}, {})
    for visit in visits:
        for side, file in enumerate((visit.before, visit.after)):
            if file is not None and file.is_dir:
                above[side][file.file_id] = visit
    found: dict[bytes, list[Entry | None]] = {}
    for visit in visits:
        for side, file in enumerate((visit.before, visit.after)):
            if file is not None:
                path = _path_of(visit, above[side])
                entry = contents[side].entry_of(visit.name, file)
                found.setdefault(path, [None, None])[side] = entry
    changes = (
        Change(path, before, after) for path, (before, after) in found.items() if before != after
    )
    return classify(changes), _Both(*contents)


class _Visit(NamedTuple):
    directory_id: FileId
    name: bytes
    before: PendingFile | None
    after: PendingFile | None


def _path_of(visit: _Visit, above: Mapping[FileId, _Visit]) -> bytes:
    parts = [visit.name]
    while visit.directory_id != ROOT_FILE_ID:
        visit = above[visit.directory_id]
        parts.append(visit.name)
    return b"/".join(reversed(parts))


class _Both:
    """Gives the content of entries of two states: an id means the same in both."""

    def __init__(self, first: PendingContent, second: PendingContent) -> None:
        self._first = first
        self._second = second

    def load_chunk(self, ref: ChunkRef) -> bytes:
        """Return the bytes of one chunk, or of a body in a layer."""
        one = self._first if self._first.has_body(ref) else self._second
        return one.load_chunk(ref)

    def load_chunk_list(self, ref: Ref) -> tuple[ChunkRef, ...]:
        """Return one chunk list."""
        return self._first.load_chunk_list(ref)


class _Comparison:
    def __init__(self, old: State, new: State, visits: list[_Visit] | None = None) -> None:
        self._states = (old, new)
        self._visits = visits
        self._directories: dict[FileId, list[PendingFile | None]] = {}
        self._pairs: list[FileId] = []
        self._compared: set[FileId] = set()
        self._listed: set[tuple[FileId, int]] = set()
        self._alone: tuple[list[FileId], list[FileId]] = ([], [])
        self._olds: set[FileId] = set()
        self._found = Difference()

    def run(self) -> Difference:
        for side in (_OLD, _NEW):
            self._note(side, self._states[side].all.root_file())
        while True:
            if self._pairs:
                self._compare(self._pairs.pop())
            # All of the new state is found before a directory counts as gone: it may have moved
            # into one that is new.
            elif self._alone[_NEW]:
                self._list(_NEW, self._alone[_NEW].pop())
            elif self._alone[_OLD]:
                self._list(_OLD, self._alone[_OLD].pop())
            else:
                break
        found = self._found
        self._find_linked()
        found.gone = self._olds - found.places.keys()
        return found

    def _note(self, side: int, file: PendingFile) -> None:
        if not file.is_dir:
            return
        pair = self._directories.setdefault(file.file_id, [None, None])
        if pair[side] is None:
            pair[side] = file
            if pair[1 - side] is None:
                self._alone[side].append(file.file_id)
            else:
                self._pairs.append(file.file_id)

    def _compare(self, directory_id: FileId) -> None:
        old, new = self._directories[directory_id]
        assert old is not None
        assert new is not None
        self._compared.add(directory_id)
        names = {
            *self._states[_OLD].own.names_in(old),
            *self._states[_NEW].own.names_in(new),
        }
        for name in sorted(names):
            before = self._states[_OLD].all.find_child(old, name)
            after = self._states[_NEW].all.find_child(new, name)
            self._visit(directory_id, name, before, after)

    def _list(self, side: int, directory_id: FileId) -> None:
        if directory_id in self._compared:
            return
        directory = self._directories[directory_id][side]
        if self._directories[directory_id][1 - side] is not None:
            return
        assert directory is not None
        for name, file in self._states[side].all.iter_children(directory):
            if side == _OLD:
                self._visit(directory_id, name, file, None)
            else:
                self._visit(directory_id, name, None, file)

    def _visit(
        self,
        directory_id: FileId,
        name: bytes,
        before: PendingFile | None,
        after: PendingFile | None,
    ) -> None:
        if self._visits is not None:
            self._visits.append(_Visit(directory_id, name, before, after))
        if before is not None:
            self._olds.add(before.file_id)
            self._note(_OLD, before)
        if after is not None:
            self._found.places[after.file_id] = Place(directory_id, name, after)
            self._note(_NEW, after)
        if before is None or after is None or before.file_id != after.file_id:
            self._found.names.add((directory_id, name))

    def _find_linked(self) -> None:
        """Find files that are otherwise, or that have lost a name, and that have another one of
        which the layers that differ tell nothing.
        """
        found, new = self._found, self._states[_NEW].all
        wanted = {file_id for file_id in self._iter_rows() if file_id not in found.places}
        for file_id in self._olds - found.places.keys():
            row = new.find_row(file_id)
            if row is not None and row.nlink and not isinstance(row.content, Subtree):
                wanted.add(file_id)
        wanted.discard(ROOT_FILE_ID)
        for directory_id, name, file in new.find_linked(wanted):
            found.places[file.file_id] = Place(directory_id, name, file)

    def _iter_rows(self) -> Iterator[FileId]:
        for state in self._states:
            for file_id, row in state.own.iter_file_rows():
                if row.nlink and not isinstance(row.content, Subtree):
                    yield file_id
