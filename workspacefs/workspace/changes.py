"""What changed between two trees, in the words of a status: added, modified, renamed …"""

from __future__ import annotations

import enum
import stat
from collections.abc import Iterable
from typing import NamedTuple

from workspacefs.objects.entry import Entry
from workspacefs.trees.diff import Change, diff_trees
from workspacefs.trees.nodes import NodeSource


class ChangeKind(enum.Enum):
    """How a path differs; the value is its letter."""

    ADDED = "A"
    REMOVED = "D"
    MODIFIED = "M"
    """Content; other attributes may differ too."""
    ATTRIBUTES = "m"
    """Mode, owner or extended attributes, but not content."""
    TYPE = "T"
    """Another kind of file."""
    RENAMED = "R"
    """The same file id under another path; content may differ too."""


class PathChange(NamedTuple):
    """One path that differs."""

    kind: ChangeKind
    path: bytes
    """In the new tree; in the old one if it was removed."""
    old: Entry | None
    new: Entry | None
    old_path: bytes | None = None
    """Of a renamed file."""

    @property
    def is_content_changed(self) -> bool:
        """Whether bytes of a file, or a link's target, differ."""
        return _content_of(self.old) != _content_of(self.new)


def changes_between(old_root: Entry, new_root: Entry, source: NodeSource) -> list[PathChange]:
    """Return what differs below two roots, in order of path; equal subtrees are not read."""
    return classify(diff_trees(old_root, new_root, source))


def classify(changes: Iterable[Change]) -> list[PathChange]:
    """Return changes in the words of a status, in order of path.

    A removed and an added path with one file id are a rename. What moved only because its
    directory did is not listed; neither is what differs in nothing but times and link counts.
    """
    found: list[PathChange] = []
    removed: dict[int, Change] = {}
    added: list[Change] = []
    for change in changes:
        if change.new is None:
            assert change.old is not None
            removed.setdefault(change.old.file_id, change)
        if change.old is None:
            added.append(change)
        if change.old is not None and change.new is not None:
            kind = kind_of_change(change.old, change.new)
            if kind is not None:
                found.append(PathChange(kind, *change))
        elif change.new is None:
            found.append(PathChange(ChangeKind.REMOVED, *change))
    renamed: dict[bytes, bytes] = {}
    came_from: set[bytes] = set()
    for change in added:
        assert change.new is not None
        before = removed.pop(change.new.file_id, None)
        if before is None or before.old is None or not _same_kind(before.old, change.new):
            if before is not None and before.old is not None:
                removed[before.old.file_id] = before
            found.append(PathChange(ChangeKind.ADDED, *change))
            continue
        came_from.add(before.path)
        renamed[change.path] = before.path
        if not _moved_with_parent(change.path, before.path, renamed) or (
            kind_of_change(before.old, change.new) is not None
        ):
            found.append(
                PathChange(ChangeKind.RENAMED, change.path, before.old, change.new, before.path)
            )
    found = [c for c in found if c.kind is not ChangeKind.REMOVED or c.path not in came_from]
    found.sort(key=lambda change: change.path)
    return found


def kind_of_change(old: Entry, new: Entry) -> ChangeKind | None:
    """Return how two entries of one path differ; None: in nothing but times and link counts.

    Of directories, what lies below does not count.
    """
    if not _same_kind(old, new):
        return ChangeKind.TYPE
    if not old.is_dir and _content_of(old) != _content_of(new):
        return ChangeKind.MODIFIED
    if (old.mode, old.uid, old.gid, old.xattrs) != (new.mode, new.uid, new.gid, new.xattrs):
        return ChangeKind.ATTRIBUTES
    return None


def _same_kind(old: Entry, new: Entry) -> bool:
    return stat.S_IFMT(old.mode) == stat.S_IFMT(new.mode)


def _content_of(entry: Entry | None) -> object:
    return None if entry is None or entry.is_dir else (entry.size_bytes, entry.content)


def _moved_with_parent(path: bytes, old_path: bytes, renamed: dict[bytes, bytes]) -> bool:
    parent, _, name = path.rpartition(b"/")
    old_parent, _, old_name = old_path.rpartition(b"/")
    return name == old_name and renamed.get(parent) == old_parent
