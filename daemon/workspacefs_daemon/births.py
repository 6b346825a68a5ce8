"""A session process from its fork until it says whether it mounted."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Final

from workspacefs.errors import UnavailableError, WorkspaceError
from workspacefs.protocol.failures import error_from_document
from workspacefs.statedir import StateDir
from workspacefs_daemon.spec import SessionSpec
from workspacefs_daemon.zygote import StartedSession

_RECEIVE_BYTES: Final = 64 * 1024
_READY_MAX_BYTES: Final = 1024 * 1024

Answer = Mapping[str, object] | WorkspaceError


class Birth:
    """A session process that has not said yet whether it mounted."""

    def __init__(self, spec: SessionSpec, started: StartedSession) -> None:
        self.spec = spec
        self.pid = started.pid
        self.ready_fd = started.ready_fd
        self.is_heard = False
        self._said = bytearray()
        self._began_s = time.monotonic()

    def hear(self) -> bool:
        """Read what there is, once `ready_fd` is readable; tell whether that was all."""
        data = os.read(self.ready_fd, _RECEIVE_BYTES)
        self._said += data
        is_more = data and not self._said.endswith(b"\n") and len(self._said) < _READY_MAX_BYTES
        return not is_more

    def close(self) -> None:
        """Listen no more. Idempotent."""
        if not self.is_heard:
            self.is_heard = True
            os.close(self.ready_fd)

    def answer(self, state: StateDir) -> Answer:
        """Return what it said: what is mounted, or why nothing is."""
        document = json.loads(self._said) if self._said.endswith(b"\n") else {}
        match document:
            case {"ok": dict(ok)}:
                return ok
            case {"error": dict(error)}:
                return error_from_document(error)
            case _:
                return UnavailableError(
                    f"the session's process died before it was mounted; see {state.log_dir}",
                    kind="session.died",
                )

    @property
    def duration_ms(self) -> float:
        """How long it has taken so far."""
        return round((time.monotonic() - self._began_s) * 1000, 3)
