"""Tree nodes: leaves hold entries, branches hold the last name and totals of each child.

A body is canonical bytes without locators. The references of a body have one fixed order, and the
locators that stand beside a stored node come in that order. Entries are decoded one by one, when
asked for: a lookup in a large leaf touches one row.
"""

from __future__ import annotations

import stat
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from workspacefs.ids import ID_BYTES, FileId
from workspacefs.names import NAME_MAX_BYTES, are_file_names_in_order, is_file_name
from workspacefs.objects.encoding import decode, encode, ints, malformed
from workspacefs.objects.entry import (
    CHUNKS_MAX_IN_ENTRY,
    INLINE_MAX_BYTES,
    XATTR_VALUE_MAX_BYTES,
    Chunks,
    Content,
    Device,
    Entry,
    LongContent,
    Subtree,
    Totals,
    Xattrs,
)
from workspacefs.objects.refs import ChunkRef, Locator, Ref

_LINK_TARGET_MAX_BYTES: Final = 4095
_ROW_FIELDS: Final = 11
_BRANCH_FIELDS: Final = 7
_INT64_MAX: Final = 2**63 - 1
_KINDS: Final = frozenset(
    (
        stat.S_IFREG,
        stat.S_IFDIR,
        stat.S_IFLNK,
        stat.S_IFIFO,
        stat.S_IFSOCK,
        stat.S_IFCHR,
        stat.S_IFBLK,
    )
)


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
        starts = self._ref_starts
        if starts is None:
            starts = self._ref_starts = list(_ref_starts(self._rows))
        return _entry_of(self._rows[index], self._locators, starts[index], what=self._what)

    def iter_entries(self, start: int = 0) -> Iterator[Entry]:
        """Yield the entries from number `start` on, in order of name."""
        for index in range(start, len(self.names)):
            yield self.entry(index)

    def is_same_row(self, index: int, other: LeafNode, other_index: int) -> bool:
        """Tell whether two rows are equal, without building entries."""
        return self._rows[index] == other._rows[other_index]

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

    def child_for(self, name: bytes) -> BranchItem | None:
        """Return the one child that may hold `name`, or None when it is past the end."""
        index = bisect_left(self.last_names, name)
        return self.items[index] if index < len(self.items) else None


Node: TypeAlias = LeafNode | BranchNode


def encode_leaf(entries: Sequence[Entry]) -> tuple[bytes, list[Ref]]:
    """Return the body of a leaf, and its references in body order."""
    refs: list[Ref] = []
    rows = [_row_of(entry, refs) for entry in entries]
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
        if not all(isinstance(row, list) and len(row) == _ROW_FIELDS for row in rows):
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
    return _row_of(entry, refs), refs


def decode_root_entry(row: object, locators: Sequence[Locator | None], *, what: str) -> Entry:
    """Return the entry of a row that stands alone; its name must be empty, its kind a directory.

    Raises:
        IntegrityError: The row is malformed.
    """
    if not isinstance(row, list) or len(row) != _ROW_FIELDS or row[0] != b"":
        raise malformed(what, "has no root directory")
    entry = _entry_of(row, locators, 0, what=what)
    if not entry.is_dir:
        raise malformed(what, "has a root that is no directory")
    return entry


def _row_of(entry: Entry, refs: list[Ref]) -> list[object]:
    content = entry.content
    stored: object
    match content:
        case None | bytes():
            stored = content
        case Chunks(chunks):
            refs.extend(chunks)
            stored = [part for chunk in chunks for part in (chunk.id, chunk.size_bytes)]
        case LongContent(ref):
            refs.append(ref)
            stored = [ref.id]
        case Subtree(root, totals):
            if root is not None:
                refs.append(root)
            stored = [None if root is None else root.id, *totals]
        case Device(number):
            stored = number
    xattrs = [part for pair in entry.xattrs for part in pair]
    return [*entry[:9], stored, xattrs]


def _ref_starts(rows: list[list[object]]) -> Iterator[int]:
    start = 0
    for row in rows:
        yield start
        content = row[9]
        if type(content) is list:
            if len(content) == 5:  # a directory: [root or nil, four totals]
                start += content[0] is not None
            else:
                start += (len(content) + 1) // 2


def _entry_of(
    row: list[object], locators: Sequence[Locator | None], first_ref: int, *, what: str
) -> Entry:
    name, mode, uid, gid, size, mtime, ctime, file_id, nlink, stored, xattrs = row
    if not (
        type(mode) is int
        and type(uid) is int
        and type(gid) is int
        and type(size) is int
        and type(mtime) is int
        and type(ctime) is int
        and type(file_id) is int
        and type(nlink) is int
    ):
        raise malformed(what, f"has fields of the wrong type in entry {name!r}")
    if not (
        0 <= mode < 1 << 16
        and stat.S_IFMT(mode) in _KINDS
        and 0 <= uid < 1 << 32
        and 0 <= gid < 1 << 32
        and 0 <= size <= _INT64_MAX
        and 0 < file_id <= _INT64_MAX
        and 0 < nlink < 1 << 32
        and -(1 << 63) <= mtime <= _INT64_MAX
        and -(1 << 63) <= ctime <= _INT64_MAX
    ):
        raise malformed(what, f"has a field out of range in entry {name!r}")
    content = _content_of(
        stat.S_IFMT(mode), size, stored, locators, first_ref, what=f"{what} (entry {name!r})"
    )
    pairs = () if xattrs == [] else _xattrs_of(xattrs, what=what)
    assert type(name) is bytes  # names were checked with the node
    return Entry(name, mode, uid, gid, size, mtime, ctime, FileId(file_id), nlink, content, pairs)


