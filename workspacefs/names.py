"""Which byte strings may be file names, ref names and session names.

This module must not know where names are used.
"""

from __future__ import annotations

import re
from typing import Final

from workspacefs.errors import UsageError

NAME_MAX_BYTES: Final = 255
"""Longest file name, bytes. Source: limits.h, NAME_MAX."""

_REF_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@-]*(?:/[A-Za-z0-9][A-Za-z0-9._+@-]*)*")
_REF_NAME_MAX_CHARS: Final = 200
_NEVER_NAMES: Final = frozenset((b"", b".", b".."))


def is_file_name(name: bytes) -> bool:
    """Tell whether `name` may stand in a directory: 1-255 bytes, no slash, no NUL, not . or .."""
    return (
        len(name) <= NAME_MAX_BYTES
        and name not in _NEVER_NAMES
        and b"/" not in name
        and b"\0" not in name
    )


def are_file_names_in_order(names: list[bytes]) -> bool:
    """Tell whether all are file names, each greater than the one before it.

    Works on whole lists with calls that run in C: a directory node is checked in microseconds.
    """
    if not names:
        return True
    joined = b"/".join(names)
    return (
        joined.count(b"/") == len(names) - 1
        and b"\0" not in joined
        and max(map(len, names)) <= NAME_MAX_BYTES
        and _NEVER_NAMES.isdisjoint(names)
        and sorted(set(names)) == names
    )


def check_ref_name(name: str, *, what: str = "branch") -> str:
    """Return `name` if a branch, tag or session may have it.

    Raises:
        UsageError: It may not; the message says what is allowed.
    """
    if len(name) <= _REF_NAME_MAX_CHARS and _REF_NAME.fullmatch(name) and ".." not in name:
        return name
    raise UsageError(
        f"{name!r} cannot name a {what}: use 1-{_REF_NAME_MAX_CHARS} letters, digits, "
        "and . _ + @ - (parts may be separated by /, and each begins with a letter or digit)",
        kind="name.invalid",
    )
