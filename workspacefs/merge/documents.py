"""Conflicts as programs read them."""

from __future__ import annotations

import os

from workspacefs.ids import chunk_id_of, chunk_list_id_of
from workspacefs.merge.conflicts import Conflict, Version
from workspacefs.objects.chunk_lists import encode_chunk_list
from workspacefs.objects.entry import Chunks, Device, Entry, LongContent, Subtree


def conflict_document(conflict: Conflict) -> dict[str, object]:
    """Return one conflict with the versions of all three trees; null where one has none.

    Paths are text as os.fsdecode gives it.
    """
    return {
        "path": os.fsdecode(conflict.path),
        "kind": conflict.kind.value,
        "base": _version_document(conflict.base),
        "ours": _version_document(conflict.ours),
        "theirs": _version_document(conflict.theirs),
        "beside": None if conflict.beside is None else os.fsdecode(conflict.beside),
    }


def _version_document(version: Version | None) -> dict[str, object] | None:
    if version is None:
        return None
    entry = version.entry
    return {
        "path": os.fsdecode(version.path),
        "id": id_of_content(entry),
        "mode": f"{entry.mode:06o}",
        "size_bytes": entry.size_bytes,
        "file_id": f"{entry.file_id:x}",
    }


def id_of_content(entry: Entry) -> str | None:
    """Return what names the content of a file, hex: equal for equal bytes of files of one kind.

    The id of its chunk, or of its chunk list, or of a directory's top node; null: it has none.
    """
    match entry.content:
        case None:
            return chunk_id_of(b"").hex() if entry.is_regular else None
        case bytes(data):
            return chunk_id_of(data).hex()
        case Chunks((only,)):
            return only.id.hex()
        case Chunks(refs):
            return chunk_list_id_of(encode_chunk_list(list(refs))[0]).hex()
        case LongContent(ref):
            return ref.id.hex()
        case Subtree(root):
            return None if root is None else root.id.hex()
        case Device():
            return None
