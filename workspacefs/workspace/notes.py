"""What a commit knows beside its files, as a tree of its own: see docs/format.md, Notes.

Being a tree it is stored, fetched and kept as the files are; of notes that are files, only the
content says something.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from typing import Final, TypeAlias

from workspacefs.chunking.parameters import ChunkParameters
from workspacefs.errors import NotFoundError
from workspacefs.ids import ROOT_FILE_ID
from workspacefs.objects.entry import Entry
from workspacefs.packs.writer import ObjectWriter
from workspacefs.trees.build import build_directory
from workspacefs.trees.parameters import TreeParameters
from workspacefs.trees.walk import resolve_path
from workspacefs.workspace.content import read_content, write_content
from workspacefs.workspace.listing import TreeStore

CONFLICTS: Final = b"conflicts"
WRITERS: Final = b"writers"

Note: TypeAlias = "bytes | Entry | Mapping[bytes, Note]"
"""Content of a file; or anything that a tree holds, under another name; or a directory of notes."""
NO_NOTES: Final[Mapping[bytes, Note]] = {}


def store_notes(
    notes: Mapping[bytes, Note],
    writer: ObjectWriter,
    *,
    tree_params: TreeParameters,
    chunk_params: ChunkParameters,
) -> Entry | None:
    """Store notes; return the root for Commit.notes, or None: there are none.

    Args:
        notes: By name. Empty directories and files are left out.
        writer: Gets what is not stored yet.
        tree_params: Shape of trees in this workspace.
        chunk_params: Where to cut files in this workspace.
    """

    def entry_of(name: bytes, note: Note) -> Entry | None:
        if isinstance(note, Entry):
            return note._replace(name=name)
        if isinstance(note, bytes):
            return file_of(name, note) if note else None
        below = [found for part in sorted(note) if (found := entry_of(part, note[part]))]
        if not below:
            return None
        links = 2 + sum(entry.is_dir for entry in below)
        subtree = build_directory(below, writer, tree_params)
        return Entry(
            name, stat.S_IFDIR | 0o755, 0, 0, 0, 0, 0, ROOT_FILE_ID, links, subtree
        )  # fmt: skip

    def file_of(name: bytes, data: bytes) -> Entry:
        content, size = write_content(
            lambda offset, length: data[offset : offset + length], len(data), writer, chunk_params
        )
        return Entry(name, stat.S_IFREG | 0o644, 0, 0, size, 0, 0, ROOT_FILE_ID, 1, content)

    return entry_of(b"", notes)


def find_note(notes: Entry | None, path: bytes, store: TreeStore) -> Entry | None:
    """Return what stands at a path of the notes, or None: nothing does."""
    if notes is None:
        return None
    try:
        return resolve_path(notes, path, store)
    except NotFoundError:
        return None


def read_note(notes: Entry | None, path: bytes, store: TreeStore) -> bytes:
    """Return the content of a note; nothing: it is not there."""
    found = find_note(notes, path, store)
    return b"" if found is None else read_content(found, store, 0, found.size_bytes)
