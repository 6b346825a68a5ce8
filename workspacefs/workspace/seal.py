"""From layers to a tree: everything that a commit says of a session's state at one moment.

Directories are rebuilt from the bottom up, and only those on the way to a change. Bodies become
chunks; a file whose bytes turn out as they were gets the ids it had.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from workspacefs.chunking.parameters import ChunkParameters
from workspacefs.ids import FileId
from workspacefs.layers.bodies import ChunkSource, is_zero_span, read_body
from workspacefs.layers.rows import InodeRow, OwnFileDesc, RunDesc
from workspacefs.objects.commits import ChangeCounts
from workspacefs.objects.entry import Chunks, Content, Entry, Subtree
from workspacefs.objects.refs import Locator
from workspacefs.packs.writer import ObjectWriter
from workspacefs.trees.edit import edit_directory
from workspacefs.trees.parameters import TreeParameters
from workspacefs.workspace.ahead import ChangesAhead
from workspacefs.workspace.base import BaseStore, KnownObjects
from workspacefs.workspace.content import write_content
from workspacefs.workspace.pending import Pending, PendingFile
from workspacefs.workspace.reuse import chunks_to_reuse

SealProgress = Callable[[int, int], None]
"""Called with the files and bytes written so far."""


class SealSource(BaseStore, ChunkSource, Protocol):
    """Gives the objects of the base."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A session's state as a tree."""

    root: Entry
    entries: dict[FileId, Entry]
    """The new entries of all files and directories that were changed or rebuilt."""
    counts: ChangeCounts


_CONTENTS_MAX: Final = 100_000
"""About 60 MB. What is past that is read and stored again by the next save."""


