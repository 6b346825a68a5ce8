"""Tree nodes: leaves hold entries, branches hold the last name and totals of each child.

A body is canonical bytes without locators. The references of a body have one fixed order, and the
locators that stand beside a stored node come in that order. Entries are decoded one by one, when
asked for: a lookup in a large leaf touches one row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from workspacefs.ids import FileId
from workspacefs.names import are_file_names_in_order, is_file_name
from workspacefs.objects.encoding import decode, encode, ints, malformed
from workspacefs.objects.entry import Entry, Totals
from workspacefs.objects.refs import Child, Locator, LocatorSpan, Ref
from workspacefs.objects.rows import (
    ROW_FIELDS,
    entry_of_row,
    is_id,
    iter_ref_starts,
    row_of,
)

_BRANCH_FIELDS: Final = 7


class BranchItem(NamedTuple):
    """One child of a branch."""

    last_name: bytes
    """The greatest name below the child."""
    ref: Ref
    entries: int
    """Names in this directory below the child."""
    totals: Totals


class LeafNode:
    """Decoded leaf: names in order, entries on demand."""

    __slots__ = ("_locators", "_ref_starts", "_rows", "_what", "names", "size_bytes")

    def __init__(
        self,
        rows: list[list[object]],
        locators: Sequence[Locator | None],
        *,
        size_bytes: int,
        what: str,
    ) -> None:
        self._what = what
        self._rows = rows
        self._locators = locators
        self._ref_starts: list[int] | None = None
        names = [row[0] for row in rows]
        if not all(type(name) is bytes for name in names):
            raise malformed(what, "has a name that is not bytes")
        self.names: list[bytes] = names  # type: ignore[assignment]  # just checked
        if not are_file_names_in_order(self.names):
            raise malformed(what, "has a name that no file may have, or names out of order")
        self.size_bytes = size_bytes

    def __len__(self) -> int:
        return len(self.names)

    def find(self, name: bytes) -> Entry | None:
        """Return the entry called `name`, or None."""
        index = bisect_left(self.names, name)
        if index < len(self.names) and self.names[index] == name:
            return self.entry(index)
        return None

    def entry(self, index: int) -> Entry:
        """Return entry number `index`.

        Raises:
            IntegrityError: The row is not one that we would have written.
        """
        return entry_of_row(
            self._rows[index], self._locators, self._starts()[index], what=self._what
        )

    def iter_entries(self, start: int = 0) -> Iterator[Entry]:
        """Yield the entries from number `start` on, in order of name."""
        rows, locators, what = self._rows, self._locators, self._what
        for index, first_ref in enumerate(self._starts()[start:-1], start):
            yield entry_of_row(rows[index], locators, first_ref, what=what)

    def encode_patched(
        self, names: Sequence[bytes], changes: Mapping[bytes, Entry | None]
    ) -> tuple[bytes, list[Child], list[bytes]]:
        """Return body, references and names of this leaf with some entries replaced.

        Rows that stay are copied as they are, neither built nor checked.

        Args:
            names: Keys of `changes` to apply, ascending.
            changes: New entry by name; None removes it.
        """
        rows, kept_names = list(self._rows), list(self.names)
        starts = self._starts()
        pieces: list[Child] = []  # from the end
        end = len(rows)
        for name in reversed(names):  # from the end, so that places before stay as they are
            at = bisect_left(self.names, name)
            until = at + (at < len(self.names) and self.names[at] == name)
            if starts[until] < starts[end]:
                pieces.append(LocatorSpan(self._locators, starts[until], starts[end]))
            end = at
            new = changes[name]
            if new is None:
                del rows[at:until], kept_names[at:until]
                continue
            refs: list[Ref] = []
            rows[at:until] = [row_of(new, refs)]
            kept_names[at:until] = [name]
            pieces += reversed(refs)
        if starts[end]:
            pieces.append(LocatorSpan(self._locators, 0, starts[end]))
        all_refs = pieces[::-1]
        return encode((0, rows)), all_refs, kept_names

    def is_same_row(self, index: int, other: LeafNode, other_index: int) -> bool:
        """Tell whether two rows are equal, without building entries."""
        return self._rows[index] == other._rows[other_index]

    def iter_changed_rows(self, other: LeafNode) -> Iterator[tuple[int | None, int | None]]:
        """Yield the numbers of rows that differ, here and in `other`, in order of name.

        None where a name is not. No entry is built, and rows are compared by code in C.
        """
        if self.names == other.names:
            for index, (row, other_row) in enumerate(zip(self._rows, other._rows, strict=True)):
                if row != other_row:
                    yield index, index
            return
        places = {name: index for index, name in enumerate(self.names)}
        other_places = {name: index for index, name in enumerate(other.names)}
        for name in sorted(places.keys() | other_places.keys()):
            at, other_at = places.get(name), other_places.get(name)
            if at is None or other_at is None or self._rows[at] != other._rows[other_at]:
                yield at, other_at

    def _starts(self) -> list[int]:
        if self._ref_starts is None:
            self._ref_starts = list(iter_ref_starts(self._rows))
        return self._ref_starts

    def kinds(self) -> list[tuple[bytes, int, FileId]]:
        """Return (name, mode, file id) of all rows without building entries."""
        return [(row[0], row[1], row[7]) for row in self._rows]  # type: ignore[misc]


class BranchNode:
    """Decoded branch: children in order of their last names."""

    __slots__ = ("items", "last_names", "level", "size_bytes")

    def __init__(self, level: int, items: tuple[BranchItem, ...], *, size_bytes: int) -> None:
        self.level = level
        self.items = items
        self.last_names = [item.last_name for item in items]
        self.size_bytes = size_bytes


Node: TypeAlias = LeafNode | BranchNode


def encode_leaf(entries: Sequence[Entry]) -> tuple[bytes, list[Ref]]:
    """Return the body of a leaf, and its references in body order."""
    refs: list[Ref] = []
    rows = [row_of(entry, refs) for entry in entries]
    return encode((0, rows)), refs


def encode_branch(level: int, items: Sequence[BranchItem]) -> tuple[bytes, list[Ref]]:
    """Return the body of a branch (level 1 stands above leaves), and its references."""
    rows = [(item.last_name, item.ref.id, item.entries, *item.totals) for item in items]
    return encode((level, rows)), [item.ref for item in items]


def decode_node(body: bytes, locators: Sequence[Locator | None], *, what: str) -> Node:
    """Return the node that `body` encodes; `locators` are its references' in body order.

    Raises:
        IntegrityError: The body is malformed. Rows of a leaf are checked when asked for.
    """
    fields = decode(body, what=what)
    if len(fields) != 2 or type(fields[0]) is not int or not isinstance(fields[1], list):
        raise malformed(what, "is not a tree node")
    level, rows = fields[0], fields[1]
    if level == 0:
        if not all(isinstance(row, list) and len(row) == ROW_FIELDS for row in rows):
            raise malformed(what, "has a row of the wrong shape")
        return LeafNode(rows, locators, size_bytes=len(body), what=what)
    if not 0 < level < 16 or not rows:
        raise malformed(what, "has an impossible level or no children")
    items = tuple(_item_of(row, locators, index, what=what) for index, row in enumerate(rows))
    last_names = [item.last_name for item in items]
    if not are_file_names_in_order(last_names):
        raise malformed(what, "has children out of order")
    return BranchNode(level, items, size_bytes=len(body))


def encode_root_entry(entry: Entry) -> tuple[list[object], list[Ref]]:
    """Return the row of one entry alone, and its references: a commit holds its root so."""
    refs: list[Ref] = []
    return row_of(entry, refs), refs


def decode_root_entry(row: object, locators: Sequence[Locator | None], *, what: str) -> Entry:
    """Return the entry of a row that stands alone; its name must be empty, its kind a directory.

    Raises:
        IntegrityError: The row is malformed.
    """
    if not isinstance(row, list) or len(row) != ROW_FIELDS or row[0] != b"":
        raise malformed(what, "has no root directory")
    entry = entry_of_row(row, locators, 0, what=what)
    if not entry.is_dir:
        raise malformed(what, "has a root that is no directory")
    return entry


def _item_of(
    row: object, locators: Sequence[Locator | None], index: int, *, what: str
) -> BranchItem:
    if not isinstance(row, list) or len(row) != _BRANCH_FIELDS:
        raise malformed(what, "has a child of the wrong shape")
    last_name, node_id, *counts = row
    entries, *totals = ints(counts, what=what)
    if type(last_name) is not bytes or not is_file_name(last_name) or not is_id(node_id):
        raise malformed(what, "has a malformed child")
    if entries < 1 or min(totals) < 0:
        raise malformed(what, "has a child with impossible counts")
    locator = locators[index] if index < len(locators) else None
    return BranchItem(last_name, Ref(node_id, locator), entries, Totals(*totals))
