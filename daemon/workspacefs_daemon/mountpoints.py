"""Directories to mount on: whether they are fit, and what a dead mount left there.

A dead mount stays until there is something to put in its place: whoever uses it gets an error for
each access, and no chance to write into the bare directory, where a mount would hide it.

Runs in the process that is about to mount, never in the supervisor: a look at a mountpoint of a
server that hangs does not return.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from shlex import quote
from typing import Final
from urllib.parse import unquote, urlsplit

from workspacefs.client.mountinfo import find_mount, is_dead_mount, is_inside
from workspacefs.client.registry import LiveSession, find_hidden, load_sessions
from workspacefs.client.unmount import unmount
from workspacefs.errors import BusyError, NotFoundError, RefusedError, UsageError
from workspacefs.statedir import StateDir
from workspacefs_daemon.spec import SessionSpec

log = logging.getLogger(__name__)

_STACKED_MOUNTS_MAX: Final = 16


def prepare_mountpoint(spec: SessionSpec) -> None:
    """Make sure that `spec.mountpoint` can be mounted on, as far as a dead mount there lets us see.

    Raises:
        NotFoundError: It does not exist.
        UsageError: It is no directory, or lies inside the store.
        BusyError: It is not empty, or something is mounted there; also when the session that is
            asked for is mounted already, here or elsewhere.
        RefusedError: We may not write to it.
    """
    state = StateDir(spec.state_dir)
    _refuse_mounted_session(spec, state)
    _check_outside_store(spec)
    if not is_dead_mount(spec.mountpoint):
        _check_place(spec.mountpoint, state)


@contextmanager
def clear_mountpoint(spec: SessionSpec) -> Iterator[None]:
    """Take dead mounts away from where the block mounts, and say what it hides.

    Raises:
        WorkspaceError: As prepare_mountpoint, of what lay below the dead mount.
    """
    mountpoint = spec.mountpoint
    if not is_dead_mount(mountpoint):
        _refuse_mount(mountpoint, StateDir(spec.state_dir))  # opening may have taken long
        yield
        return
    for _ in range(_STACKED_MOUNTS_MAX):
        if not is_dead_mount(mountpoint):
            break
        unmount(mountpoint, is_lazy=True)
        log.info("mount.dead_removed", extra={"mountpoint": mountpoint})
    _check_place(mountpoint, StateDir(spec.state_dir))
    beneath = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield
        if hidden := os.listdir(beneath):
            # Written in the instant between the two mounts. It is safe there, and out of sight.
            log.warning("mount.hides_files", extra={"mountpoint": mountpoint, "files": len(hidden)})
    finally:
        os.close(beneath)


def _check_place(mountpoint: str, state: StateDir) -> None:
    _check_directory(mountpoint)
    _refuse_mount(mountpoint, state)
    _check_contents(mountpoint)


def _refuse_mounted_session(spec: SessionSpec, state: StateDir) -> None:
    sessions = load_sessions(state)
    for session in sessions:
        if (
            session.session == spec.session_name
            and session.store_url == spec.store_url
            and not session.is_read_only
            and not spec.read_only
            and session.is_alive()
        ):
            told = f"is mounted already, at {session.mountpoint}; use it there, unmount it"
            if session.mountpoint == spec.mountpoint:
                since = datetime.fromtimestamp(session.mounted_ns / 1e9, UTC)
                told = (
                    f"is mounted there already, since {since:%H:%M:%S} UTC (one whose process died "
                    f"is mounted again by itself). Go on with: cd {quote(session.mountpoint)}; "
                    "or unmount it"
                )
            if session.session_id in find_hidden(sessions):
                told = (
                    f"is in use, though {session.mountpoint} does not show it any more (unmounted "
                    "lazily, or mounted in another container); end the programs that use it, or "
                    f"its process {session.pid}"
                )
            raise BusyError(
                f"session {session.session} {told}, or mount another session",
                kind="session.mounted",
                session=session.session,
                mountpoint=session.mountpoint,
            )


def _check_directory(mountpoint: str) -> None:
    try:
        found = os.stat(mountpoint)
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise NotFoundError(
            f"the mountpoint {mountpoint} does not exist; "
            f"create it with: mkdir -p {quote(mountpoint)} (or give --mkdir)",
            kind="mountpoint.absent",
            mountpoint=mountpoint,
        ) from exc
    except OSError as exc:
        raise RefusedError(
            f"the mountpoint {mountpoint} cannot be looked at: {exc.strerror}",
            kind="mountpoint.unusable",
            mountpoint=mountpoint,
        ) from exc
    if not stat.S_ISDIR(found.st_mode):
        raise UsageError(
            f"the mountpoint {mountpoint} is not a directory; name an empty directory",
            kind="mountpoint.not_directory",
            mountpoint=mountpoint,
        )


def _refuse_mount(mountpoint: str, state: StateDir) -> None:
    mount = find_mount(mountpoint)
    if mount is None:
        return
    holder = _find_session_at(mountpoint, state)
    told = f"session {holder.session} of {holder.store_url}" if holder else mount.kind
    raise BusyError(
        f"{mountpoint} is a mount point already ({told}); unmount it first, or name another "
        "directory",
        kind="mountpoint.mounted",
        mountpoint=mountpoint,
        session=holder.session if holder else None,
    )


def _find_session_at(mountpoint: str, state: StateDir) -> LiveSession | None:
    for session in load_sessions(state):
        if session.mountpoint == mountpoint and session.is_alive():
            return session
    return None


def _check_contents(mountpoint: str) -> None:
    if not os.access(mountpoint, os.W_OK | os.X_OK):
        raise RefusedError(
            f"we may not write to the mountpoint {mountpoint}; name a directory of your own",
            kind="mountpoint.unusable",
            mountpoint=mountpoint,
        )
    with os.scandir(mountpoint) as names:
        first = next(names, None)
    if first is not None:
        raise BusyError(
            f"the mountpoint {mountpoint} is not empty (it holds {first.name!r}), and a mount "
            "would hide what is in it; name an empty directory",
            kind="mountpoint.not_empty",
            mountpoint=mountpoint,
        )


def _check_outside_store(spec: SessionSpec) -> None:
    parts = urlsplit(spec.store_url)
    if parts.scheme == "file" and is_inside(
        spec.mountpoint, os.path.realpath(unquote(parts.path, errors="surrogateescape"))
    ):
        raise UsageError(
            f"the mountpoint {spec.mountpoint} lies inside the store {spec.store_url}; "
            "name a directory outside of it",
            kind="mountpoint.in_store",
            mountpoint=spec.mountpoint,
        )
