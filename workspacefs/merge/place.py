"""Where files stand, and what each of the three trees of a merge shows of them.

Directories are named by identity, not by path: a file stays at its place when a directory above it
moves.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

from workspacefs.ids import FileId
from workspacefs.objects.entry import Entry


class Origin(enum.IntEnum):
    """One of the three trees."""

    BASE = 0
    OURS = 1
    THEIRS = 2

    @property
    def other(self) -> Origin:
        """The other side."""
        assert self is not Origin.BASE
        return Origin.THEIRS if self is Origin.OURS else Origin.OURS


SIDES = (Origin.OURS, Origin.THEIRS)


class Place(NamedTuple):
    """A name in a directory."""

    directory: FileId
    """Identity of the directory."""
    name: bytes


@dataclass(slots=True)
class Seen:
    """A file or directory as one tree shows it."""

    entry: Entry
    """The row; the name is that of any of its places."""
    places: set[Place] = field(default_factory=set)
    """All that it has: one of a directory, none of the root, more than one of a file with several
    names."""
