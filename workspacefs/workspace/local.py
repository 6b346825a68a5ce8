"""A session's home on this machine: which base, which layers, and who holds it.

    <state>/sessions/<workspace id>/<session name>/
        lock            flock: held by the process that has the session mounted
        session.json    which session, its base, its layers; `check` is the BLAKE3 of the rest

session.json is replaced whole and durably; it changes only when a session begins, freezes its
live layer, or has committed. The layers themselves lie in a pool (layer_pool.py), since forks
share them. What is in no list there is left over from a crash and is removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from blake3 import blake3

from workspacefs.errors import BusyError, IntegrityError, RefusedError
from workspacefs.ids import CommitId, PackId
from workspacefs.layers.disk import from_os_error
from workspacefs.layers.journal import sync_directory
from workspacefs.objects.refs import Locator, Ref
from workspacefs.statedir import StateDir
from workspacefs.workspace.layer_pool import LayerPlace, LayerPool

_FORMAT: Final = 3
"""3: rows of layers may name own files of other file ids, which earlier releases would misread."""
_RECORD: Final = "session.json"
_EARLIER: Final = "earlier-"
EPHEMERAL_MARK: Final = "ephemeral"
"""File in the directory of a session: see leftovers.py."""
_OLD_NUMBERS: Final = 1 << 32
AUTOMATIC_CHECKPOINTS_MAX: Final = 16
"""So many restores can be undone: each keeps the layers that only it needs."""
_SLASH: Final = ","
"""Stands for / in directory names, as in keys: no session name has a comma."""


class IdMark(NamedTuple):
    """A place in an epoch of file ids."""

    epoch: int
    number: int


class IdRange(NamedTuple):
    """File ids `start` to `stop` of an epoch."""

    epoch: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCheckpoint:
    """A moment of a session that can be gone back to."""

    name: str
    message: str
    created_ns: int
    """Wall time, for people."""
    base: Ref | None
    """Commit that the layers lie over."""
    layers: tuple[LayerPlace, ...]
    """All frozen, the eldest first."""
    is_automatic: bool = False
    """Whether it was made before a restore, and nobody asked for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRecord:
    """What session.json says."""

    session_id: str
    base: Ref | None
    """Commit that the layers lie over; None: an empty workspace."""
    layers: tuple[LayerPlace, ...]
    """The eldest first; the last one is live."""
    sealing: CommitId | None = None
    """Commit that `sealed_layers` were being made into when this was written."""
    sealed_layers: tuple[int, ...] = ()
    """Numbers."""
    given_ids: IdMark | None = None
    """File ids before this mark are in use or were given to forks, whatever the live layer says
    after a power loss."""
    own_ids: IdRange | None = None
    """That a fork was given to begin with."""
    saver: str = ""
    """Tells this copy of the session from those on other machines; hex, random."""
    checkpoints: tuple[LocalCheckpoint, ...] = ()
    """In the order in which they were made."""
    begun_from: CommitId | None = None
    """The saved work, perhaps another machine's, that this copy of the session began with."""

    def all_places(self) -> Iterator[LayerPlace]:
        """Yield every layer that the session needs; some more than once."""
        yield from self.layers
        for checkpoint in self.checkpoints:
            yield from checkpoint.layers

    def find_checkpoint(self, name: str) -> LocalCheckpoint | None:
        """Return the checkpoint of that name, or None."""
        return next((one for one in self.checkpoints if one.name == name), None)

    def with_checkpoint(self, made: LocalCheckpoint) -> LocalRecord:
        """Return the record with one more checkpoint. Of automatic ones the latest stay."""
        all_of_them = (*self.checkpoints, made)
        automatic = [one for one in all_of_them if one.is_automatic]
        old = automatic[:-AUTOMATIC_CHECKPOINTS_MAX]
        kept = tuple(one for one in all_of_them if one not in old)
        return replace(self, checkpoints=kept)

    def with_live(self, place: LayerPlace) -> LocalRecord:
        """Return the record with one more layer on top."""
        return replace(self, layers=(*self.layers, place))

    def without(self, numbers: Collection[int]) -> LocalRecord:
        """Return the record without some layers, and not sealing any more."""
        kept = tuple(place for place in self.layers if place.number not in numbers)
        return replace(self, layers=kept, sealing=None, sealed_layers=())


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
        found = _load(self.directory / _RECORD)
        if found is not None and any(place.number < _OLD_NUMBERS for place in found.layers):
            self._move_old_layers(found)
        return found

    def save(self, record: LocalRecord) -> None:
        """Replace session.json; the new one survives power loss on return.

        Raises:
            NoSpaceError: The disk is full; the old one stands.
        """
        path = self.directory / _RECORD
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
            record = _load(path)
            if record is not None and record.session_id == session_id:
                return session_name(path.parent)
    return None


def open_pool(state: StateDir, workspace_id: str) -> LayerPool:
    """Return the layers of a workspace on this machine."""
    sessions = sessions_dir(state, workspace_id)

    def find_used() -> frozenset[str]:
        records = (_load(path) for path in _iter_record_paths(sessions))
        return frozenset(
            place.name for record in records if record is not None for place in record.all_places()
        )

    return LayerPool(Path(state.layers_dir) / workspace_id, find_used)


def new_saver() -> str:
    """Return a saver that no other copy of a session has."""
    return secrets.token_hex(8)


class LocalSizes(NamedTuple):
    """What a session takes on the disk of this machine."""

    layers: int
    unique_bytes: int
    """In layers that no other session needs."""
    shared_bytes: int


