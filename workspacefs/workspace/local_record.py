"""What session.json says of a session on this machine, as a value and as the text that is on disk.

One line of JSON with sorted keys; `check` is the BLAKE3 of the same line without it. Where the file
lies, and when it is replaced: local.py.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from blake3 import blake3

from workspacefs.errors import IntegrityError, RefusedError
from workspacefs.ids import CommitId, PackId
from workspacefs.objects.refs import Locator, Ref
from workspacefs.workspace.layer_pool import LayerPlace

_FORMAT: Final = 4
"""3: rows of layers may name own files of other file ids, which earlier releases would misread.
4: there is a merge that is not committed, which they would forget; written only then."""
_FORMAT_WITHOUT_MERGE: Final = 3
AUTOMATIC_CHECKPOINTS_MAX: Final = 16
"""So many restores can be undone: each keeps the layers that only it needs."""


class IdMark(NamedTuple):
    """A place in an epoch of file ids."""

    epoch: int
    number: int


class IdRange(NamedTuple):
    """File ids `start` to `stop` of an epoch."""

    epoch: int
    start: int
    stop: int


class MergeState(NamedTuple):
    """What the next commit has to say of merges, beyond what its parent, the head, says."""

    parents: tuple[Ref, ...] = ()
    """That it has beside the head."""
    conflicts: Ref | None = None
    """Commit in whose notes the conflicts are; None: there are none."""
    settled: tuple[int, ...] = ()
    """Numbers of those that are left no more."""


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
    merge: MergeState | None = None
    """As in LocalRecord."""


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
    merge: MergeState | None = None
    """None: nothing is merged that is not committed, and of conflicts there are those that the
    base's notes have."""

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


def new_saver() -> str:
    """Return a saver that no other copy of a session has."""
    return secrets.token_hex(8)


def record_text(record: LocalRecord) -> str:
    """Return what session.json shall hold."""
    document = _document_of(record)
    return _line({**document, "check": _check_of(document)})


def load_record(path: Path) -> LocalRecord | None:
    """Return what a session.json says, or None: it is not there.

    Raises:
        IntegrityError: It is damaged.
        RefusedError: It is of a newer format.
    """
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
    merges = (record.merge, *(one.merge for one in record.checkpoints))
    return {
        "format": _FORMAT if any(merges) else _FORMAT_WITHOUT_MERGE,
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
        **_merge_out(record.merge),
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
        base=None if base is None else _ref_in(base, document["base_locator"]),
        layers=tuple(_place_in(stored, session_id) for stored in _list_in(document["layers"])),
        sealing=None if sealing is None else CommitId(bytes.fromhex(str(sealing))),
        sealed_layers=tuple(map(int, _list_in(document["sealed_layers"]))),
        given_ids=None if given is None else IdMark(*map(int, _list_in(given))),
        own_ids=None if own is None else IdRange(*map(int, _list_in(own))),
        saver=str(document.get("saver", "")) or new_saver(),
        checkpoints=tuple(map(_checkpoint_in, _list_in(document.get("checkpoints", [])))),
        begun_from=None if begun is None else CommitId(bytes.fromhex(str(begun))),
        merge=_merge_in(document),
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
        **_merge_out(checkpoint.merge),
    }


def _checkpoint_in(stored: dict[str, object]) -> LocalCheckpoint:
    return LocalCheckpoint(
        name=str(stored["name"]),
        message=str(stored["message"]),
        created_ns=int(str(stored["created_ns"])),
        base=None if stored["base"] is None else _ref_in(stored["base"], stored["base_locator"]),
        layers=tuple(_place_in(place, "") for place in _list_in(stored["layers"])),
        is_automatic=stored.get("is_automatic") is True,
        merge=_merge_in(stored),
    )


def _merge_out(merge: MergeState | None) -> dict[str, object]:
    if merge is None:
        return {}
    return {
        "merge": {
            "parents": [_ref_out(parent) for parent in merge.parents],
            "conflicts": None if merge.conflicts is None else _ref_out(merge.conflicts),
            "settled": list(merge.settled),
        }
    }


def _merge_in(stored: Mapping[str, object]) -> MergeState | None:
    if "merge" not in stored:
        return None
    merge = stored["merge"]
    if not isinstance(merge, dict):
        raise TypeError("not a merge")
    conflicts = merge["conflicts"]
    return MergeState(
        parents=tuple(_ref_in(*_list_in(parent)) for parent in _list_in(merge["parents"])),
        conflicts=None if conflicts is None else _ref_in(*_list_in(conflicts)),
        settled=tuple(map(int, _list_in(merge["settled"]))),
    )


def _ref_out(ref: Ref) -> list[object]:
    return [ref.id.hex(), _locator_out(ref.locator)]


def _ref_in(commit: object, locator: object) -> Ref:
    return Ref(bytes.fromhex(str(commit)), _locator_in(locator))


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