def _content_of(
    kind: int,
    size: int,
    stored: object,
    locators: Sequence[Locator | None],
    first_ref: int,
    *,
    what: str,
) -> Content:
    locator = locators[first_ref] if first_ref < len(locators) else None
    match kind, stored:
        case stat.S_IFREG, None if size == 0:
            return None
        case ((stat.S_IFIFO | stat.S_IFSOCK), None) if size == 0:
            return None
        case stat.S_IFREG, bytes(data) if 0 < len(data) == size <= INLINE_MAX_BYTES:
            return data
        case stat.S_IFLNK, bytes(data) if (
            0 < len(data) == size <= _LINK_TARGET_MAX_BYTES and b"\0" not in data
        ):
            return data
        case ((stat.S_IFCHR | stat.S_IFBLK), int(number)) if (
            type(number) is int and 0 <= number < 1 << 32 and size == 0
        ):
            return Device(number)
        case stat.S_IFDIR, [root, *counts] if len(counts) == 4 and size == 0:
            if root is not None and not _is_id(root):
                raise malformed(what, "has a root of the wrong length")
            totals = Totals(*ints(counts, what=what))
            if min(totals) < 0 or (root is None and totals != Totals()):
                raise malformed(what, "has impossible totals")
            return Subtree(None if root is None else Ref(root, locator), totals)  # type: ignore[arg-type]
        case stat.S_IFREG, [list_id] if _is_id(list_id):
            return LongContent(Ref(list_id, locator))  # type: ignore[arg-type]
        case stat.S_IFREG, [*parts] if 0 < len(parts) <= 2 * CHUNKS_MAX_IN_ENTRY:
            refs = chunk_refs_of(parts, locators, first_ref, what=what)
            if sum(ref.size_bytes for ref in refs) != size:
                raise malformed(what, "has chunks that do not add up to its size")
            return Chunks(refs)
        case _:
            raise malformed(what, "has content of the wrong kind")


def chunk_refs_of(
    parts: Sequence[object], locators: Sequence[Locator | None], first_ref: int, *, what: str
) -> tuple[ChunkRef, ...]:
    """Return the chunk references that a flat list of ids and sizes stands for.

    Raises:
        IntegrityError: An id is not 32 bytes, or a size is not a positive integer.
    """
    if len(parts) % 2:
        raise malformed(what, "has a chunk without a size")
    known = len(locators)
    refs = []
    for index in range(0, len(parts), 2):
        chunk_id, size = parts[index], parts[index + 1]
        if not _is_id(chunk_id) or type(size) is not int or size <= 0:
            raise malformed(what, "has a malformed chunk reference")
        at = first_ref + index // 2
        refs.append(ChunkRef(chunk_id, size, locators[at] if at < known else None))  # type: ignore[arg-type]
    return tuple(refs)


def _is_id(value: object) -> bool:
    return type(value) is bytes and len(value) == ID_BYTES


def _xattrs_of(stored: object, *, what: str) -> Xattrs:
    if not isinstance(stored, list) or len(stored) % 2:
        raise malformed(what, "has malformed extended attributes")
    names, values = stored[::2], stored[1::2]
    for name, value in zip(names, values, strict=True):
        if not (
            type(name) is bytes
            and 0 < len(name) <= NAME_MAX_BYTES
            and b"\0" not in name
            and type(value) is bytes
            and len(value) <= XATTR_VALUE_MAX_BYTES
        ):
            raise malformed(what, "has a malformed extended attribute")
    if sorted(set(names)) != names:
        raise malformed(what, "has extended attributes out of order")
    return tuple(zip(names, values, strict=True))


def _item_of(
    row: object, locators: Sequence[Locator | None], index: int, *, what: str
) -> BranchItem:
    if not isinstance(row, list) or len(row) != _BRANCH_FIELDS:
        raise malformed(what, "has a child of the wrong shape")
    last_name, node_id, *counts = row
    entries, *totals = ints(counts, what=what)
    if type(last_name) is not bytes or not is_file_name(last_name) or not _is_id(node_id):
        raise malformed(what, "has a malformed child")
    if entries < 1 or min(totals) < 0:
        raise malformed(what, "has a child with impossible counts")
    locator = locators[index] if index < len(locators) else None
    return BranchItem(last_name, Ref(node_id, locator), entries, Totals(*totals))
