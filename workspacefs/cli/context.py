"""What a command gets besides its arguments: where things are, and where to write."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

from workspacefs.statedir import StateDir

_UNITS: Final = ("B", "KB", "MB", "GB", "TB", "PB")
_STEP: Final = 1024
SHORT_ID_DIGITS: Final = 12


class Output:
    """Text for a person, or one JSON document for a program; never both on standard output."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._has_rows = False

    def line(self, text: str = "") -> None:
        """Print a line for a person; nothing under --json."""
        if not self.as_json:
            sys.stdout.write(text + "\n")

    def write(self, data: bytes) -> None:
        """Write bytes as they are; the caller has made sure that a person or a pipe wants them."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)

    def flush(self) -> None:
        """Have whoever reads see now what was printed."""
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Tell a person something beside the result, on standard error; nothing under --json."""
        if not self.as_json:
            sys.stderr.write(text + "\n")

    def row(self, document: Mapping[str, object]) -> None:
        """Under --json, print one document of many, on a line of its own, at once."""
        if self.as_json:
            self._has_rows = True
            self.document(document)

    def document(self, document: Mapping[str, object]) -> None:
        """Print the one document; behind rows, as one of them."""
        indent = None if self._has_rows else 2
        sys.stdout.write(json.dumps(document, indent=indent) + "\n")
        if self._has_rows:
            sys.stdout.flush()


class Context(NamedTuple):
    """Everything around a command."""

    state: StateDir
    environ: Mapping[str, str]
    out: Output


def text_of(path: bytes) -> str:
    """Return a path as text; bytes that are no UTF-8 become lone surrogates, as in JSON."""
    return os.fsdecode(path)


def size_text(size_bytes: int) -> str:
    """Return a size as a person reads it: "512 B", "1.5 MB"."""
    size, unit = float(size_bytes), _UNITS[0]
    for larger in _UNITS[1:]:
        if size < _STEP:
            break
        size, unit = size / _STEP, larger
    return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"


def count_text(count: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun: "1 file", "2,000 files"."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def session_text(session: object, branch: object) -> str:
    """Return what is mounted: "session s on main", or "revision main~1" of a read-only view."""
    name = str(session)
    return f"revision {name[1:]}" if name.startswith("@") else f"session {name} on {branch}"


def short_id(commit: object) -> str:
    """Return the beginning of a commit id, as people are shown it; "(none)" when there is none."""
    return str(commit)[:SHORT_ID_DIGITS] if commit else "(none)"
