"""Errors as JSON documents, and back.

The class of an error is not named on the wire: its exit code and errno say which it is, so a
client of another release still does the right thing. This module must not know sockets.
"""

from __future__ import annotations

import errno as _errno
from collections.abc import Mapping
from typing import Final

from workspacefs.errors import (
    BusyError,
    ExitCode,
    IntegrityError,
    MovedError,
    NoSpaceError,
    NotFoundError,
    RefusedError,
    UnavailableError,
    UsageError,
    WorkspaceError,
)

INTERNAL_KIND: Final = "internal"
_TEXT_MAX_CHARS: Final = 16 * 1024
_ERRNO_MAX: Final = 4095

_CLASSES: Final[dict[int, type[WorkspaceError]]] = {
    ExitCode.USAGE: UsageError,
    ExitCode.NOT_FOUND: NotFoundError,
    ExitCode.EXISTS_OR_BUSY: BusyError,
    ExitCode.MOVED: MovedError,
    ExitCode.DAMAGED: IntegrityError,
    ExitCode.UNAVAILABLE: UnavailableError,
    ExitCode.REFUSED: RefusedError,
}


def error_document(exc: BaseException) -> dict[str, object]:
    """Return what is told about an error. Of an error that is not ours, only its class."""
    if isinstance(exc, WorkspaceError):
        return {
            "kind": exc.kind,
            "message": str(exc),
            "exit_code": int(exc.exit_code),
            "errno": exc.errno,
            "context": dict(exc.context),
        }
    return {
        "kind": INTERNAL_KIND,
        "message": f"an unexpected {type(exc).__name__} happened; its trace is in the log",
        "exit_code": int(ExitCode.FAILED),
        "errno": _errno.EIO,
        "context": {"class": type(exc).__name__},
    }


def error_from_document(document: Mapping[str, object]) -> WorkspaceError:
    """Return the error that a document tells of. Total: what is odd is replaced or left out."""
    message, kind = document.get("message"), document.get("kind")
    number, code = document.get("errno"), document.get("exit_code")
    facts = document.get("context")
    context = {
        name: value
        for name, value in (facts.items() if isinstance(facts, dict) else ())
        if isinstance(value, str | int | bool | None) and name not in ("message", "kind", "self")
    }
    cls = _CLASSES.get(code, WorkspaceError) if isinstance(code, int) else WorkspaceError
    if cls is UnavailableError and number == _errno.ENOSPC:
        cls = NoSpaceError
    error = cls(
        message[:_TEXT_MAX_CHARS] if isinstance(message, str) else "the daemon did not say why",
        kind=kind[:_TEXT_MAX_CHARS] if isinstance(kind, str) and kind else None,
        **context,
    )
    if type(number) is int and 0 < number <= _ERRNO_MAX:
        error.errno = number
    return error
