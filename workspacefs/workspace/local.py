"""A session's home on this machine: which base, which layers, and who holds it.

    <state>/sessions/<workspace id>/<session name>/
        lock            flock: held by the process that has the session mounted
        session.json    which session, its base, its layers: local_record.py

session.json is replaced whole and durably; it changes only when a session begins, freezes its
live layer, or has committed. The layers themselves lie in a pool (layer_pool.py), since forks
share them. What is in no list there is left over from a crash and is removed.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from workspacefs.errors import BusyError, IntegrityError, RefusedError
from workspacefs.layers.disk import from_os_error
from workspacefs.layers.journal import sync_directory
from workspacefs.statedir import StateDir
from workspacefs.workspace.layer_pool import LayerPlace, LayerPool
from workspacefs.workspace.local_record import LocalRecord, load_record, record_text

_RECORD: Final = "session.json"
_EARLIER: Final = "earlier-"
EPHEMERAL_MARK: Final = "ephemeral"
"""File in the directory of a session: see leftovers.py."""
_OLD_NUMBERS: Final = 1 << 32
_SLASH: Final = ","
"""Stands for / in directory names, as in keys: no session name has a comma."""


class LocalSession:
    """The directory of one session, locked by us. Close it to let another process have it."""

    def __init__(self, directory: Path, lock_fd: int, pool: LayerPool) -> None:
        self.directory = directory
        self.pool = pool
        self._lock_fd = lock_fd

    @classmethod
    def lock(cls, state: StateDir, workspace_id: str, name: str) -> LocalSession:
        """Take a session's directory; create it when it is not there.

        Raises:
            BusyError: Another process has the session mounted (kind "session.mounted").
        """
        directory = sessions_dir(state, workspace_id) / name.replace("/", _SLASH)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            os.close(fd)
            raise BusyError(
                f"session {name} is mounted already on this machine; unmount it first, or choose "
                "another session with --session",
                kind="session.mounted",
                session=name,
            ) from exc
        return cls(directory, fd, open_pool(state, workspace_id))

    def load(self) -> LocalRecord | None:
        """Return what session.json says, or None: there is no work here.

        Raises:
            IntegrityError: It is damaged.
        """
        found = load_record(self.directory / _RECORD)
        if found is not None and any(place.number < _OLD_NUMBERS for place in found.layers):
            self._move_old_layers(found)
        return found

    def save(self, record: LocalRecord) -> None:
        """Replace session.json; the new one survives power loss on return.

        Raises:
            NoSpaceError: The disk is full; the old one stands.
        """
        path, text = self.directory / _RECORD, record_text(record)
        temporary = path.with_suffix(".new")
        try:
            with temporary.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_directory(self.directory)
        except OSError as exc:
            raise from_os_error(exc, f"{path} cannot be written") from exc

    def forget(self, record: LocalRecord) -> None:
        """Delete session.json, and the layers that no other session needs; after power loss the
        layers may still be there.
        """
        (self.directory / _RECORD).unlink()
        (self.directory / EPHEMERAL_MARK).unlink(missing_ok=True)
        sync_directory(self.directory)
        self.pool.release(record.all_places())

    def take_over(self, other: LocalSession) -> None:
        """Take what another name has, which we have locked too: the same session, renamed. One
        step: after a crash it is there or here, with all of its layers.
        """
        with self.pool.holding():  # who looks for what is in use must not miss the record
            self.pool.hand_over(other.owner, self.owner)
            if (other.directory / EPHEMERAL_MARK).exists():
                (self.directory / EPHEMERAL_MARK).touch(mode=0o600)
            (other.directory / _RECORD).rename(self.directory / _RECORD)
            (other.directory / EPHEMERAL_MARK).unlink(missing_ok=True)
            sync_directory(self.directory)
            sync_directory(other.directory)

    @property
    def owner(self) -> str:
        """What the pool calls this session."""
        return self.directory.name

    def layer_directory(self, place: LayerPlace) -> Path:
        """Return where a layer is."""
        return self.pool.directory(place)

    def check_layers(self, record: LocalRecord) -> None:
        """Look whether all layers are there. What only a checkpoint needs is looked at when that is
        gone back to.

        Raises:
            IntegrityError: One is missing: opening it would begin an empty one in its place.
        """
        for place in record.layers:
            directory = self.layer_directory(place)
            if not (directory / "boot").exists():
                raise IntegrityError(
                    f"layer {directory} is missing, and with it work that is not committed",
                    kind="layer.missing",
                )

    def _move_old_layers(self, record: LocalRecord) -> None:
        """Bring layers of a record of format 1 into the pool."""
        with self.pool.holding():
            for place in record.layers:
                if place.number < _OLD_NUMBERS:
                    old = self.directory / "layers" / str(place.number)
                    self.pool.adopt(old, place, self.owner)

    def set_aside(self, session_id: str) -> Path:
        """Move the record of an earlier session of this name out of the way; its layers stay."""
        kept = self.directory / f"{_EARLIER}{session_id}"
        kept.mkdir(mode=0o700)
        (self.directory / _RECORD).rename(kept / _RECORD)
        return kept

    def close(self) -> None:
        """Let go of the lock."""
        os.close(self._lock_fd)


def has_copy(state: StateDir, workspace_id: str, name: str) -> bool:
    """Tell whether there is work of a session of that name here, mounted or not."""
    return (sessions_dir(state, workspace_id) / name.replace("/", _SLASH) / _RECORD).exists()


def find_copy(state: StateDir, workspace_id: str, session_id: str) -> str | None:
    """Return the name under which there is work of a session here, or None; what cannot be read is
    passed over.
    """
    for path in sessions_dir(state, workspace_id).glob(f"*/{_RECORD}"):
        with suppress(IntegrityError, RefusedError):
            record = load_record(path)
            if record is not None and record.session_id == session_id:
                return session_name(path.parent)
    return None


def open_pool(state: StateDir, workspace_id: str) -> LayerPool:
    """Return the layers of a workspace on this machine."""
    sessions = sessions_dir(state, workspace_id)

    def find_used() -> frozenset[str]:
        records = (load_record(path) for path in iter_record_paths(sessions))
        return frozenset(
            place.name for record in records if record is not None for place in record.all_places()
        )

    return LayerPool(Path(state.layers_dir) / workspace_id, find_used)


def sessions_dir(state: StateDir, workspace_id: str) -> Path:
    """Return where the directories of a workspace's sessions are."""
    return Path(state.sessions_dir) / workspace_id


def session_name(directory: Path) -> str:
    """Return the name of the session that a directory belongs to."""
    return directory.name.replace(_SLASH, "/")


def iter_record_paths(sessions: Path) -> Iterator[Path]:
    """Yield every session.json in the directory of a workspace's sessions, those set aside too."""
    yield from sessions.glob(f"*/{_RECORD}")
    yield from sessions.glob(f"*/{_EARLIER}*/{_RECORD}")
