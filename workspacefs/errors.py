"""Every error that leaves this project's own code, grouped by what the catcher does about it.

A class fixes the errno that a file operation answers and the exit code that the command line
gives; `kind` and `context` carry the facts. This module must not know any other module.
"""

from __future__ import annotations

import enum
import errno as _errno
from typing import ClassVar


class ExitCode(enum.IntEnum):
    """Exit codes of the command line; documented in docs/cli.md."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    EXISTS_OR_BUSY = 4
    MOVED = 5
    DAMAGED = 6
    UNAVAILABLE = 7
    REFUSED = 8


class WorkspaceError(Exception):
    """Base of all errors here; `str()` is one plain sentence that says what to do if it can.

    Args:
        message: What failed, on what, and what was expected; lower case start, no final stop.
        kind: A constant, dotted word for programs ("ref.absent"); stable across releases.
        context: Facts for programs and logs; values are str, int, bool or None.
    """

    errno: int = _errno.EIO
    exit_code: ClassVar[ExitCode] = ExitCode.FAILED
    default_kind: ClassVar[str] = "failed"

    def __init__(
        self, message: str, *, kind: str | None = None, **context: str | int | bool | None
    ) -> None:
        super().__init__(message)
        self.kind = kind or self.default_kind
        self.context = context


class UsageError(WorkspaceError):
    """The caller asked for something that makes no sense; ask differently."""

    errno = _errno.EINVAL
    exit_code = ExitCode.USAGE
    default_kind = "usage"


class NotFoundError(WorkspaceError):
    """What was named does not exist: no workspace, revision, session or path of that name."""

    errno = _errno.ENOENT
    exit_code = ExitCode.NOT_FOUND
    default_kind = "not_found"


class BusyError(WorkspaceError):
    """What was named exists already, or someone else holds it now."""

    errno = _errno.EBUSY
    exit_code = ExitCode.EXISTS_OR_BUSY
    default_kind = "busy"


class MovedError(WorkspaceError):
    """A branch moved under us; nothing landed. Merge, then try again."""

    errno = _errno.EAGAIN
    exit_code = ExitCode.MOVED
    default_kind = "ref.moved"


class IntegrityError(WorkspaceError):
    """Stored data is missing or is not what its name says. Never reported as "not found"."""

    errno = _errno.EIO
    exit_code = ExitCode.DAMAGED
    default_kind = "damaged"


class UnavailableError(WorkspaceError):
    """A store, daemon or device did not answer, or answered unclearly; trying again may help."""

    errno = _errno.EIO
    exit_code = ExitCode.UNAVAILABLE
    default_kind = "unavailable"


class NoSpaceError(WorkspaceError):
    """A local disk or the store is full; free space and go on, nothing was lost."""

    errno = _errno.ENOSPC
    exit_code = ExitCode.UNAVAILABLE
    default_kind = "no_space"


class RefusedError(WorkspaceError):
    """We could but will not: wrong owner, newer format, read-only view, unsafe name."""

    errno = _errno.EROFS
    exit_code = ExitCode.REFUSED
    default_kind = "refused"


class KeyAbsentError(Exception):
    """A backend holds no value under a key. Its caller decides what that means."""

    def __init__(self, key: str) -> None:
        super().__init__(f"no value is stored under {key}")
        self.key = key
