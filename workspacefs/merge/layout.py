"""Under which names everything stands in the result: of two with one name, one steps aside."""

from __future__ import annotations

from dataclasses import dataclass, field

from workspacefs.ids import FileId
from workspacefs.merge.lines import Labels
from workspacefs.merge.place import Place
from workspacefs.merge.standing import Standing
from workspacefs.merge.table import Claim, Table
from workspacefs.names import NAME_MAX_BYTES

_LABEL_MAX_BYTES = 100


@dataclass(slots=True)
class Layout:
    """All names of the result that somebody looked at."""

    root: FileId
    names: dict[FileId, dict[bytes, FileId | None]] = field(default_factory=dict)
    """By directory: which identity has a name; None if nobody has."""
    places: dict[FileId, list[Place]] = field(default_factory=dict)
    """The same by identity."""
    aside: dict[tuple[FileId, Place], Place] = field(default_factory=dict)
    """By identity and the place that it did not get: the one it has instead."""

    def path_of(self, place: Place) -> bytes:
        """Return the path of a place in the result."""
        parts = [place.name]
        while place.directory != self.root:
            (place,) = self.places[place.directory]
            parts.append(place.name)
        return b"/".join(reversed(parts))

    def put(self, key: FileId, place: Place) -> None:
        """Give an identity a name."""
        self.names[place.directory][place.name] = key
        self.places.setdefault(key, []).append(place)


def lay_out(
    root: FileId, standings: dict[FileId, Standing], table: Table, labels: Labels
) -> Layout:
    """Return where everything stands, once all collisions are settled."""
    layout = Layout(root)
    for directory in sorted(table.directories()):
        if directory in standings:
            layout.names[directory] = {}
            _lay_out_directory(directory, layout, standings, table, labels)
    return layout


def _lay_out_directory(
    directory: FileId,
    layout: Layout,
    standings: dict[FileId, Standing],
    table: Table,
    labels: Labels,
) -> None:
    names = layout.names[directory]
    aside: list[tuple[bytes, Claim]] = []
    for name in sorted(table.names_of(directory)):
        names[name] = None
        for claim in table.ordered(directory, name):
            if Place(claim.directory, name) not in standings[claim.key].places:
                continue  # claimed only by the other side of a conflict
            if names[name] is None:
                layout.put(claim.key, Place(directory, name))
            else:
                aside.append((name, claim))
    for name, claim in aside:
        label = labels.ours if table.side_of(claim, name) == 0 else labels.theirs
        place = Place(directory, _free_name(directory, name, label, layout, table))
        layout.put(claim.key, place)
        layout.aside[claim.key, Place(directory, name)] = place


def _free_name(directory: FileId, name: bytes, label: str, layout: Layout, table: Table) -> bytes:
    number = 1
    while True:
        beside = _beside(name, label, number)
        if layout.names[directory].get(beside) is None and table.is_free(directory, beside):
            return beside
        number += 1


def _beside(name: bytes, label: str, number: int) -> bytes:
    """Return NAME~LABEL, or NAME~LABEL~NUMBER; the name is cut if need be."""
    text = label.replace("/", "-").replace("\0", "-")
    suffix = b"~" + _cut(text.encode("utf-8", "surrogateescape"), _LABEL_MAX_BYTES)
    if number > 1:
        suffix += b"~%d" % number
    return _cut(name, NAME_MAX_BYTES - len(suffix)) + suffix


def _cut(name: bytes, size_bytes: int) -> bytes:
    """Return at most so many first bytes; no UTF-8 character is cut through."""
    if len(name) <= size_bytes:
        return name
    while size_bytes and name[size_bytes] & 0xC0 == 0x80:
        size_bytes -= 1
    return name[:size_bytes]