def local_sizes(state: StateDir, workspace_id: str) -> dict[str, LocalSizes]:
    """Return what each session that has work here takes, by session id; what cannot be read is
    left out.
    """
    pool = open_pool(state, workspace_id)
    records = []
    for path in _iter_record_paths(sessions_dir(state, workspace_id)):
        with suppress(IntegrityError, RefusedError):  # to mount it says so
            if (record := _load(path)) is not None:
                records.append(record)
    users = Counter(name for record in records for name in _names_in(record))
    bytes_by_name = {name: pool.size_bytes(name) for name in users}

    def total(record: LocalRecord, *, is_shared: bool) -> int:
        return sum(
            bytes_by_name[name] for name in _names_in(record) if (users[name] > 1) == is_shared
        )

    return {
        record.session_id: LocalSizes(
            len(record.layers), total(record, is_shared=False), total(record, is_shared=True)
        )
        for record in records
    }


def _names_in(record: LocalRecord) -> set[str]:
    return {place.name for place in record.all_places()}


def sessions_dir(state: StateDir, workspace_id: str) -> Path:
    """Return where the directories of a workspace's sessions are."""
    return Path(state.sessions_dir) / workspace_id


def session_name(directory: Path) -> str:
    """Return the name of the session that a directory belongs to."""
    return directory.name.replace(_SLASH, "/")


def _iter_record_paths(sessions: Path) -> Iterator[Path]:
    yield from sessions.glob(f"*/{_RECORD}")
    yield from sessions.glob(f"*/{_EARLIER}*/{_RECORD}")


def _load(path: Path) -> LocalRecord | None:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    try:
        return _record_of(_checked(text), path)
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise IntegrityError(
            f"{path} is damaged; the layers of the session are kept", kind="session.local_damaged"
        ) from exc


def _checked(text: str) -> dict[str, object]:
    document = json.loads(text)
    check = document.pop("check", None)
    is_ours = document["format"] <= _FORMAT  # a newer one is refused as such
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
        "layers": [list(place) for place in record.layers],
        "sealing": None if record.sealing is None else record.sealing.hex(),
        "sealed_layers": list(record.sealed_layers),
        "given_ids": None if record.given_ids is None else list(record.given_ids),
        "own_ids": None if record.own_ids is None else list(record.own_ids),
        "saver": record.saver,
        "checkpoints": [_checkpoint_out(one) for one in record.checkpoints],
        "begun_from": None if record.begun_from is None else record.begun_from.hex(),
    }


def _record_of(document: Mapping[str, object], path: Path) -> LocalRecord:
    version = document["format"]
    if not isinstance(version, int) or version > _FORMAT:
        raise RefusedError(
            f"{path} is of format {version}, newer than {_FORMAT}; use a newer release",
            kind="format.newer",
        )
    base, sealing = document["base"], document["sealing"]
    session_id = str(document["session_id"])
    given, own = document.get("given_ids"), document.get("own_ids")
    begun = document.get("begun_from")
    return LocalRecord(
        session_id=session_id,
        base=_ref_in(base, document["base_locator"]),
        layers=tuple(_place_in(stored, session_id) for stored in _list_in(document["layers"])),
        sealing=None if sealing is None else CommitId(bytes.fromhex(str(sealing))),
        sealed_layers=tuple(map(int, _list_in(document["sealed_layers"]))),
        given_ids=None if given is None else IdMark(*map(int, _list_in(given))),
        own_ids=None if own is None else IdRange(*map(int, _list_in(own))),
        saver=str(document.get("saver", "")) or new_saver(),
        checkpoints=tuple(map(_checkpoint_in, _list_in(document.get("checkpoints", [])))),
        begun_from=None if begun is None else CommitId(bytes.fromhex(str(begun))),
    )


def _checkpoint_out(checkpoint: LocalCheckpoint) -> dict[str, object]:
    base = checkpoint.base
    return {
        "name": checkpoint.name,
        "message": checkpoint.message,
        "created_ns": checkpoint.created_ns,
        "base": None if base is None else base.id.hex(),
        "base_locator": _locator_out(None if base is None else base.locator),
        "layers": [list(place) for place in checkpoint.layers],
        "is_automatic": checkpoint.is_automatic,
    }


def _checkpoint_in(stored: dict[str, object]) -> LocalCheckpoint:
    return LocalCheckpoint(
        name=str(stored["name"]),
        message=str(stored["message"]),
        created_ns=int(str(stored["created_ns"])),
        base=_ref_in(stored["base"], stored["base_locator"]),
        layers=tuple(_place_in(place, "") for place in _list_in(stored["layers"])),
        is_automatic=stored.get("is_automatic") is True,
    )


def _ref_in(commit: object, locator: object) -> Ref | None:
    return None if commit is None else Ref(bytes.fromhex(str(commit)), _locator_in(locator))


def _place_in(stored: object, session_id: str) -> LayerPlace:
    if isinstance(stored, int):  # format 1
        return LayerPlace(stored, f"{session_id}-{stored}")
    number, name = _list_in(stored)
    return LayerPlace(int(number), str(name))


def _list_in(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    return value


def _locator_out(locator: Locator | None) -> list[object] | None:
    return None if locator is None else [locator.pack_id.hex(), *locator[1:]]


def _locator_in(value: object) -> Locator | None:
    if not isinstance(value, list):
        return None
    pack_id, *numbers = value
    return Locator(PackId(bytes.fromhex(pack_id)), *numbers)
