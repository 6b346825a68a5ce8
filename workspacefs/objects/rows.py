"""Rows of leaves: an entry as the array that is stored, and back, trusting nothing.

Reading rows is the hottest code here: listing a directory reads each of its rows once.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from typing import Final

from workspacefs.errors import IntegrityError
from workspacefs.ids import ID_BYTES, FileId
from workspacefs.names import NAME_MAX_BYTES
from workspacefs.objects.encoding import ints, malformed
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

ROW_FIELDS: Final = 11
_LINK_TARGET_MAX_BYTES: Final = 4095
_INT64_MAX: Final = 2**63 - 1
_INT64_MIN: Final = -(2**63)
_KIND_MASK: Final = 0o170000
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


def row_of(entry: Entry, refs: list[Ref]) -> list[object]:
    """Return the row of an entry; append its references to `refs`."""
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


def iter_ref_starts(rows: list[list[object]]) -> Iterator[int]:
    """Yield for each row the number of references in the rows before it, then that of all."""
    start = 0
    for row in rows:
        yield start
        content = row[9]
        if type(content) is list:
            if len(content) == 5:  # a directory: [root or nil, four totals]
                start += content[0] is not None
            else:
                start += (len(content) + 1) // 2
    yield start


def entry_of_row(
    row: list[object], locators: Sequence[Locator | None], first_ref: int, *, what: str
) -> Entry:
    """Return the entry that a row of ROW_FIELDS fields stands for.

    Args:
        row: Decoded; its name is checked by the caller, all else here.
        locators: Of the whole leaf.
        first_ref: Number of the row's first reference.
        what: Names the leaf in errors.

    Raises:
        IntegrityError: The row is not one that we would have written.
    """
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
    kind = mode & _KIND_MASK
    if not (
        0 <= mode <= 0xFFFF
        and kind in _KINDS
        and 0 <= uid <= 0xFFFFFFFF
        and 0 <= gid <= 0xFFFFFFFF
        and 0 <= size <= _INT64_MAX
        and 0 < file_id <= _INT64_MAX
        and 0 < nlink <= 0xFFFFFFFF
        and _INT64_MIN <= mtime <= _INT64_MAX
        and _INT64_MIN <= ctime <= _INT64_MAX
    ):
        raise malformed(what, f"has a field out of range in entry {name!r}")
    content: Content
    if kind == stat.S_IFREG:
        content = _file_content(name, size, stored, locators, first_ref, what)
    elif kind == stat.S_IFDIR:
        content = _subtree(name, size, stored, locators, first_ref, what)
    else:
        content = _other_content(name, kind, size, stored, what)
    pairs = () if xattrs == [] else _xattrs_of(xattrs, what=what)
    assert type(name) is bytes  # names were checked with the node
    return Entry(name, mode, uid, gid, size, mtime, ctime, FileId(file_id), nlink, content, pairs)


def _file_content(
    name: object,
    size: int,
    stored: object,
    locators: Sequence[Locator | None],
    first_ref: int,
    what: str,
) -> Content:
    if type(stored) is list:
        parts = len(stored)
        if parts == 1 and is_id(stored[0]):
            locator = locators[first_ref] if first_ref < len(locators) else None
            return LongContent(Ref(stored[0], locator))
        if 0 < parts <= 2 * CHUNKS_MAX_IN_ENTRY:
            refs = chunk_refs_of(stored, locators, first_ref, what=what)
            total = refs[0].size_bytes if parts == 2 else sum(ref.size_bytes for ref in refs)
            if total == size:
                return Chunks(refs)
            raise malformed(what, f"has chunks that do not add up to the size of entry {name!r}")
    elif type(stored) is bytes:
        if 0 < len(stored) == size <= INLINE_MAX_BYTES:
            return stored
    elif stored is None and size == 0:
        return None
    raise _wrong_kind(name, what)


def _subtree(
    name: object,
    size: int,
    stored: object,
    locators: Sequence[Locator | None],
    first_ref: int,
    what: str,
) -> Subtree:
    if type(stored) is not list or len(stored) != 5 or size != 0:
        raise _wrong_kind(name, what)
    root, *counts = stored
    totals = Totals(*ints(counts, what=what))
    if min(totals) < 0 or (root is None and any(totals)):
        raise malformed(what, f"has impossible totals in entry {name!r}")
    if root is None:
        return Subtree(None, totals)
    if not is_id(root):
        raise malformed(what, f"has a root of the wrong length in entry {name!r}")
    locator = locators[first_ref] if first_ref < len(locators) else None
    return Subtree(Ref(root, locator), totals)


def _other_content(name: object, kind: int, size: int, stored: object, what: str) -> Content:
    match kind:
        case stat.S_IFLNK if (
            type(stored) is bytes
            and 0 < len(stored) == size <= _LINK_TARGET_MAX_BYTES
            and b"\0" not in stored
        ):
            return stored
        case stat.S_IFCHR | stat.S_IFBLK if (
            type(stored) is int and 0 <= stored <= 0xFFFFFFFF and size == 0
        ):
            return Device(stored)
        case stat.S_IFIFO | stat.S_IFSOCK if stored is None and size == 0:
            return None
        case _:
            raise _wrong_kind(name, what)


def _wrong_kind(name: object, what: str) -> IntegrityError:
    return malformed(what, f"has content of the wrong kind in entry {name!r}")


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
        if not is_id(chunk_id) or type(size) is not int or size <= 0:
            raise malformed(what, "has a malformed chunk reference")
        at = first_ref + index // 2
        refs.append(ChunkRef(chunk_id, size, locators[at] if at < known else None))  # type: ignore[arg-type]
    return tuple(refs)


def is_id(value: object) -> bool:
    """Tell whether `value` has the form of an id."""
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
