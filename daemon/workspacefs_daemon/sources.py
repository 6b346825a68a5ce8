"""Whether the code on disk is still the code that a warm process holds.

A supervisor forks sessions from the modules it imported when it started. After an upgrade (or an
edit of an editable installation) it must not serve the old ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeAlias

_Stamps: TypeAlias = dict[str, tuple[int, int] | None]
"""Size and time by path; None: it is not there."""


class Sources:
    """The Python files below some directories, as they were when this was made."""

    def __init__(self, packages: Iterable[str]) -> None:
        self._packages = sorted(packages)
        self._files, self._directories = _look(self._packages)

    def have_changed(self) -> bool:
        """Tell whether any was changed, replaced, added or removed. About 2 µs a file."""
        if any(_stamp_of(path) != stamp for path, stamp in self._files.items()):
            return True
        # Names are looked at again only where some came or went: that changes a directory's time.
        if all(_stamp_of(path) == stamp for path, stamp in self._directories.items()):
            return False
        files, directories = _look(self._packages)
        if files != self._files:
            return True
        self._directories = directories
        return False


def _look(packages: Iterable[str]) -> tuple[_Stamps, _Stamps]:
    """Return the files and directories there are."""
    files: _Stamps = {}
    directories: _Stamps = {}
    waiting = list(packages)
    while waiting:
        directory = waiting.pop()
        directories[directory] = _stamp_of(directory)  # first: what comes meanwhile changes it
        with os.scandir(directory) as names:
            for found in names:
                if found.is_dir(follow_symlinks=False):
                    if found.name != "__pycache__":
                        waiting.append(found.path)
                elif found.name.endswith((".py", ".so")):
                    files[found.path] = _stamp_of(found.path)
    return files, directories


def _stamp_of(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
