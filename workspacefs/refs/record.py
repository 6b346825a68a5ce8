"""What a ref holds, as a value and as the bytes that are stored.

The stored value is one line of JSON: ASCII, sorted keys, no blanks, a newline at the end. Its
members, and how they are spelled, stand in docs/format.md; `check` is the BLAKE3 of the same line
without it, so any flipped or missing byte is found.
"""

from __future__ import annotations

import base64
import binascii
import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeGuard

from blake3 import blake3

from workspacefs.errors import IntegrityError, RefusedError
from workspacefs.ids import ID_BYTES, PACK_ID_BYTES, CommitId, PackId, commit_id_of
from workspacefs.objects.commits import Commit, decode_commit
from workspacefs.objects.refs import Locator, Ref
from workspacefs.refs.policy import NO_POLICY, SessionPolicy, policy_json, policy_of

FORMAT_VERSION: Final = 3
_FORMAT_OF_OTHERS: Final = 1
"""Written as long as there is no need for more, so that an earlier release can read it."""
_STATES: Final = ("open", "archived", "deleted")
VALUE_MAX_BYTES: Final = 64 * 1024 * 1024
_INT64: Final = 1 << 63

_Json: TypeAlias = dict[str, object]


class RefKind(enum.Enum):
    """The three kinds of names; the value is the noun for messages."""

    BRANCH = "branch"
    TAG = "tag"
    SESSION = "session"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedWork:
    """Uncommitted work of a session as it was last stored."""

    commit_id: CommitId
    """Of a commit on top of the session's head, which is no part of any history."""
    locator: Locator
    saver: str
    """Which copy of the session on which machine stored it; see LocalRecord.saver."""
    host: str
    saved_ns: int
    """Wall time there, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who has a session mounted, or had when it was last heard of: leases do not run out."""

    saver: str
    """As in SavedWork."""
    host: str
    since_ns: int
    """Wall time there, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheckpoint:
    """A moment of a session that is in the store."""

    name: str
    message: str
    created_ns: int
    """Wall time where it was made, for people."""
    commit_id: CommitId
    """Of a commit with its tree, which is no part of any history."""
    locator: Locator


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """What a session's ref says beyond where its head is."""

    name: str
    session_id: str
    """Hex, random; tells a session from a later one of the same name."""
    owner: str
    base: CommitId | None
    """Where it started; None: from an empty workspace."""
    branch: str
    """That it lands on by default."""
    created_ns: int
    state: str = "open"
    """ "open", "archived" or "deleted"; see _STATES."""
    lineage: tuple[str, ...] = ()
    """Session ids that it was forked from, the eldest first."""
    fid_epochs: tuple[int, ...] = ()
    """File id epochs that it drew from."""
    saved: SavedWork | None = None
    """None: there is nothing beyond the head, or it was never stored."""
    lease: Lease | None = None
    """None: nobody has it mounted."""
    left: Lease | None = None
    """Lease that was given back last with work that is on that machine alone; None: nothing is
    known to be."""
    policy: SessionPolicy = NO_POLICY
    checkpoints: tuple[StoredCheckpoint, ...] = ()
    """Durable ones, in the order in which they were made; names differ."""
    renamed_from: str = ""
    """It takes the place of the session of that name, as soon as that one is deleted."""
    renamed_to: str = ""
    """Of a deleted one: it goes on under that name."""

    @property
    def saved_commit(self) -> CommitId | None:
        """Of the saved work, or None: there is none."""
        return None if self.saved is None else self.saved.commit_id

    @property
    def is_deleted(self) -> bool:
        """Whether this is a gravestone: its name is not given again."""
        return self.state == "deleted"

    @property
    def needed_format(self) -> int:
        """The first format that has members for all that this says."""
        is_third = (
            self.left is not None
            or self.policy != NO_POLICY
            or self.state == "archived"
            or self.checkpoints
            or self.renamed_from
            or self.renamed_to
        )
        if is_third:
            return FORMAT_VERSION
        return 2 if self.saved is not None or self.lease is not None else _FORMAT_OF_OTHERS


@dataclass(frozen=True, slots=True, kw_only=True)
class RefRecord:
    """Where a ref points, and who moved it there."""

    commit_id: CommitId | None = None
    """None: nothing was committed yet; then body and locators are empty."""
    commit_body: bytes = b""
    """The commit itself; checked against `commit_id` when it is read."""
    commit_locators: tuple[Locator | None, ...] = ()
    """Of the commit's references, in body order."""
    locator: Locator | None = None
    """Of the commit's own record."""
    write_id: str = ""
    """Of the write that stored this value; drawn by Refs when empty."""
    moved_at_ns: int = 0
    """Set by Refs."""
    moved_by: str = ""
    session: SessionRecord | None = None

    def commit(self) -> Commit:
        """Return the commit, decoded.

        Raises:
            IntegrityError: There is none, or it is malformed.
        """
        if self.commit_id is None:
            raise IntegrityError("the ref has no commit", kind="ref.empty")
        what = f"commit {self.commit_id.hex()[:12]}"
        return decode_commit(self.commit_body, self.commit_locators, what=what)

    def ref(self) -> Ref | None:
        """Return the reference to the commit, or None when there is none."""
        return None if self.commit_id is None else Ref(self.commit_id, self.locator)


