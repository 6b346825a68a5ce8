"""Which paths an import leaves out: patterns in the syntax of gitignore.

Rules come from the caller (strongest) and from `.workspacefsignore` in any directory, which holds
for what lies below it; a deeper file is stronger. What is below an excluded directory is excluded.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pathspec

from workspacefs.errors import UsageError

IGNORE_FILE: Final = ".workspacefsignore"
_IGNORE_FILE_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """Rules that hold in one directory; immutable."""

    by_caller: pathspec.GitIgnoreSpec | None = None
    by_files: tuple[tuple[int, pathspec.GitIgnoreSpec], ...] = ()
    """(length of the path that the patterns are relative to, patterns), deepest first."""

    @classmethod
    def of_patterns(cls, patterns: Iterable[str]) -> IgnoreRules:
        """Return the rules that the caller gave.

        Raises:
            UsageError: A pattern is malformed.
        """
        lines = list(patterns)
        return cls(_spec_of(lines, "--exclude") if lines else None)

    def below(self, directory_fd: int, prefix: str) -> IgnoreRules:
        """Return the rules in a directory: these, and its own ignore file's if it has one.

        Args:
            directory_fd: The directory, open.
            prefix: Its path with a slash at the end; empty for the root.
        """
        text = _read_ignore_file(directory_fd)
        if text is None:
            return self
        own = (len(prefix), _spec_of(text.splitlines(), prefix + IGNORE_FILE))
        return IgnoreRules(self.by_caller, (own, *self.by_files))

    def excludes(self, path: str, *, is_dir: bool) -> bool:
        """Tell whether `path` is left out."""
        if self.by_caller is None and not self.by_files:
            return False
        if is_dir:
            path += "/"
        if self.by_caller is not None:
            answer = self.by_caller.check_file(path).include
            if answer is not None:
                return answer
        for start, spec in self.by_files:
            answer = spec.check_file(path[start:]).include
            if answer is not None:
                return answer
        return False


def _spec_of(lines: list[str], where: str) -> pathspec.GitIgnoreSpec:
    try:
        return pathspec.GitIgnoreSpec.from_lines(lines)
    except ValueError as exc:
        raise UsageError(f"malformed pattern in {where}: {exc}", kind="ignore.pattern") from exc


def _read_ignore_file(directory_fd: int) -> str | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(IGNORE_FILE, flags, dir_fd=directory_fd)
    except OSError:
        return None  # absent, or no plain file; unreadable ones are reported when imported
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        return os.fsdecode(os.read(fd, _IGNORE_FILE_MAX_BYTES))
    finally:
        os.close(fd)
