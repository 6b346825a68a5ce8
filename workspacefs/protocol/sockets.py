"""Unix sockets with names of any length, and who is at the other end.

Source: unix(7): sun_path holds 108 bytes; SO_PEERCRED gives pid, uid and gid of the peer.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable
from typing import Final, Protocol

from workspacefs.errors import RefusedError

SOCKET_MODE: Final = 0o600
_SUN_PATH_MAX_BYTES: Final = 107
_UCRED: Final = struct.Struct("3i")
_TIMEVAL: Final = struct.Struct("@ll")


class PeerSocket(Protocol):
    """A connected socket of the standard library or of an event loop."""

    def getsockopt(self, level: int, option: int, buffer_bytes: int, /) -> bytes:
        """Return the value of a socket option."""
        ...


def listen_unix(path: str, *, backlog: int = 64) -> socket.socket:
    """Return a socket that listens at `path`, which only we may use; replaces a dead one there.

    The caller holds whatever lock says that nobody living listens at `path`.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        # The mode must be right from the first moment: a listener cannot be closed again.
        old_mask = os.umask(0o177)
        try:
            _with_short_name(path, listener.bind)
        finally:
            os.umask(old_mask)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def connect_unix(path: str, *, timeout_s: float) -> socket.socket:
    """Return a socket connected to the listener at `path`, who must be of our own account.

    Args:
        path: Where it listens.
        timeout_s: How long the connecting, and then each call on the connection, may take.

    Raises:
        TimeoutError: The listener takes no connections.
        OSError: Nobody listens there.
        RefusedError: Someone else's process does.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Python's own timeout makes the socket non-blocking, and then connecting to a listener
        # whose queue is full fails at once (EAGAIN, connect(2)). The kernel's timeout waits.
        _limit_sending(connection, max(timeout_s, 1e-6))
        try:
            _with_short_name(path, connection.connect)
        except BlockingIOError as exc:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), path) from exc
        _limit_sending(connection, 0)
        connection.settimeout(timeout_s)
        if (refusal := peer_refusal(connection)) is not None:
            raise refusal
    except BaseException:
        connection.close()
        raise
    return connection


def _limit_sending(connection: socket.socket, timeout_s: float) -> None:
    """Set how long a blocking call may wait to send; 0: for ever (socket(7), SO_SNDTIMEO)."""
    whole_s, rest_s = divmod(timeout_s, 1)
    value = _TIMEVAL.pack(int(whole_s), int(rest_s * 1_000_000))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)


def peer_refusal(connection: PeerSocket) -> RefusedError | None:
    """Return why the peer may not talk to us: it runs under another account. None: it may."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    _pid, uid, _gid = _UCRED.unpack(found)
    if uid == os.geteuid():
        return None
    return RefusedError(
        f"the process at the other end of the socket runs as user {uid}, not as ours "
        f"({os.geteuid()})",
        kind="peer.foreign",
        uid=uid,
    )


def peer_pid(connection: PeerSocket) -> int:
    """Return the process that connected, as it is numbered here; 0: it cannot be seen from here."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid: int = _UCRED.unpack(found)[0]
    return pid


def _with_short_name(path: str, use: Callable[[str | bytes], object]) -> None:
    raw = os.fsencode(path)
    if len(raw) <= _SUN_PATH_MAX_BYTES:
        use(raw)
        return
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        use(f"/proc/self/fd/{directory}/".encode() + os.path.basename(raw))
    finally:
        os.close(directory)
