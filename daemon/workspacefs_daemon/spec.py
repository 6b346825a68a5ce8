"""What to mount: the whole order that a session process gets, as plain values.

It travels from the command line to the supervisor as JSON and to the session process by fork.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from workspacefs.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """One mount to be made. Paths are text as os.fsdecode gives it."""

    store_url: str
    """Absolute: "file:///dir"."""
    mountpoint: str
    """Absolute, free of symbolic links; checked by mountpoints.prepare_mountpoint before use."""
    state_dir: str
    """Absolute; exists and is private."""
    session_name: str | None = None
    """Session to resume, or to begin under this name; None: the usual one of this account."""
    branch: str = "main"
    """Where a new session starts, unless `at_rev` says."""
    at_rev: str | None = None
    """Revision to show instead; goes with `read_only`."""
    read_only: bool = False
    allow_other: bool | None = None
    """Whether other accounts may enter; None: only when we are root."""
    foreground: bool = False
    """Whether a person waits for the process: it was not forked from a supervisor."""


_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "store_url": (str,),
    "mountpoint": (str,),
    "state_dir": (str,),
    "session_name": (str, type(None)),
    "branch": (str,),
    "at_rev": (str, type(None)),
    "read_only": (bool,),
    "allow_other": (bool, type(None)),
    "foreground": (bool,),
}


def spec_document(spec: SessionSpec) -> dict[str, object]:
    """Return a spec as what JSON can say."""
    return dataclasses.asdict(spec)


def spec_from_document(document: Mapping[str, object]) -> SessionSpec:
    """Return the spec that a document from outside describes.

    Raises:
        UsageError: A member is missing, unknown or of the wrong type.
    """
    for name, value in document.items():
        if name not in _KINDS or type(value) not in _KINDS[name]:
            raise UsageError(
                f"a mount cannot have {name:.40} = {value!r:.40}", kind="mount.malformed"
            )
    missing = {"store_url", "mountpoint", "state_dir"} - document.keys()
    if missing:
        raise UsageError(f"a mount needs {', '.join(sorted(missing))}", kind="mount.malformed")
    return SessionSpec(**document)  # type: ignore[arg-type]  # types were compared just above
