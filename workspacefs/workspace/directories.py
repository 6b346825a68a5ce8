"""Descending a directory tree on disk by descriptor, so that nobody can lead us elsewhere.

Each step is one name, opened relative to the directory above it and never through a link. Depth is
limited by nothing: only the deepest few descriptors are kept, and the way back is `..`, checked.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Final

from workspacefs.errors import WorkspaceError

DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_MAX: Final = 64


class OpenDirectories:
    """Descriptors of a directory and of those above it. Owns and closes them.

    Args:
        root_fd: Where the descent begins; owned from now on.
    """

    def __init__(self, root_fd: int) -> None:
        self._fds: list[int] = [root_fd]
        self._closed: list[tuple[int, int]] = []  # (device, inode) of those closed, from the top

    def __enter__(self) -> OpenDirectories:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        while self._fds:
            os.close(self._fds.pop())

    @property
    def fd(self) -> int:
        """The deepest directory."""
        return self._fds[-1]

    def enter(self, name: bytes) -> int:
        """Open the directory `name` in the deepest one; it is the deepest now.

        Raises:
            OSError: It is not there, no directory, or a link.
        """
        fd = os.open(name, DIRECTORY_FLAGS, dir_fd=self._fds[-1])
        self._fds.append(fd)
        if len(self._fds) > _OPEN_MAX:
            oldest = self._fds.pop(0)
            status = os.fstat(oldest)
            os.close(oldest)
            self._closed.append((status.st_dev, status.st_ino))
        return fd

    def leave(self) -> None:
        """Close the deepest directory; the one above it is the deepest now.

        Raises:
            WorkspaceError: The directory was moved elsewhere meanwhile.
        """
        fd = self._fds.pop()
        try:
            if self._fds or not self._closed:
                return
            above = os.open("..", DIRECTORY_FLAGS, dir_fd=fd)
            self._fds.append(above)
            status = os.fstat(above)
            if (status.st_dev, status.st_ino) != self._closed.pop():
                raise WorkspaceError(
                    "a directory was moved elsewhere while it was being worked on; "
                    "keep the tree still and try again",
                    kind="tree.moved",
                )
        finally:
            os.close(fd)