class SealedContents:
    """What bodies in frozen layers were made into, so that saving again what has not changed since
    reads nothing, and what is only in another layer now is not stored twice. A frozen body never
    changes.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[FileId, object, int], tuple[Content, int]] = {}
        self._fresh: dict[tuple[FileId, object, int], tuple[Content, int]] = {}
        self._chunks: dict[bytes, Locator] = {}

    def find(self, file_id: FileId, row: InodeRow) -> tuple[Content, int] | None:
        """Return the content and size of a body, or None."""
        return self._known.get((file_id, row.content, row.size_bytes))

    def find_chunk(self, object_id: bytes) -> Locator | None:
        """Return where a chunk of such a body lies, or None."""
        return self._chunks.get(object_id)

    def add(self, file_id: FileId, row: InodeRow, content: Content, size_bytes: int) -> None:
        """Note what a body was made into; it counts once keep() says that all is stored."""
        self._fresh[file_id, row.content, row.size_bytes] = content, size_bytes

    def keep(self) -> None:
        """Take what was added since the last call for stored."""
        fresh, self._fresh = self._fresh, {}
        if len(self._known) + len(fresh) > _CONTENTS_MAX:
            self._known, self._chunks = {}, {}
        self._known |= fresh
        for content, _ in fresh.values():
            if isinstance(content, Chunks):
                for ref in content.refs:
                    if ref.locator is not None:
                        self._chunks[ref.id] = ref.locator

    def drop(self) -> None:
        """Forget what was added since the last keep(): nobody knows whether it is stored."""
        self._fresh = {}


@dataclass(slots=True)
class _OpenDirectory:
    name: bytes
    file: PendingFile
    names: list[tuple[bytes, PendingFile | None, Entry | None]]
    changes: dict[bytes, Entry | None] = field(default_factory=dict)
    at: int = 0


class _Sealer:
    def __init__(
        self,
        pending: Pending,
        store: SealSource,
        writer: ObjectWriter,
        known: KnownObjects,
        trees: TreeParameters,
        chunks: ChunkParameters,
        progress: SealProgress,
        contents: SealedContents,
    ) -> None:
        self._pending = pending
        self._contents = contents
        self._ahead = ChangesAhead(pending)
        self._store = store
        self._writer = writer
        self._known = known
        self._trees = trees
        self._chunks = chunks
        self._progress = progress
        self.entries: dict[FileId, Entry] = {}
        self.added = self.modified = self.removed = 0
        self._files = self._bytes = 0

    def seal(self) -> Entry:
        """Rebuild every changed directory; return the new root."""
        # A stack, not recursion: nothing bounds how deep a tree is.
        root = self._pending.root_file()
        stack = [self._open(b"", root)]
        while True:
            top = stack[-1]
            if top.at < len(top.names):
                name, file, base = top.names[top.at]
                top.at += 1
                if file is not None and file.is_dir:
                    stack.append(self._open(name, file))
                else:
                    self._change(top, name, file, base)
                continue
            entry = self._close(stack.pop())
            if not stack:
                return entry
            _, file, base = stack[-1].names[stack[-1].at - 1]
            assert file is not None
            self._count(entry, base)
            if entry != base:
                stack[-1].changes[entry.name] = entry

    def _open(self, name: bytes, file: PendingFile) -> _OpenDirectory:
        return _OpenDirectory(name, file, self._ahead.changed_names(file))

    def _close(self, directory: _OpenDirectory) -> Entry:
        file = directory.file
        subtree = file.subtree
        if directory.changes:
            subtree = edit_directory(
                subtree, directory.changes, self._store, self._writer, self._trees
            )
        if file.row is None:
            assert file.base is not None
            entry = file.base._replace(content=subtree)
        else:
            entry = _entry_of(directory.name, file.file_id, file.row, 0, subtree)
        self.entries[file.file_id] = entry
        return entry

    def _change(
        self, top: _OpenDirectory, name: bytes, file: PendingFile | None, base: Entry | None
    ) -> None:
        if file is None:
            if base is not None:
                top.changes[name] = None
                self._count(None, base)
            return
        if file.row is None:
            return  # only marked: the change is in another name of it, or was taken back
        entry = self.entries.get(file.file_id)
        if entry is not None:
            entry = entry._replace(name=name)  # one more name of a file that is sealed already
        else:
            content, size = self._content(file.row, file.file_id, base)
            entry = _entry_of(name, file.file_id, file.row, size, content)
        self.entries[file.file_id] = entry
        self._count(entry, base)
        if entry != base:
            top.changes[name] = entry

    def _content(self, row: InodeRow, file_id: FileId, base: Entry | None) -> tuple[Content, int]:
        if not self._pending.is_in_layer(row):
            assert not isinstance(row.content, RunDesc | OwnFileDesc)
            return row.content, row.size_bytes
        sealed = self._contents.find(file_id, row)
        if sealed is not None:
            return sealed
        if base is not None:
            self._known.learn_content(base, self._store)
        body, size_bytes = self._pending.body(row, file_id), row.size_bytes
        content, size = write_content(
            lambda offset, length: read_body(
                body, offset, max(0, min(length, size_bytes - offset)), self._store
            ),
            size_bytes,
            self._writer,
            self._chunks,
            is_zero=lambda offset, length: is_zero_span(body, offset, length),
            find_known=chunks_to_reuse(body, size_bytes, self._store, self._chunks),
        )
        self._files += 1
        self._bytes += size
        self._progress(self._files, self._bytes)
        self._contents.add(file_id, row, content, size)
        return content, size

    def _count(self, entry: Entry | None, base: Entry | None) -> None:
        if entry is None:
            assert base is not None
            self.removed += 1
            if isinstance(base.content, Subtree):
                self.removed += base.content.totals.files + base.content.totals.dirs
        elif base is None:
            self.added += 1
        elif not entry.is_dir and entry != base:
            self.modified += 1


def seal_pending(
    pending: Pending,
    store: SealSource,
    writer: ObjectWriter,
    known: KnownObjects,
    trees: TreeParameters,
    chunks: ChunkParameters,
    *,
    progress: SealProgress = lambda files, size_bytes: None,
    contents: SealedContents | None = None,
) -> Sealed:
    """Write the tree of a session's state; nothing of it counts before the writer has finished.

    Args:
        pending: The state.
        store: Gives the nodes of the base.
        writer: Takes chunks and nodes; should have been made with `known.find`.
        known: Learns what the base has, so that it is not stored again.
        trees: Shape of trees in this workspace.
        chunks: Where to cut files in this workspace.
        progress: Called after each file.
        contents: What was sealed before, if all of `pending` is frozen.
    """
    contents = contents or SealedContents()
    sealer = _Sealer(pending, store, writer, known, trees, chunks, progress, contents)
    root = sealer.seal()
    if pending.reach_other_names(set(sealer.entries)):
        # Files with other names were changed: seal again with those names included. What was
        # written is found by its id and not written twice.
        sealer = _Sealer(pending, store, writer, known, trees, chunks, progress, contents)
        root = sealer.seal()
    counts = ChangeCounts(added=sealer.added, modified=sealer.modified, removed=sealer.removed)
    return Sealed(root, sealer.entries, counts)


def _entry_of(
    name: bytes, file_id: FileId, row: InodeRow, size_bytes: int, content: Content
) -> Entry:
    return Entry(
        name,
        row.mode,
        row.uid,
        row.gid,
        size_bytes,
        row.mtime_ns,
        row.ctime_ns,
        file_id,
        row.nlink,
        content,
        row.xattrs,
    )
