"""Seeing to it that a session has ended: that its process is gone, and nobody brings it back."""

from __future__ import annotations

import os
import time
from shlex import quote
from typing import Final

from workspacefs.client.locate import SessionAddress
from workspacefs.client.mountinfo import find_mount
from workspacefs.client.registry import LiveSession, load_sessions
from workspacefs.client.supervisor import find_supervisor
from workspacefs.errors import UnavailableError, UsageError
from workspacefs.statedir import StateDir

_WAIT_S: Final = 60.0
_POLL_S: Final = 0.005


def find_registered(mountpoint: str, state: StateDir) -> LiveSession | None:
    """Return the newest session that registered a mountpoint, alive or not, or None."""
    found = None
    for session in load_sessions(state):
        if session.mountpoint == mountpoint:
            found = session
    return found


def release_mountpoint(mountpoint: str, state: StateDir) -> None:
    """Have the supervisor, if one runs, bring back no dead session at `mountpoint`.

    What it has begun of that is over on return. A session that lives goes on.

    Raises:
        UnavailableError: The supervisor is there and does not answer.
    """
    supervisor = find_supervisor(state)
    if supervisor is None:
        return
    with supervisor:
        try:
            supervisor.call("release", {"mountpoint": mountpoint}, timeout_s=_WAIT_S)
        except UsageError as exc:
            # One of an older release, which brings nothing back.
            if exc.kind != "op.unknown":
                raise


def wait_until_gone(
    address: SessionAddress, registered: LiveSession | None, *, is_lazy: bool
) -> None:
    """Return when a session's process has ended, so that it can be mounted again.

    With `is_lazy` it may go on for the programs that still use it.

    Raises:
        UnavailableError: It does not end (kind "session.not_ended").
    """
    deadline = time.monotonic() + _WAIT_S
    while True:
        if is_lazy:
            is_gone = True  # the process serves its last users for as long as they stay
        elif registered is not None:
            is_gone = not registered.is_alive()
        else:
            is_gone = not os.path.exists(address.socket)
        if is_gone and find_mount(address.mountpoint) is None:
            return
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"session {address.session} does not end; try: workspacefs umount --force "
                f"{quote(address.mountpoint)}",
                kind="session.not_ended",
            )
        time.sleep(_POLL_S)
