"""Which sessions are mounted from here, and by which processes: one small file each.

A session process writes its file when it is mounted and removes it when it ends; a killed one
leaves it behind, which is how a dead mount is known by name. Beside it may lie a note that says why
nobody brings the session back. The supervisor owns none of this, so it may die and come back.
Files are replaced whole; they are worthless after a reboot.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from workspacefs.client.mountinfo import find_mount, load_mounts
from workspacefs.statedir import StateDir

_BOOT_ID_PATH: Final = "/proc/sys/kernel/random/boot_id"
_START_TICKS_FIELD: Final = 19  # counted after the command name, which may hold anything
_FILE_MAX_BYTES: Final = 64 * 1024
_KINDS: Final = {"is_read_only": bool, "pid": int, "start_ticks": int, "mounted_ns": int}


class LiveSession(NamedTuple):
    """A session and the process that serves it; alive when the file was written."""

    session: str
    session_id: str
    socket: str
    mountpoint: str
    store_url: str
    branch: str
    is_read_only: bool
    pid: int
    start_ticks: int
    """Field `starttime` of /proc/PID/stat: with the pid it names a process for ever."""
    boot_id: str
    mounted_ns: int
    """Wall time, for people."""

    def is_alive(self) -> bool:
        """Tell whether that very process still runs."""
        return self.boot_id == boot_id() and find_start_ticks(self.pid) == self.start_ticks


def boot_id() -> str:
    """Return the id of this boot of the machine."""
    with open(_BOOT_ID_PATH) as file:
        return file.read().strip()


def find_start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the boot; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # A zombie serves nothing any more; its parent just has not looked yet.
    return None if fields[0] in (b"Z", b"X") else int(fields[_START_TICKS_FIELD])


def save_session(state: StateDir, session: LiveSession) -> None:
    """Register a session. Atomic; survives process death, not meant to survive power loss."""
    path = state.registry_file(session.session_id)
    temporary = f"{path}.{os.getpid()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        json.dump(session._asdict(), file)
    os.replace(temporary, path)


def forget_session(state: StateDir, session_id: str) -> None:
    """Remove what a session left in the run directory. Idempotent."""
    # The note goes last: until nothing names the session, it must not look like one that died.
    for path in (
        state.session_socket(session_id),
        state.registry_file(session_id),
        state.given_up_file(session_id),
    ):
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass


def give_up_session(state: StateDir, session_id: str, why: str) -> None:
    """Note that nobody shall bring a session back when its process dies; `why` is for people."""
    path = state.given_up_file(session_id)
    temporary = f"{path}.{os.getpid()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(why)
    os.replace(temporary, path)


def want_session(state: StateDir, session_id: str) -> None:
    """Take such a note back. Idempotent."""
    try:
        os.unlink(state.given_up_file(session_id))
    except FileNotFoundError:
        pass


def find_given_up(state: StateDir, session_id: str) -> str | None:
    """Return why nobody brings a session back, or None: it is brought back if it dies."""
    path = state.given_up_file(session_id)
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(_FILE_MAX_BYTES)
    except FileNotFoundError:
        return None


def find_session(state: StateDir, session_id: str) -> LiveSession | None:
    """Return what is registered under an id, alive or not, or None."""
    return _load_session(state.registry_file(session_id))


def load_sessions(state: StateDir) -> list[LiveSession]:
    """Return all registered sessions, also those whose process died, by mountpoint."""
    try:
        names = os.listdir(state.run_dir)
    except FileNotFoundError:
        return []
    found = [
        session
        for name in names
        if name.endswith(".json")
        and (session := _load_session(f"{state.run_dir}/{name}")) is not None
    ]
    return sorted(found, key=lambda session: (session.mountpoint, session.mounted_ns))


def living_sessions(state: StateDir) -> list[LiveSession]:
    """Return the registered sessions whose process runs."""
    return [session for session in load_sessions(state) if session.is_alive()]


def find_hidden(sessions: Iterable[LiveSession]) -> frozenset[str]:
    """Return the ids of the living sessions whose mount is out of sight: `umount --lazy` took it
    away, and programs that had opened something in it keep its process.

    Args:
        sessions: In the order of load_sessions().
    """
    living = [session for session in sessions if session.is_alive()]
    seen = {session.mountpoint: session.session_id for session in living}
    mounts = load_mounts()
    return frozenset(
        session.session_id
        for session in living
        if seen[session.mountpoint] != session.session_id
        or (mount := find_mount(session.mountpoint, mounts)) is None
        or not mount.is_fuse
    )


def _load_session(path: str) -> LiveSession | None:
    # A file that is not whole was left by a crash of the machine: it names no living process.
    try:
        with open(path, "rb") as file:
            document = json.loads(file.read(_FILE_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return _session_from(document) if isinstance(document, dict) else None


def _session_from(document: Mapping[str, object]) -> LiveSession | None:
    values = []
    for name in LiveSession._fields:
        value = document.get(name)
        if type(value) is not _KINDS.get(name, str):
            return None
        values.append(value)
    return LiveSession._make(values)
