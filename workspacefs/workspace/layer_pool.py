"""The layers of one workspace on this machine: who has which, and when one may go.

    <state>/layers/<workspace id>/
        lock            flock: shared while layers are made or handed on, exclusive while some go
        <name>/         one layer (layers/layer.py)
            owner       name of the session directory that made it

A layer belongs to nobody: session records (local_record.py) name the layers that they need, and a
fork names those of its parent. Frozen layers never change, so any number of sessions may read one.
What no record names any more is deleted by whoever let go of it last.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from workspacefs.errors import WorkspaceError

log = logging.getLogger(__name__)

_NUMBER_BITS: Final = 62
_OWNER: Final = "owner"


class LayerPlace(NamedTuple):
    """A layer, as records name it."""

    number: int
    """That rows of layers above it call it by; unique on this machine, but for those below 2**32:
    they come from records of format 1 and are unique in their session and its forks."""
    name: str
    """Of its directory."""


FindUsed = Callable[[], frozenset[str]]
"""Returns the names of all layers in records; raises when a record cannot be read."""


class LayerPool:
    """The directory of a workspace's layers."""

    def __init__(self, directory: Path, find_used: FindUsed) -> None:
        self._directory = directory
        self._find_used = find_used

    def directory(self, place: LayerPlace) -> Path:
        """Return where a layer is, or would be."""
        return self._directory / place.name

    def size_bytes(self, name: str) -> int:
        """Return what a layer takes on disk; what goes meanwhile counts for nothing."""
        total = 0
        for directory, _, files in os.walk(self._directory / name):
            for file in files:
                with suppress(FileNotFoundError):
                    total += os.lstat(os.path.join(directory, file)).st_blocks * 512
        return total

    def new_place(self, owner: str) -> LayerPlace:
        """Return a place for a new layer, and write down which session makes it. The caller is
        holding() until its record names it.
        """
        number = secrets.randbits(_NUMBER_BITS) | 1 << 32
        place = LayerPlace(number, f"{number:016x}")
        directory = self.directory(place)
        directory.mkdir(mode=0o700)
        (directory / _OWNER).write_text(owner)
        return place

    def give(self, place: LayerPlace, owner: str) -> None:
        """Write down that a session has a layer which another one made. The caller is holding()."""
        (self.directory(place) / _OWNER).write_text(owner)

    def adopt(self, path: Path, place: LayerPlace, owner: str) -> None:
        """Take in the directory of a layer that lies elsewhere. Idempotent."""
        if path.exists():
            (path / _OWNER).write_text(owner)
            path.rename(self.directory(place))

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Let no layer go within the block: one is made, or handed on, until a record names it."""
        with self._locked(fcntl.LOCK_SH):
            yield

    def release(self, places: Iterable[LayerPlace]) -> None:
        """Delete those of these layers that no record names. The caller's record did, and does not
        any more. What cannot be deleted now goes with sweep().
        """
        with self._locked(fcntl.LOCK_EX):
            used = self._used()
            for place in places:
                if used is not None and place.name not in used:
                    shutil.rmtree(self.directory(place), ignore_errors=True)

    def sweep(self, owner: str, kept: Collection[str] = ()) -> None:
        """Delete what a crash left of a session: layers that it made and that no record names, but
        for `kept`, by name: its process has those open still.
        """
        with self._locked(fcntl.LOCK_EX):
            used = self._used()
            if used is None:
                return
            for path in self._directory.iterdir():
                if path.name not in used and path.name not in kept and _owner_of(path) == owner:
                    shutil.rmtree(path, ignore_errors=True)

    def hand_over(self, owner: str, new_owner: str) -> None:
        """Write down that another one made what a session made: it was renamed. The caller is
        holding(). After a crash some may have either owner; all are in its record.
        """
        for path in self._directory.iterdir():
            if _owner_of(path) == owner:
                (path / _OWNER).write_text(new_owner)

    def disown(self, owner: str) -> list[Path]:
        """Keep for ever what a session made and no record names, as its record is lost; return the
        directories that have work in them.
        """
        found = []
        with self._locked(fcntl.LOCK_EX):
            used = self._used() or frozenset()
            for path in self._directory.iterdir():
                if path.name in used or _owner_of(path) != owner:
                    continue
                if (path / "data.mdb").exists():
                    (path / _OWNER).unlink()
                    found.append(path)
                else:  # it was just being made
                    shutil.rmtree(path, ignore_errors=True)
        return found

    def _used(self) -> frozenset[str] | None:
        try:
            return self._find_used()
        except WorkspaceError as exc:
            # Nobody knows what a record that cannot be read needs: all of it stays.
            log.warning("layers.kept", extra={"kind": exc.kind, "reason": str(exc)})
            return None

    @contextmanager
    def _locked(self, operation: int) -> Iterator[None]:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, operation)
            yield
        finally:
            os.close(fd)


def _owner_of(path: Path) -> str | None:
    try:
        return (path / _OWNER).read_text()
    except OSError:
        return None
