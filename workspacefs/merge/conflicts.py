"""Conflicts of a merge, as data: what each side has, and where it stands in the result."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import NamedTuple

from workspacefs.objects.entry import Entry


class ConflictKind(enum.Enum):
    """What two sides did that cannot both be had."""

    CONTENT = "content"
    """Both changed the same lines of a text."""
    ADD_ADD = "add/add"
    """Each put something else under the same name."""
    MODIFY_DELETE = "modify/delete"
    """One changed what the other removed."""
    RENAME_RENAME = "rename/rename"
    """Each moved it to another place, or directories into each other."""
    RENAME_DELETE = "rename/delete"
    """One moved what the other removed."""
    DIRECTORY_FILE = "directory/file"
    """One has a directory under the name, the other something else."""
    KIND = "kind"
    """Each has another kind of file under the name; neither is a directory."""
    MODE = "mode"
    """Both changed the permissions, the owner, the group or an extended attribute."""
    SYMLINK = "symlink"
    """Both changed the target of a link."""
    BINARY = "binary"
    """Both changed a file that cannot be merged by line."""


class Version(NamedTuple):
    """What one of the three trees has."""

    path: bytes
    """In that tree."""
    entry: Entry


@dataclass(frozen=True, slots=True)
class Conflict:
    """One decision that a merge leaves to others."""

    kind: ConflictKind
    path: bytes
    """In the result: of what the conflict is about."""
    base: Version | None
    ours: Version | None
    theirs: Version | None
    beside: bytes | None = None
    """Path in the result of what stands under another name, because this one is taken."""

    def mirrored(self) -> Conflict:
        """Return the conflict with the sides swapped.

        The merge in the other direction has just these versions; its paths may differ, since what
        is ours keeps its place.
        """
        return replace(self, ours=self.theirs, theirs=self.ours)
