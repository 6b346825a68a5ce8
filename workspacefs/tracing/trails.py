"""The way to a path in one tree, and the way to the same file in the tree before.

A file is followed by its id, wherever it was; where the tree before does not have it, by its path.
So a rename is followed, and so is a file that programs replace by a new one of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from workspacefs.ids import FileId
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.trees.diff import diff_directory
from workspacefs.trees.nodes import NodeSource
from workspacefs.trees.walk import find_entry, walk

Names = tuple[bytes, ...]


class Trail(NamedTuple):
    """A path in one tree, and what stands on the way to it."""

    names: Names
    """The path's parts; none: the root."""
    entries: tuple[Entry, ...]
    """The root, then what each name leads to, as far as there is something."""

    @property
    def path(self) -> bytes:
        """The path, with slashes."""
        return b"/".join(self.names)

    @property
    def entry(self) -> Entry | None:
        """What the path leads to, or None: nothing."""
        return self.entries[-1] if len(self.entries) > len(self.names) else None


def names_of(path: bytes) -> Names:
    """Return the parts of a path; slashes too many do not count."""
    return tuple(filter(None, path.split(b"/")))


def find_trail(
    root: Entry, names: Names, source: NodeSource, *, like: Trail | None = None
) -> Trail:
    """Return the way to a path in a tree; links are not followed.

    Args:
        root: Of the tree.
        names: The path.
        source: Gives its nodes.
        like: The way to the same path in another tree: from where both are alike it is not looked
            for again.
    """
    entries = [root]
    while len(entries) <= len(names):
        above = entries[-1]
        if not isinstance(above.content, Subtree):
            break
        if like is not None and _is_alike(above.content, like, len(entries)):
            return Trail(names, (*entries, *like.entries[len(entries) :]))
        found = find_entry(above.content, names[len(entries) - 1], source)
        if found is None:
            break
        entries.append(found)
    return Trail(names, tuple(entries))


def _is_alike(content: Subtree, like: Trail, depth: int) -> bool:
    if len(like.entries) < depth:
        return False
    other = like.entries[depth - 1].content
    return isinstance(other, Subtree) and other.root == content.root


def follow_back(trail: Trail, old_root: Entry, source: NodeSource) -> Trail:
    """Return the way to the same file or directory in a tree before.

    Cost is that of the path's depth; if it is not there under its id, that of what differs between
    both trees.
    """
    there = find_trail(old_root, trail.names, source, like=trail)
    entry = trail.entry
    if entry is None or not trail.names:
        return there
    if there.entry is not None and there.entry.file_id == entry.file_id:
        return there
    names = _find_moved(trail, entry.file_id, old_root, source)
    return there if names is None else find_trail(old_root, names, source)


class _Search:
    """Looks through what differs for a file that has another path in the old tree."""

    def __init__(self, trail: Trail, source: NodeSource) -> None:
        self._trail = trail
        self._source = source
        self._above = {entry.file_id: depth for depth, entry in enumerate(trail.entries[1:-1], 1)}
        self.gone: list[tuple[Names, Entry]] = []
        """Directories that the old tree has at another place than the new one, or alone."""

    def run(self, file_id: FileId, old: Subtree, new: Subtree) -> Names | None:
        """Return the old path, if it can be told without listing what is gone."""
        pending: list[tuple[Names, Subtree, Subtree]] = [((), old, new)]
        while pending:
            prefix, old, new = pending.pop()
            for before, after in diff_directory(old, new, self._source):
                if before is None:
                    continue
                names: Names = (*prefix, before.name)
                if before.file_id == file_id:
                    return names
                if not isinstance(before.content, Subtree):
                    continue
                if after is not None and after.file_id == before.file_id:
                    assert isinstance(after.content, Subtree)
                    pending.append((names, before.content, after.content))
                    continue
                depth = self._above.get(before.file_id)
                if depth is None:
                    self.gone.append((names, before))
                    continue
                # It lies on our way, so it moved, and took along what is in it.
                moved = self._trail.entries[depth]
                below = find_trail(before, self._trail.names[depth:], self._source).entry
                if below is not None and below.file_id == file_id:
                    return (*names, *self._trail.names[depth:])
                pending.append((names, before.content, moved.subtree))
        return None


def _find_moved(trail: Trail, file_id: FileId, old_root: Entry, source: NodeSource) -> Names | None:
    search = _Search(trail, source)
    names = search.run(file_id, old_root.subtree, trail.entries[0].subtree)
    if names is not None:
        return names
    return next(_iter_found(file_id, search.gone, source), None)


def _iter_found(
    file_id: FileId, gone: list[tuple[Names, Entry]], source: NodeSource
) -> Iterator[Names]:
    for names, directory in gone:
        for path, entry in walk(directory, source):
            if entry.file_id == file_id:
                yield (*names, *path.split(b"/"))
