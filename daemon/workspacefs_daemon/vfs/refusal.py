"""The answer to an operation that POSIX says must fail."""

from __future__ import annotations

import os

from workspacefs.errors import WorkspaceError


class Refusal(WorkspaceError):
    """An operation fails as it should; the file system is well and nothing changed."""

    default_kind = "posix"

    def __init__(self, errno: int) -> None:
        super().__init__(os.strerror(errno))
        self.errno = errno
