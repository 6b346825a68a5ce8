"""What a person calls changed: the pending changes of a session, by path and kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from workspacefs.ids import FileId, chunk_id_of
from workspacefs.layers.rows import InodeRow
from workspacefs.objects.entry import Chunks, Content, Entry, Subtree
from workspacefs.objects.refs import ChunkRef, Ref
from workspacefs.trees.nodes import NodeSource
from workspacefs.trees.walk import iter_entries, walk
from workspacefs.workspace.changes import ChangeKind, PathChange
from workspacefs.workspace.content import read_content
from workspacefs.workspace.pending import Pending, PendingFile

_COMPARE_BYTES: Final = 1 << 20
_TYPE_MASK: Final = 0o170000


@dataclass(frozen=True, slots=True)
class PendingChange:
    """One name that differs. Paths are relative to the root, names joined by "/"."""

    path: bytes
    kind: ChangeKind
    base: Entry | None
    """The base entry at `path`, or at `from_path` of a renamed file."""
    file: PendingFile | None
    from_path: bytes | None = None
    is_edited: bool = False
    """Of a renamed file: its bytes differ too."""


def iter_changes(pending: Pending) -> Iterator[PendingChange]:
    """Yield what differs, in order of path. A deleted directory is one change, not many.

    A file is renamed when its file id is at a new name and its old name is gone. A change of a file
    with several names is told of each.
    """
    reached: set[FileId] = set()
    changes = list(_iter_raw(pending, reached))
    if pending.reach_other_names(reached):
        changes = list(_iter_raw(pending, reached))
    gone = {
        change.base.file_id: change
        for change in changes
        if change.kind is ChangeKind.REMOVED and change.base is not None
    }
    moved: set[bytes] = set()
    told: list[PendingChange] = []
    for change in changes:
        if change.kind is ChangeKind.ADDED and change.file is not None:
            old = gone.pop(change.file.file_id, None)
            if old is not None and old.base is not None:
                moved.add(old.path)
                is_edited = _has_other_bytes(pending, change.file, old.base)
                told.append(
                    replace(
                        change, kind=ChangeKind.RENAMED, base=old.base, from_path=old.path,
                        is_edited=is_edited,
                    )
                )  # fmt: skip
                continue
        told.append(change)
    for change in told:
        if change.kind is not ChangeKind.REMOVED or change.path not in moved:
            yield change


def _iter_raw(pending: Pending, reached: set[FileId]) -> Iterator[PendingChange]:
    """Yield what differs, by names alone; note the files that names lead to."""
    root = pending.root_file()
    stack = [(b"", iter(pending.changed_names(root)))]
    while stack:
        prefix, names = stack[-1]
        step = next(names, None)
        if step is None:
            stack.pop()
            continue
        name, file, base = step
        path = prefix + name
        if file is None:
            if base is not None:
                yield PendingChange(path, ChangeKind.REMOVED, base, None)
            continue
        reached.add(file.file_id)
        kind = _kind_of(pending, file, base)
        if kind is not None:
            yield PendingChange(path, kind, base, file)
        if file.is_dir:
            below = (
                pending.names_over(file, base)
                if base is not None and base.is_dir and base.file_id != file.file_id
                else pending.changed_names(file)
            )
            stack.append((path + b"/", iter(below)))
        elif base is not None and base.is_dir:
            for entry in iter_entries(base.subtree, pending.source):
                yield PendingChange(path + b"/" + entry.name, ChangeKind.REMOVED, entry, None)


def _kind_of(pending: Pending, file: PendingFile, base: Entry | None) -> ChangeKind | None:
    row = file.row
    if base is None:
        return ChangeKind.ADDED
    if row is None:
        return None
    if (row.mode ^ base.mode) & _TYPE_MASK:
        return ChangeKind.TYPE
    if isinstance(row.content, Subtree):
        # Times of a directory change with what is in it, which is told by itself.
        is_same = (row.mode, row.uid, row.gid, row.xattrs) == (
            base.mode, base.uid, base.gid, base.xattrs,
        )  # fmt: skip
        return None if is_same else ChangeKind.ATTRIBUTES
    if _has_other_bytes(pending, file, base):
        return ChangeKind.MODIFIED
    is_same = (row.mode, row.uid, row.gid, row.xattrs, row.mtime_ns) == (
        base.mode, base.uid, base.gid, base.xattrs, base.mtime_ns,
    )  # fmt: skip
    return None if is_same else ChangeKind.ATTRIBUTES


def _has_other_bytes(pending: Pending, file: PendingFile, base: Entry) -> bool:
    row = file.row
    if row is None or isinstance(row.content, Subtree):
        return False
    if row.size_bytes != base.size_bytes:
        return True
    if not pending.is_in_layer(row):
        return row.content != base.content
    return any(
        pending.read(row, file.file_id, offset, length)
        != read_content(base, pending.source, offset, length)
        for offset, length in _spans(row)
    )


def _spans(row: InodeRow) -> Iterator[tuple[int, int]]:
    for offset in range(0, row.size_bytes, _COMPARE_BYTES):
        yield offset, min(_COMPARE_BYTES, row.size_bytes - offset)


class PendingContent:
    """Chunks of the base, and bytes in layers as if they were chunks: for whoever reads entries."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending
        self.nodes: NodeSource = pending.source
        self._files: dict[bytes, PendingFile] = {}

    def entry_of(self, name: bytes, file: PendingFile) -> Entry:
        """Return an entry for a file as the layers show it; its chunk ids mean something here
        alone.
        """
        row = file.row
        if row is None:
            assert file.base is not None
            return file.base
        content: Content = None
        if not self._pending.is_in_layer(row):
            content = row.content  # type: ignore[assignment]  # no body in a layer
        elif row.size_bytes:
            # A body in a frozen layer never changes, so where it lies says what it is.
            facts = f"{file.file_id} {row.size_bytes} {row.content!r}"
            stand_in = chunk_id_of(b"pending" + facts.encode())
            self._files[stand_in] = file
            content = Chunks((ChunkRef(stand_in, row.size_bytes),))
        return Entry(
            name, row.mode, row.uid, row.gid, row.size_bytes, row.mtime_ns, row.ctime_ns,
            file.file_id, row.nlink, content, row.xattrs,
        )  # fmt: skip

    def has_body(self, ref: ChunkRef) -> bool:
        """Tell whether a reference stands for a body in a layer."""
        return ref.id in self._files

    def load_chunk(self, ref: ChunkRef) -> bytes:
        """Return a chunk of the base, or the whole body of a file in a layer."""
        file = self._files.get(ref.id)
        if file is None:
            return self._pending.source.load_chunk(ref)
        assert file.row is not None
        return self._pending.read(file.row, file.file_id, 0, ref.size_bytes)

    def load_chunk_list(self, ref: Ref) -> tuple[ChunkRef, ...]:
        """Return a chunk list of the base."""
        return self._pending.source.load_chunk_list(ref)


def iter_path_changes(
    changes: Iterable[PendingChange], content: PendingContent
) -> Iterator[PathChange]:
    """Yield changes in the form that patches are made of: a removed directory becomes the files
    that were in it.
    """
    for change in changes:
        name = change.path.rpartition(b"/")[2]
        new = None if change.file is None else content.entry_of(name, change.file)
        yield PathChange(change.kind, change.path, change.base, new, change.from_path)
        if change.kind is ChangeKind.REMOVED and change.base is not None and change.base.is_dir:
            for path, entry in walk(change.base, content.nodes):
                yield PathChange(ChangeKind.REMOVED, change.path + b"/" + path, entry, None)
