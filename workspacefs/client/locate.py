"""From a path to the session that it lies in.

The mount itself knows: a hidden extended attribute of everything in it names the session. Only a
mount that does not answer is looked up in the registry. What an attribute says is believed only as
far as the socket that it names is served by our own account (see protocol.sockets.peer_refusal).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from shlex import quote
from typing import Final, NamedTuple

from workspacefs.client.connection import Connection
from workspacefs.client.mountinfo import DEAD_ERRNOS, find_mount_above, is_inside
from workspacefs.client.registry import LiveSession, load_sessions
from workspacefs.errors import NotFoundError, UnavailableError
from workspacefs.statedir import StateDir

SESSION_XATTR: Final = "user.workspacefs.session"
"""Answered on anything inside a mount; not listed. A JSON object of SessionAddress's members."""


class SessionAddress(NamedTuple):
    """A mounted session, and where to talk to it."""

    session: str
    session_id: str
    socket: str
    mountpoint: str
    store_url: str

    def connect(self) -> Connection:
        """Return a connection to the session's process."""
        return Connection.open(self.socket, what=f"session {self.session}")


def session_of(path: str, state: StateDir) -> SessionAddress:
    """Return the session that `path` lies in; `path` itself need not exist (any more).

    Raises:
        NotFoundError: It lies in no mount of ours (kind "session.not_mounted").
        UnavailableError: It does, but the mount is dead (kind "session.dead").
    """
    found = find_session_of(path, state)
    if found is None:
        raise NotFoundError(
            f"{_absolute(path)} is not inside a mounted workspace; "
            "go into one, name its mountpoint, or mount one with: workspacefs mount URL DIR",
            kind="session.not_mounted",
            path=path,
        )
    return found


def find_session_of(path: str, state: StateDir) -> SessionAddress | None:
    """Like session_of, but None when the path lies in no mount of ours."""
    answer = _ask_mount(path)
    if isinstance(answer, dict):
        return _address_in(answer)
    return _registered(os.path.realpath(_absolute(path)), state, is_dead=answer is False)


def path_inside(path: str, mountpoint: str) -> str:
    """Return where `path` lies below a mountpoint: "" for the mountpoint, else "a/b"."""
    absolute = _absolute(path)
    parent, name = os.path.split(absolute)
    # The last part may be a symbolic link that is stored in the workspace: it is not followed.
    real = absolute if absolute == "/" else os.path.join(os.path.realpath(parent), name)
    if not is_inside(real, mountpoint):
        real = os.path.realpath(absolute)
    if not is_inside(real, mountpoint):
        return ""
    return real[len(mountpoint.rstrip("/")) :].strip("/")


def _ask_mount(path: str) -> Mapping[str, object] | bool:
    # False: the mount there is dead. True: nobody of ours answers.
    asked = path
    while True:
        try:
            document = json.loads(os.getxattr(asked, SESSION_XATTR))
        except (FileNotFoundError, NotADirectoryError):
            parent = os.path.dirname(_absolute(asked))
            if parent == asked:
                return True
            asked = parent
            continue
        except OSError as exc:
            return exc.errno not in DEAD_ERRNOS
        except (ValueError, RecursionError):
            return True
        return document if isinstance(document, dict) else True


def _address_in(document: Mapping[str, object]) -> SessionAddress | None:
    values = [document.get(name) for name in SessionAddress._fields]
    if not all(isinstance(value, str) for value in values):
        return None
    return SessionAddress._make(values)


def _registered(path: str, state: StateDir, *, is_dead: bool) -> SessionAddress | None:
    best: LiveSession | None = None
    for session in load_sessions(state):
        if is_inside(path, session.mountpoint) and (
            best is None or len(session.mountpoint) >= len(best.mountpoint)
        ):
            best = session
    if best is None:
        if is_dead and (mount := find_mount_above(path)) is not None and mount.is_fuse:
            raise UnavailableError(
                f"the process that served {mount.mountpoint} is gone; "
                f"unmount it with: workspacefs umount {quote(mount.mountpoint)}",
                kind="session.dead",
                mountpoint=mount.mountpoint,
            )
        return None
    if best.is_alive():
        mount = find_mount_above(path)
        if mount is None or mount.mountpoint != best.mountpoint:
            return None
        return SessionAddress._make(getattr(best, name) for name in SessionAddress._fields)
    if not is_dead:
        return None
    raise dead_session(best)


def dead_session(session: LiveSession) -> UnavailableError:
    """Return the error that says that a session's process is gone, and how to bring it back."""
    return UnavailableError(
        f"the process that served session {session.session} at {session.mountpoint} is gone; "
        f"nothing that was written is lost, mount it again with: workspacefs mount "
        f"{quote(session.store_url)} {quote(session.mountpoint)} --session {session.session}",
        kind="session.dead",
        session=session.session,
        mountpoint=session.mountpoint,
    )


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path)
    except OSError:
        # The working directory lies in a dead mount or was removed; the shell may still know it.
        return path
