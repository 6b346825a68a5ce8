"""What goes into an import, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from workspacefs.objects.commits import ChangeCounts
from workspacefs.objects.entry import Entry


class Progress(Protocol):
    """Hears how far an import or export is; called every few hundred files or few MiB."""

    def __call__(self, files_done: int, bytes_done: int, files_total: int | None, /) -> None:
        """Show it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """How to read a source tree."""

    exclude: tuple[str, ...] = ()
    """Patterns in the syntax of gitignore, relative to the root; stronger than ignore files."""
    skip_unreadable: bool = False
    """Leave out what cannot be read and list it, instead of failing."""
    trust_mtime: bool = False
    """Take content of files whose path, size and mtime are as in the base without reading it."""


@dataclass(slots=True)
class ImportedTree:
    """What an import found."""

    root: Entry
    changes: ChangeCounts
    files: int = 0
    dirs: int = 0
    size_bytes: int = 0
    excluded: int = 0
    """Names that rules left out; what lies below them is not counted."""
    skipped: list[tuple[bytes, str]] = field(default_factory=list)
    """(path, reason) of what could not be read, or was gone when its turn came."""
    unsteady: list[bytes] = field(default_factory=list)
    """Files that changed each time they were read; each is stored as read last."""
