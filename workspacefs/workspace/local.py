"""A session's home on this machine: which base, which layers, and who holds it.

    <state>/sessions/<workspace id>/<session name>/
        lock            flock: held by the process that has the session mounted
        session.json    which session, its base, its layers; `check` is the BLAKE3 of the rest
        layers/<n>/     see layers/layer.py

session.json is replaced whole and durably; it changes only when a session begins, freezes its
live layer, or has committed. What is in no list there is left over from a crash and is removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from blake3 import blake3

from workspacefs.errors import BusyError, IntegrityError, RefusedError
from workspacefs.ids import CommitId, PackId
from workspacefs.layers.disk import from_os_error
from workspacefs.layers.journal import sync_directory
from workspacefs.objects.refs import Locator, Ref

_FORMAT: Final = 1
_SLASH: Final = ","
"""Stands for / in directory names, as in keys: no session name has a comma."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRecord:
    """What session.json says."""

    session_id: str
    base: Ref | None
    """Commit that the layers lie over; None: an empty workspace."""
    layers: tuple[int, ...]
    """Numbers, the eldest first; the last one is live."""
    next_layer: int
    sealing: CommitId | None = None
    """Commit that `sealed_layers` were being made into when this was written."""
    sealed_layers: tuple[int, ...] = ()

    def freeze(self) -> LocalRecord:
        """Return the record with one more live layer on top."""
        return replace(self, layers=(*self.layers, self.next_layer), next_layer=self.next_layer + 1)


class LocalSession:
    """The directory of one session, locked by us. Close it to let another process have it."""

    def __init__(self, directory: Path, lock_fd: int) -> None:
        self.directory = directory
        self._lock_fd = lock_fd

    @classmethod
    def lock(cls, sessions_dir: Path, workspace_id: str, name: str) -> LocalSession:
        """Take a session's directory; create it when it is not there.

        Raises:
            BusyError: Another process has the session mounted (kind "session.mounted").
        """
        directory = sessions_dir / workspace_id / name.replace("/", _SLASH)
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
        return cls(directory, fd)

    def load(self) -> LocalRecord | None:
        """Return what session.json says, or None: there is no work here.

        Raises:
            IntegrityError: It is damaged.
        """
        path = self.directory / "session.json"
        try:
            text = path.read_text()
        except FileNotFoundError:
            return None
        try:
            return _record_of(_checked(text), path)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise IntegrityError(
                f"{path} is damaged; the layers beside it are kept", kind="session.local_damaged"
            ) from exc

    def save(self, record: LocalRecord) -> None:
        """Replace session.json; the new one survives power loss on return.

        Raises:
            NoSpaceError: The disk is full; the old one stands.
        """
        path = self.directory / "session.json"
        document = _document_of(record)
        temporary = path.with_suffix(".new")
        try:
            with temporary.open("w") as file:
                file.write(_line({**document, "check": _check_of(document)}))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_directory(self.directory)
        except OSError as exc:
            raise from_os_error(exc, f"{path} cannot be written") from exc

    def layer_directory(self, number: int) -> Path:
        """Return where a layer is."""
        return self.directory / "layers" / str(number)

    def remove_layer(self, number: int) -> None:
        """Delete a layer that no record names any more."""
        shutil.rmtree(self.layer_directory(number), ignore_errors=True)

    def sweep_layers(self, record: LocalRecord) -> None:
        """Delete layers that the record does not name: what a crash left."""
        layers = self.directory / "layers"
        if layers.is_dir():
            for path in layers.iterdir():
                if not path.name.isdigit() or int(path.name) not in record.layers:
                    shutil.rmtree(path)

    def has_layers(self) -> bool:
        """Tell whether there are layers, of whatever."""
        layers = self.directory / "layers"
        return layers.is_dir() and any(layers.iterdir())

    def check_layers(self, record: LocalRecord) -> None:
        """Look whether all layers are there.

        Raises:
            IntegrityError: One is missing: opening it would begin an empty one in its place.
        """
        for number in record.layers:
            directory = self.layer_directory(number)
            if not (directory / "boot").exists():
                raise IntegrityError(
                    f"layer {directory} is missing, and with it work that is not committed",
                    kind="layer.missing",
                )

    def set_aside(self, session_id: str) -> Path:
        """Move layers of an earlier session of this name out of the way; nothing is deleted."""
        kept = self.directory / f"earlier-{session_id}"
        kept.mkdir(mode=0o700)
        for name in ("layers", "session.json"):
            path = self.directory / name
            if path.exists():
                path.rename(kept / name)
        return kept

    def close(self) -> None:
        """Let go of the lock."""
        os.close(self._lock_fd)


def _checked(text: str) -> dict[str, object]:
    document = json.loads(text)
    check = document.pop("check", None)
    is_ours = document["format"] == _FORMAT  # a newer one is refused as such
    if is_ours and (check != _check_of(document) or not document["layers"]):
        raise ValueError("the check does not fit")
    assert isinstance(document, dict)
    return document


def _check_of(document: Mapping[str, object]) -> str:
    return blake3(_line(document).encode("ascii")).hexdigest()


def _line(document: Mapping[str, object]) -> str:
    return json.dumps(document, sort_keys=True) + "\n"


def _document_of(record: LocalRecord) -> dict[str, object]:
    return {
        "format": _FORMAT,
        "session_id": record.session_id,
        "base": None if record.base is None else record.base.id.hex(),
        "base_locator": _locator_out(None if record.base is None else record.base.locator),
        "layers": list(record.layers),
        "next_layer": record.next_layer,
        "sealing": None if record.sealing is None else record.sealing.hex(),
        "sealed_layers": list(record.sealed_layers),
    }


def _record_of(document: Mapping[str, object], path: Path) -> LocalRecord:
    version = document["format"]
    if not isinstance(version, int) or version > _FORMAT:
        raise RefusedError(
            f"{path} is of format {version}, newer than {_FORMAT}; use a newer release",
            kind="format.newer",
        )
    base, sealing = document["base"], document["sealing"]
    return LocalRecord(
        session_id=str(document["session_id"]),
        base=None
        if base is None
        else Ref(bytes.fromhex(str(base)), _locator_in(document["base_locator"])),
        layers=_numbers(document["layers"]),
        next_layer=int(str(document["next_layer"])),
        sealing=None if sealing is None else CommitId(bytes.fromhex(str(sealing))),
        sealed_layers=_numbers(document["sealed_layers"]),
    )


def _numbers(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    return tuple(int(number) for number in value)


def _locator_out(locator: Locator | None) -> list[object] | None:
    return None if locator is None else [locator.pack_id.hex(), *locator[1:]]


def _locator_in(value: object) -> Locator | None:
    if not isinstance(value, list):
        return None
    pack_id, *numbers = value
    return Locator(PackId(bytes.fromhex(pack_id)), *numbers)