def encode_ref(record: RefRecord) -> bytes:
    """Return the value that is stored for `record`."""
    session = record.session
    document: _Json = {
        "format": _FORMAT_OF_OTHERS if session is None else session.needed_format,
        "commit": None if record.commit_id is None else record.commit_id.hex(),
        "body": base64.b64encode(record.commit_body).decode("ascii"),
        "locators": [_locator_json(locator) for locator in record.commit_locators],
        "locator": _locator_json(record.locator),
        "write_id": record.write_id,
        "moved_at_ns": record.moved_at_ns,
        "moved_by": record.moved_by,
        "session": None if session is None else _session_json(session),
    }
    return _line({**document, "check": _check_of(document)})


def _session_json(session: SessionRecord) -> _Json:
    document: _Json = {
        "name": session.name,
        "session_id": session.session_id,
        "owner": session.owner,
        "base": None if session.base is None else session.base.hex(),
        "branch": session.branch,
        "created_ns": session.created_ns,
        "state": session.state,
        "lineage": list(session.lineage),
        "fid_epochs": list(session.fid_epochs),
    }
    added = {
        "saved": None if session.saved is None else _saved_json(session.saved),
        "lease": None if session.lease is None else _lease_json(session.lease),
        "left": None if session.left is None else _lease_json(session.left),
        "policy": policy_json(session.policy),
        "checkpoints": [_checkpoint_json(one) for one in session.checkpoints],
        "renamed_from": session.renamed_from,
        "renamed_to": session.renamed_to,
    }
    return {**document, **{name: value for name, value in added.items() if value}}


def decode_ref(value: bytes, *, key: str) -> RefRecord:
    """Return the record that `value`, stored under `key`, encodes.

    Raises:
        IntegrityError: It is damaged or malformed; the message names the key.
        RefusedError: It is of a newer format.
    """
    document = _checked(value, key)
    version = document.pop("format", None)
    if type(version) is int and version > FORMAT_VERSION:
        raise RefusedError(
            f"{key} is of format {version}, newer than {FORMAT_VERSION}; use a newer release",
            kind="format.newer",
            key=key,
        )
    try:
        return _record_of(version, document)
    except (KeyError, TypeError, ValueError, binascii.Error) as exc:
        raise _damaged(key, "has members that no ref has") from exc


def _checked(value: bytes, key: str) -> _Json:
    if len(value) > VALUE_MAX_BYTES:
        raise _damaged(key, f"is {len(value)} bytes long, more than any ref")
    try:
        document = json.loads(value)
    except (ValueError, RecursionError) as exc:
        raise _damaged(key, "is not the JSON of a ref") from exc
    if not isinstance(document, dict):
        raise _damaged(key, "is not the JSON of a ref")
    check = document.pop("check", None)
    # The line as we would write it must be the value itself, to the byte.
    if check != _check_of(document) or _line({**document, "check": check}) != value:
        raise _damaged(key, "does not match its checksum")
    return document


def _record_of(version: object, document: _Json) -> RefRecord:
    _require(type(version) is int)
    commit_id, body = _commit_id(document.pop("commit")), document.pop("body")
    locators, session = document.pop("locators"), document.pop("session")
    _require(isinstance(body, str) and isinstance(locators, list))
    assert isinstance(body, str)
    assert isinstance(locators, list)
    commit_body = base64.b64decode(body, validate=True)
    if commit_id is None:
        _require(not commit_body and not locators)
    else:
        _require(commit_id_of(commit_body) == commit_id)
    record = RefRecord(
        commit_id=commit_id,
        commit_body=commit_body,
        commit_locators=tuple(map(_locator_of, locators)),
        locator=_locator_of(document.pop("locator")),
        write_id=_text(document.pop("write_id")),
        moved_at_ns=_int(document.pop("moved_at_ns")),
        moved_by=_text(document.pop("moved_by")),
        session=None if session is None else _session_of(session),
    )
    _require(not document)
    needed = _FORMAT_OF_OTHERS if record.session is None else record.session.needed_format
    _require(version == needed)
    return record


