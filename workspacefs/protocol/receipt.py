"""What a receipt counts, whoever restored: a session process, or a command by copying.

This module must not know how anything is restored. The members are in docs/cli.md.
"""

from __future__ import annotations

import stat


class ReceiptCounts:
    """What was restored, and compared with what it was restored from."""

    __slots__ = ("directories", "files", "others", "removed", "size_bytes", "symlinks")

    def __init__(self) -> None:
        self.files = self.directories = self.symlinks = 0
        self.others = 0
        """Devices, fifos and sockets."""
        self.size_bytes = 0
        """Of the files; all of it was read."""
        self.removed = 0
        """Names that are gone."""

    def add(self, mode: int, size_bytes: int = 0) -> None:
        """Count something that was restored.

        Args:
            mode: Its type, as in st_mode.
            size_bytes: Of what it holds, if it is a file.
        """
        if stat.S_ISREG(mode):
            self.files += 1
            self.size_bytes += size_bytes
        elif stat.S_ISDIR(mode):
            self.directories += 1
        elif stat.S_ISLNK(mode):
            self.symlinks += 1
        else:
            self.others += 1

    def document(self, *, kept_open: int = 0) -> dict[str, int]:
        """Return it as what JSON can say.

        Args:
            kept_open: Files that programs have open with what they held before.
        """
        return {
            "files": self.files,
            "directories": self.directories,
            "symlinks": self.symlinks,
            "others": self.others,
            "bytes": self.size_bytes,
            "removed": self.removed,
            "kept_open": kept_open,
        }
