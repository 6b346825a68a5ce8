"""`workspacefs umount`: take a mount away, whatever state it is in."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from shlex import quote
from typing import Final

from workspacefs.cli.context import Context, Output
from workspacefs.client.ending import find_registered, release_mountpoint, wait_until_gone
from workspacefs.client.locate import SessionAddress, find_session_of
from workspacefs.client.mountinfo import find_mount, is_dead_mount
from workspacefs.client.registry import LiveSession, forget_session, give_up_session
from workspacefs.client.unmount import unmount
from workspacefs.errors import NotFoundError, UnavailableError, UsageError
from workspacefs.statedir import StateDir

EXAMPLE = """\
  workspacefs umount /tmp/w
  workspacefs umount --lazy /tmp/w     # though programs still use it"""

_POLL_S: Final = 0.005
_KILL_WAIT_S: Final = 10.0
_LAZY_WAIT_S: Final = 1.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("mountpoint", metavar="MOUNTPOINT")
    parser.add_argument(
        "--lazy", action="store_true", help="take it out of sight though programs still use it"
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="end a session that does not answer; what was written is kept",
    )


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Unmount; return when the session's process has ended, so that it can be mounted again.

    With --lazy it may go on for the programs that still use it, and holds its session until then.
    """
    mountpoint = os.path.realpath(options.mountpoint)
    # We may have been started inside the mount, and must not be what keeps it busy.
    os.chdir("/")
    registered = _find_settled(mountpoint, context.state)
    if registered is not None and not registered.is_alive():
        return _remove_dead(registered, context)
    if options.force and registered is not None:
        return _kill(registered, context)
    address = _address(mountpoint, registered, context.state)
    if address is None:
        return _unmount_stranger(mountpoint, options, context.out)
    answer = _ask(address, is_lazy=options.lazy)
    if answer is None and registered is not None:
        left = _find_left(registered, context.state)
        if left is not None:
            return _remove_dead(left, context)
    answer = answer or {}
    wait_until_gone(address, registered, is_lazy=options.lazy)
    changes = answer.get("changes")
    if options.lazy and registered is not None and _goes_on(registered):
        context.out.line(f"unmounted {mountpoint}")
        context.out.note(
            f"session {address.session} goes on for the programs that use it (process "
            f"{registered.pid}), and can be mounted again when the last of them has ended"
        )
    else:
        _tell(address.session, address.store_url, mountpoint, changes, context.out)
    return {
        "mountpoint": mountpoint,
        "session": address.session,
        "store_url": address.store_url,
        "was_dead": False,
        "changes": changes,
    }


def _address(
    mountpoint: str, registered: LiveSession | None, state: StateDir
) -> SessionAddress | None:
    if registered is not None:
        return SessionAddress._make(getattr(registered, name) for name in SessionAddress._fields)
    address = find_session_of(mountpoint, state) if not is_dead_mount(mountpoint) else None
    if address is not None and address.mountpoint != mountpoint:
        raise UsageError(
            f"{mountpoint} lies inside a mount; unmount that: workspacefs umount "
            f"{quote(address.mountpoint)}",
            kind="mountpoint.inside",
            mountpoint=address.mountpoint,
        )
    return address


def _find_settled(mountpoint: str, state: StateDir) -> LiveSession | None:
    """Return the session that is registered at a mountpoint; if it is dead, it stays so."""
    registered = find_registered(mountpoint, state)
    if registered is not None and not registered.is_alive():
        release_mountpoint(mountpoint, state)  # it may be on its way back
        registered = find_registered(mountpoint, state)
    return registered


def _ask(address: SessionAddress, *, is_lazy: bool) -> Mapping[str, object] | None:
    """Ask a session to unmount. None: its process ended before it answered."""
    try:
        with address.connect() as connection:
            return connection.call("umount", {"lazy": is_lazy})
    except UnavailableError as exc:
        # The process may end faster than its answer travels; whether it worked is seen next.
        if exc.kind not in ("daemon.gone", "daemon.absent"):
            raise
        return None


def _find_left(session: LiveSession, state: StateDir) -> LiveSession | None:
    """Return what is registered of a session whose process has gone away without an answer, if it
    was killed; it stays dead.
    """
    deadline = time.monotonic() + _KILL_WAIT_S
    while session.is_alive() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    left = _find_settled(session.mountpoint, state)
    return left if left is not None and not left.is_alive() else None


def _goes_on(session: LiveSession) -> bool:
    """Tell whether a session that was unmounted lazily has users; one that has none ends soon."""
    deadline = time.monotonic() + _LAZY_WAIT_S
    while session.is_alive():
        if time.monotonic() > deadline:
            return True
        time.sleep(_POLL_S)
    return False


def _remove_dead(session: LiveSession, context: Context) -> Mapping[str, object]:
    mount = find_mount(session.mountpoint)
    if mount is not None and mount.is_fuse:
        unmount(session.mountpoint, is_lazy=True)
    forget_session(context.state, session.session_id)
    context.out.line(f"removed the dead mount {session.mountpoint} of session {session.session}")
    context.out.note(
        f"nothing that was written is lost; resume it with: workspacefs mount "
        f"{quote(session.store_url)} DIR --session {session.session}"
    )
    return {
        "mountpoint": session.mountpoint,
        "session": session.session,
        "store_url": session.store_url,
        "was_dead": True,
        "changes": None,
    }


def _kill(session: LiveSession, context: Context) -> Mapping[str, object]:
    with suppress(OSError):  # only needed if the process is killed before it has seen to it
        give_up_session(context.state, session.session_id, "it was unmounted by force")
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(session.pid, number)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + _KILL_WAIT_S
        while session.is_alive() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if not session.is_alive():
            break
    release_mountpoint(session.mountpoint, context.state)
    return _remove_dead(session, context)


def _unmount_stranger(
    mountpoint: str, options: argparse.Namespace, out: Output
) -> Mapping[str, object]:
    # No session of ours that is known here: perhaps one whose state directory is gone.
    mount = find_mount(mountpoint)
    if mount is None:
        raise NotFoundError(
            f"nothing is mounted at {mountpoint}; see: workspacefs sessions --local",
            kind="mountpoint.not_mounted",
            mountpoint=mountpoint,
        )
    if not mount.is_fuse:
        raise UsageError(
            f"{mountpoint} is a mount of {mount.kind}, not one of ours", kind="mountpoint.foreign"
        )
    is_dead = is_dead_mount(mountpoint)
    unmount(mountpoint, is_lazy=options.lazy or is_dead)
    out.line(f"unmounted {mountpoint}")
    return {
        "mountpoint": mountpoint,
        "session": None,
        "store_url": None,
        "was_dead": is_dead,
        "changes": None,
    }


def _tell(session: str, store_url: str, mountpoint: str, changes: object, out: Output) -> None:
    out.line(f"unmounted {mountpoint}")
    if changes:
        out.note(
            f"session {session} keeps its uncommitted changes; resume it with: "
            f"workspacefs mount {quote(store_url)} DIR --session {session}"
        )