def _session_of(value: object) -> SessionRecord:
    _require(isinstance(value, dict))
    assert isinstance(value, dict)
    lineage, epochs = value.pop("lineage"), value.pop("fid_epochs")
    _require(isinstance(lineage, list) and isinstance(epochs, list))
    session = SessionRecord(
        name=_text(value.pop("name")),
        session_id=_text(value.pop("session_id")),
        owner=_text(value.pop("owner")),
        base=_commit_id(value.pop("base")),
        branch=_text(value.pop("branch")),
        created_ns=_int(value.pop("created_ns")),
        state=_text(value.pop("state")),
        lineage=tuple(map(_text, lineage)),
        fid_epochs=tuple(map(_int, epochs)),
        saved=_saved_of(value.pop("saved")) if "saved" in value else None,
        lease=_lease_of(value.pop("lease")) if "lease" in value else None,
        left=_lease_of(value.pop("left")) if "left" in value else None,
        policy=policy_of(value.pop("policy")) if "policy" in value else NO_POLICY,
        checkpoints=_checkpoints_of(value.pop("checkpoints")) if "checkpoints" in value else (),
        renamed_from=_name_of(value.pop("renamed_from")) if "renamed_from" in value else "",
        renamed_to=_name_of(value.pop("renamed_to")) if "renamed_to" in value else "",
    )
    _require(not value and session.state in _STATES)
    return session


def _saved_json(saved: SavedWork) -> _Json:
    return {
        "commit": saved.commit_id.hex(),
        "locator": _locator_json(saved.locator),
        "saver": saved.saver,
        "host": saved.host,
        "saved_ns": saved.saved_ns,
    }


def _saved_of(value: object) -> SavedWork:
    _require(isinstance(value, dict))
    assert isinstance(value, dict)
    commit_id, locator = _commit_id(value.pop("commit")), _locator_of(value.pop("locator"))
    _require(commit_id is not None and locator is not None)
    assert commit_id is not None
    assert locator is not None
    saved = SavedWork(
        commit_id=commit_id,
        locator=locator,
        saver=_text(value.pop("saver")),
        host=_text(value.pop("host")),
        saved_ns=_int(value.pop("saved_ns")),
    )
    _require(not value)
    return saved


def _checkpoint_json(checkpoint: StoredCheckpoint) -> _Json:
    return {
        "name": checkpoint.name,
        "message": checkpoint.message,
        "created_ns": checkpoint.created_ns,
        "commit": checkpoint.commit_id.hex(),
        "locator": _locator_json(checkpoint.locator),
    }


def _checkpoints_of(value: object) -> tuple[StoredCheckpoint, ...]:
    _require(isinstance(value, list) and value)
    assert isinstance(value, list)
    checkpoints = tuple(map(_checkpoint_of, value))
    _require(len({one.name for one in checkpoints}) == len(checkpoints))
    return checkpoints


def _checkpoint_of(value: object) -> StoredCheckpoint:
    _require(isinstance(value, dict))
    assert isinstance(value, dict)
    commit_id, locator = _commit_id(value.pop("commit")), _locator_of(value.pop("locator"))
    _require(commit_id is not None and locator is not None)
    assert commit_id is not None
    assert locator is not None
    checkpoint = StoredCheckpoint(
        name=_name_of(value.pop("name")),
        message=_text(value.pop("message")),
        created_ns=_int(value.pop("created_ns")),
        commit_id=commit_id,
        locator=locator,
    )
    _require(not value)
    return checkpoint


def _lease_json(lease: Lease) -> _Json:
    return {"saver": lease.saver, "host": lease.host, "since_ns": lease.since_ns}


def _lease_of(value: object) -> Lease:
    _require(isinstance(value, dict))
    assert isinstance(value, dict)
    lease = Lease(
        saver=_text(value.pop("saver")),
        host=_text(value.pop("host")),
        since_ns=_int(value.pop("since_ns")),
    )
    _require(not value)
    return lease


def _locator_json(locator: Locator | None) -> list[object] | None:
    return None if locator is None else [locator.pack_id.hex(), *locator[1:]]


def _locator_of(value: object) -> Locator | None:
    if value is None:
        return None
    _require(isinstance(value, list) and len(value) == 5)
    assert isinstance(value, list)
    pack_id = bytes.fromhex(_text(value[0]))
    _require(len(pack_id) == PACK_ID_BYTES)
    return Locator(PackId(pack_id), *map(_int, value[1:]))


def _commit_id(value: object) -> CommitId | None:
    if value is None:
        return None
    commit_id = bytes.fromhex(_text(value))
    _require(len(commit_id) == ID_BYTES)
    return CommitId(commit_id)


def _text(value: object) -> str:
    _require(isinstance(value, str))
    assert isinstance(value, str)
    return value


def _name_of(value: object) -> str:
    _require(value)
    return _text(value)


def _int(value: object) -> int:
    _require(_is_int64(value))
    assert isinstance(value, int)
    return value


def _is_int64(value: object) -> TypeGuard[int]:
    return type(value) is int and -_INT64 <= value < _INT64


def _require(claim: object) -> None:
    if not claim:
        raise ValueError("malformed")


def _check_of(document: _Json) -> str:
    return blake3(_line(document)).hexdigest()


def _line(document: _Json) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii") + b"\n"


def _damaged(key: str, why: str) -> IntegrityError:
    return IntegrityError(f"{key} {why}", kind="ref.damaged", key=key)


def list_names(names: Sequence[str], *, limit: int = 8) -> str:
    """Return some names for a message."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
