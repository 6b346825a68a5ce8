"""Rows of a layer's database: keys, and the two kinds of values, byte for byte.

    I + file id (8, big endian)               -> inode row
    D + directory's file id (8) + name        -> name row
    B + file id (8) + group (4)               -> copied-block bitmap of an own file
    M + text                                  -> facts about the layer itself
    I + file id (8) + W, P + process id (16)  -> who changed what: writers.py

An inode row is a msgpack array: mode, uid, gid, size, mtime_ns, ctime_ns, atime_ns, nlink,
content, flat xattrs. A name row is the child's file id (8, big endian), or empty: a whiteout.

A name row also marks: whenever anything at or below a name differs from the layers beneath, the
name has a row in every directory up to the root. Status and commit walk name rows only.
This module must not know LMDB or files.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

from workspacefs.errors import IntegrityError
from workspacefs.ids import FileId
from workspacefs.objects.entry import Chunks, Device, LongContent, Subtree, Totals, Xattrs
from workspacefs.objects.refs import ChunkRef, Locator, Ref

_INODE = struct.Struct(">cQ")
_GROUP = struct.Struct(">cQI")
_FILE_ID = struct.Struct(">Q")

WHITEOUT: Final = b""
"""Value of a name row that hides the name in the layers beneath."""
BLOCK_BYTES: Final = 64 * 1024
"""Unit in which an own file copies from what it lies over."""
BLOCKS_PER_GROUP: Final = 4096
RUN_TAG: Final = 3
"""First element of a stored run."""


class RunDesc(NamedTuple):
    """Stored form of a body that is one run in a layer's segment."""

    layer_number: int
    offset: int
    capacity_bytes: int


class OwnFileDesc(NamedTuple):
    """Stored form of a body that has a sparse file of its own in a layer."""

    layer_number: int
    lower_bytes: int
    """Blocks at or past this offset never come from `lower`."""
    lower: ContentDesc
    file_id: int = 0
    """Under which the layer has it, if that is not the id of the row: see vfs/switching.py."""


ContentDesc: TypeAlias = (
    bytes | Chunks | LongContent | Subtree | Device | RunDesc | OwnFileDesc | None
)


class InodeRow(NamedTuple):
    """One inode as a layer keeps it."""

    mode: int
    uid: int
    gid: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    atime_ns: int
    nlink: int
    content: ContentDesc
    xattrs: Xattrs


def gone_row() -> bytes:
    """Return the inode row of a file that has no name any more, where layers beneath may have
    another: nothing but its link count of 0 means something.
    """
    return _GONE


def inode_key(file_id: int) -> bytes:
    """Return the key of an inode row."""
    return _INODE.pack(b"I", file_id)


def is_inode_key(key: bytes) -> bool:
    """Tell whether a key that begins as those of inode rows do is one."""
    return len(key) == _INODE.size


def name_key(parent_id: int, name: bytes) -> bytes:
    """Return the key of a name row; with an empty name, the prefix of a directory's rows."""
    return _INODE.pack(b"D", parent_id) + name


def block_key(file_id: int, group: int) -> bytes:
    """Return the key of one bitmap of copied blocks."""
    return _GROUP.pack(b"B", file_id, group)


def encode_name(file_id: int) -> bytes:
    """Return the value of a name row that leads to a file."""
    return _FILE_ID.pack(file_id)


def decode_name(value: bytes) -> FileId | None:
    """Return the file id of a name row, or None for a whiteout."""
    if not value:
        return None
    if len(value) != 8:
        raise _malformed("a name row")
    return FileId(_FILE_ID.unpack(value)[0])


_pack = msgpack.Packer(use_bin_type=True).pack


def pack_inode(fields: tuple[object, ...]) -> bytes:
    """Return the value of an inode row of stored fields, in the order of InodeRow."""
    row = _pack(fields)
    assert type(row) is bytes
    return row


_GONE: Final = pack_inode((0, 0, 0, 0, 0, 0, 0, 0, None, []))


def encode_inode(row: InodeRow) -> bytes:
    """Return the value of an inode row."""
    flat = [part for pair in row.xattrs for part in pair]
    return pack_inode((*row[:8], encode_content(row.content), flat))


def decode_inode(value: bytes) -> InodeRow:
    """Return the inode of a row.

    Raises:
        IntegrityError: The row is not one that we would have written.
    """
    try:
        fields = msgpack.unpackb(value, raw=False)
        content = fields[8]
        if isinstance(content, list | int):
            fields[8] = _content_in(content)
        flat = fields[9]
        fields[9] = tuple(zip(flat[::2], flat[1::2], strict=True)) if flat else ()
        return InodeRow(*fields)
    except (ValueError, TypeError, IndexError, msgpack.exceptions.UnpackException) as exc:
        raise _malformed("an inode row") from exc


def encode_content(content: ContentDesc) -> object:
    """Return what of a content stands in an inode row: [tag, facts ...], bytes, a device's number,
    or None.
    """
    match content:
        case Chunks(refs):
            return [0, *(part for ref in refs for part in (ref.id, ref.size_bytes, ref.locator))]
        case LongContent(ref):
            return [1, ref.id, ref.locator]
        case Subtree(None, totals):
            return [2, None, None, *totals]
        case Subtree(root, totals):
            assert root is not None
            return [2, root.id, root.locator, *totals]
        case RunDesc():
            return (RUN_TAG, *content)
        case OwnFileDesc(number, lower_bytes, lower, 0):
            return [4, number, lower_bytes, encode_content(lower)]
        case OwnFileDesc(number, lower_bytes, lower, file_id):
            return [4, number, lower_bytes, encode_content(lower), file_id]
        case Device(number):
            return number
        case _:
            return content


def _content_in(stored: object) -> ContentDesc:
    if stored is None or isinstance(stored, bytes):
        return stored
    if isinstance(stored, int):
        return Device(stored)
    if not isinstance(stored, list) or not stored:
        raise _malformed("the content of an inode row")
    tag: int = stored[0]
    parts: list[Any] = stored[1:]
    match tag:
        case 0:
            refs = (
                ChunkRef(parts[at], parts[at + 1], _locator_in(parts[at + 2]))
                for at in range(0, len(parts), 3)
            )
            return Chunks(tuple(refs))
        case 1:
            return LongContent(Ref(parts[0], _locator_in(parts[1])))
        case 2:
            root = None if parts[0] is None else Ref(parts[0], _locator_in(parts[1]))
            return Subtree(root, Totals(*parts[2:]))
        case 3:  # RUN_TAG
            return RunDesc(*parts)
        case 4:
            return OwnFileDesc(parts[0], parts[1], _content_in(parts[2]), *parts[3:])
        case _:
            raise _malformed("the content of an inode row")


def _locator_in(stored: list[Any] | None) -> Locator | None:
    return None if stored is None else Locator(*stored)


def _malformed(what: str) -> IntegrityError:
    return IntegrityError(f"{what} of a layer is damaged", kind="layer.row_malformed")
