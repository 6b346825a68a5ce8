"""Moving a live layer from frozen layers onto what was made of them: a commit, or one layer.

Rows of the live layer may speak of bodies in the frozen layers, and of directories of the old
base. What was made says the same of both, so rows are rewritten one by one while the frozen layers
are still there; at every moment all of it reads the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TypeAlias

from workspacefs.ids import FileId
from workspacefs.layers.bodies import BodyContent, OwnFile, Run
from workspacefs.layers.layer import Layer
from workspacefs.layers.rows import (
    ContentDesc,
    InodeRow,
    OwnFileDesc,
    RunDesc,
    decode_inode,
    encode_inode,
    is_inode_key,
)
from workspacefs.objects.entry import Entry, Subtree

_SLICE_ROWS = 500


FindState: TypeAlias = Callable[[FileId], Entry | InodeRow | None]
"""Returns what was made of a file that the frozen layers had changed; None for all others."""


def rebase_rows(live: Layer, find: FindState, gone: Collection[int]) -> Iterator[None]:
    """Rewrite the inode rows of `live`; yields between slices, when other work may go on.

    Args:
        live: The layer.
        find: What the commit or layer has instead.
        gone: Numbers of the layers that it was made of.
    """
    after = b"I"
    while True:
        keys = live.rows.keys_after(after, b"I", _SLICE_ROWS)
        if not keys:
            return
        # No other change may come between reading the rows and writing them.
        changed: list[tuple[bytes, bytes | None]] = []
        for key in filter(is_inode_key, keys):
            value = live.rows.get(key)
            assert value is not None
            row = decode_inode(value)
            file_id = FileId(int.from_bytes(key[1:], "big"))
            content = _rebased_desc(row.content, find(file_id), gone)
            if content is not row.content:
                changed.append((key, encode_inode(row._replace(content=content))))
        if changed:
            live.rows.commit(changed)
        after = keys[-1]
        yield


def _rebased_desc(
    content: ContentDesc, made: Entry | InodeRow | None, gone: Collection[int]
) -> ContentDesc:
    match content:
        case Subtree() if isinstance(made, Entry):  # layers alone do not move the base
            return made.content
        case RunDesc(number, _, _) if number in gone and made is not None:
            return made.content
        case OwnFileDesc(number) if number in gone and made is not None:
            return made.content
        case OwnFileDesc(lower=lower) if lower is not None:
            return content._replace(lower=_rebased_desc(lower, made, gone))
        case _:
            return content


def rebased_content(
    content: BodyContent, made: BodyContent, gone: Collection[int], *, moves_base: bool
) -> BodyContent:
    """Return what takes the place of a content in memory.

    Args:
        content: What a file or directory has.
        made: What the commit or layer has instead.
        gone: As for rebase_rows.
        moves_base: Whether it is a commit, so that directories show another base.
    """
    match content:
        case Subtree() if moves_base:
            return made
        case Run() if content.layer.number in gone:
            return made
        case OwnFile() if content.layer.number in gone:
            return made
        case OwnFile():
            content.lower = rebased_content(content.lower, made, gone, moves_base=moves_base)
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
