"""Moving a live layer from frozen layers onto the commit that was made of them.

Rows of the live layer may speak of bodies in the frozen layers, and of directories of the old
base. Both have entries in the new commit that say the same, so rows are rewritten one by one while
the frozen layers are still there; at every moment all of it reads the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from workspacefs.ids import FileId
from workspacefs.layers.bodies import BodyContent, OwnFile, Run
from workspacefs.layers.layer import Layer
from workspacefs.layers.rows import (
    ContentDesc,
    OwnFileDesc,
    RunDesc,
    decode_inode,
    encode_inode,
)
from workspacefs.objects.entry import Entry, Subtree

_SLICE_ROWS = 500


def rebase_rows(
    live: Layer, entries: Mapping[FileId, Entry], sealed: Collection[int]
) -> Iterator[None]:
    """Rewrite the inode rows of `live`; yields between slices, when other work may go on.

    Args:
        live: The layer.
        entries: What the commit has for each file that the sealed layers had changed.
        sealed: Numbers of the layers that the commit was made of.
    """
    after = b"I"
    while True:
        keys = live.rows.keys_after(after, b"I", _SLICE_ROWS)
        if not keys:
            return
        # No other change may come between reading the rows and writing them.
        changed: list[tuple[bytes, bytes | None]] = []
        for key in keys:
            value = live.rows.get(key)
            assert value is not None
            row = decode_inode(value)
            file_id = FileId(int.from_bytes(key[1:], "big"))
            content = _rebased_desc(row.content, entries.get(file_id), sealed)
            if content is not row.content:
                changed.append((key, encode_inode(row._replace(content=content))))
        if changed:
            live.rows.commit(changed)
        after = keys[-1]
        yield


def _rebased_desc(
    content: ContentDesc, entry: Entry | None, sealed: Collection[int]
) -> ContentDesc:
    match content:
        case Subtree() if entry is not None:
            return entry.content
        case RunDesc(number, _, _) if number in sealed and entry is not None:
            return entry.content
        case OwnFileDesc(number, _, _) if number in sealed and entry is not None:
            return entry.content
        case OwnFileDesc(number, lower_bytes, lower) if lower is not None:
            return OwnFileDesc(number, lower_bytes, _rebased_desc(lower, entry, sealed))
        case _:
            return content


def rebased_content(
    content: BodyContent, entry: Entry | None, sealed: Collection[int]
) -> BodyContent:
    """Return what takes the place of a content in memory. A file without an entry in the commit
    has lost its last name; it keeps what it has.
    """
    if entry is None:
        return content
    match content:
        case Subtree():
            return entry.content
        case Run() if content.layer.number in sealed:
            return entry.content
        case OwnFile() if content.layer.number in sealed:
            return entry.content
        case OwnFile():
            content.lower = rebased_content(content.lower, entry, sealed)
            return content
        case _:
            return content


def is_in(content: BodyContent, numbers: Collection[int]) -> bool:
    """Tell whether reading a content needs one of these layers."""
    match content:
        case Run():
            return content.layer.number in numbers
        case OwnFile():
            return content.layer.number in numbers or is_in(content.lower, numbers)
        case _:
            return False
