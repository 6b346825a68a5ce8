"""How a session process says, once, that its mount answers or why there is none."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping

from workspacefs.client.registry import (
    LiveSession,
    boot_id,
    find_start_ticks,
    forget_session,
    load_sessions,
    save_session,
    want_session,
)
from workspacefs.protocol.failures import INTERNAL_KIND, error_document
from workspacefs.statedir import StateDir
from workspacefs_daemon.spec import SessionSpec

log = logging.getLogger(__name__)

Tell = Callable[[Mapping[str, object]], None]


class Announcement:
    """Tells whoever waits for a mount, and keeps the registry of living sessions true."""

    def __init__(self, spec: SessionSpec, tell: Tell) -> None:
        self._spec = spec
        self._state = StateDir(spec.state_dir)
        self._tell = tell
        self._session_id: str | None = None
        self.is_made = False

    def ready(self, result: Mapping[str, object]) -> None:
        """Say that the mount answers; of a session that was put away, that this is done.

        Args:
            result: At least session, session_id, socket, mountpoint, store_url and branch, all
                text; whatever else stands in it goes to the asker as well.
        """
        assert not self.is_made, "a session announces itself once"
        if self._spec.mounts_nothing:  # it is over, and there is nothing to be found
            self.is_made = True
            self._tell({"ok": {**result, "pid": os.getpid()}})
            return
        live = LiveSession(
            session=str(result["session"]),
            session_id=str(result["session_id"]),
            socket=str(result["socket"]),
            mountpoint=str(result["mountpoint"]),
            store_url=str(result["store_url"]),
            branch=str(result["branch"]),
            is_read_only=self._spec.read_only,
            pid=os.getpid(),
            start_ticks=find_start_ticks(os.getpid()) or 0,
            boot_id=boot_id(),
            mounted_ns=time.time_ns(),
        )
        want_session(self._state, live.session_id)
        save_session(self._state, live)
        self._forget_dead(live)
        self._session_id = live.session_id
        self.is_made = True
        log.info(
            "session.mounted",
            extra={"session": live.session, "session_id": live.session_id},
        )
        self._tell({"ok": {**result, "pid": live.pid}})

    def _forget_dead(self, live: LiveSession) -> None:
        """Forget the dead sessions whose place we took."""
        for session in load_sessions(self._state):
            is_ours = session.session_id == live.session_id
            if session.mountpoint == live.mountpoint and not is_ours and not session.is_alive():
                forget_session(self._state, session.session_id)

    def failed(self, exc: BaseException) -> None:
        """Say why there is no mount; does nothing but log when the session was announced before."""
        if self.is_made:
            log.error("session.failed", exc_info=exc)
            return
        self.is_made = True
        document = error_document(exc)
        is_ours = document["kind"] == INTERNAL_KIND
        log.log(
            logging.ERROR if is_ours else logging.INFO,
            "session.not_mounted",
            extra={"kind": document["kind"], "reason": document["message"]},
            exc_info=exc if is_ours else None,
        )
        self._tell({"error": document})

    def withdraw(self) -> None:
        """Take the session out of the registry: its mount has been taken away. Idempotent."""
        if self._session_id is not None:
            forget_session(self._state, self._session_id)
            self._session_id = None
