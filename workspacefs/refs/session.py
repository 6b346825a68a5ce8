"""What a session's ref says beyond where its head is, as a value and as a member of its JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from workspacefs.ids import CommitId
from workspacefs.objects.refs import Locator
from workspacefs.refs.members import (
    Json,
    commit_id_in,
    int64_of,
    locator_json,
    locator_of,
    name_of,
    require,
    text_of,
)
from workspacefs.refs.policy import NO_POLICY, SessionPolicy, policy_json, policy_of

FORMAT_VERSION: Final = 3
FORMAT_OF_OTHERS: Final = 1
"""Written as long as there is no need for more, so that an earlier release can read it."""
_STATES: Final = ("open", "archived", "deleted")


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
        return 2 if self.saved is not None or self.lease is not None else FORMAT_OF_OTHERS


def session_json(session: SessionRecord) -> Json:
    """Return what a ref says of its session."""
    document: Json = {
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


def session_of(value: object) -> SessionRecord:
    """Return the session that a ref says; `value` is used up.

    Raises:
        KeyError, TypeError, ValueError: It is malformed.
    """
    require(isinstance(value, dict))
    assert isinstance(value, dict)
    lineage, epochs = value.pop("lineage"), value.pop("fid_epochs")
    require(isinstance(lineage, list) and isinstance(epochs, list))
    session = SessionRecord(
        name=text_of(value.pop("name")),
        session_id=text_of(value.pop("session_id")),
        owner=text_of(value.pop("owner")),
        base=commit_id_in(value.pop("base")),
        branch=text_of(value.pop("branch")),
        created_ns=int64_of(value.pop("created_ns")),
        state=text_of(value.pop("state")),
        lineage=tuple(map(text_of, lineage)),
        fid_epochs=tuple(map(int64_of, epochs)),
        saved=_saved_of(value.pop("saved")) if "saved" in value else None,
        lease=_lease_of(value.pop("lease")) if "lease" in value else None,
        left=_lease_of(value.pop("left")) if "left" in value else None,
        policy=policy_of(value.pop("policy")) if "policy" in value else NO_POLICY,
        checkpoints=_checkpoints_of(value.pop("checkpoints")) if "checkpoints" in value else (),
        renamed_from=name_of(value.pop("renamed_from")) if "renamed_from" in value else "",
        renamed_to=name_of(value.pop("renamed_to")) if "renamed_to" in value else "",
    )
    require(not value and session.state in _STATES)
    return session


def _saved_json(saved: SavedWork) -> Json:
    return {
        "commit": saved.commit_id.hex(),
        "locator": locator_json(saved.locator),
        "saver": saved.saver,
        "host": saved.host,
        "saved_ns": saved.saved_ns,
    }


def _saved_of(value: object) -> SavedWork:
    require(isinstance(value, dict))
    assert isinstance(value, dict)
    commit_id, locator = commit_id_in(value.pop("commit")), locator_of(value.pop("locator"))
    require(commit_id is not None and locator is not None)
    assert commit_id is not None
    assert locator is not None
    saved = SavedWork(
        commit_id=commit_id,
        locator=locator,
        saver=text_of(value.pop("saver")),
        host=text_of(value.pop("host")),
        saved_ns=int64_of(value.pop("saved_ns")),
    )
    require(not value)
    return saved


def _checkpoint_json(checkpoint: StoredCheckpoint) -> Json:
    return {
        "name": checkpoint.name,
        "message": checkpoint.message,
        "created_ns": checkpoint.created_ns,
        "commit": checkpoint.commit_id.hex(),
        "locator": locator_json(checkpoint.locator),
    }


def _checkpoints_of(value: object) -> tuple[StoredCheckpoint, ...]:
    require(isinstance(value, list) and value)
    assert isinstance(value, list)
    checkpoints = tuple(map(_checkpoint_of, value))
    require(len({one.name for one in checkpoints}) == len(checkpoints))
    return checkpoints


def _checkpoint_of(value: object) -> StoredCheckpoint:
    require(isinstance(value, dict))
    assert isinstance(value, dict)
    commit_id, locator = commit_id_in(value.pop("commit")), locator_of(value.pop("locator"))
    require(commit_id is not None and locator is not None)
    assert commit_id is not None
    assert locator is not None
    checkpoint = StoredCheckpoint(
        name=name_of(value.pop("name")),
        message=text_of(value.pop("message")),
        created_ns=int64_of(value.pop("created_ns")),
        commit_id=commit_id,
        locator=locator,
    )
    require(not value)
    return checkpoint


def _lease_json(lease: Lease) -> Json:
    return {"saver": lease.saver, "host": lease.host, "since_ns": lease.since_ns}


def _lease_of(value: object) -> Lease:
    require(isinstance(value, dict))
    assert isinstance(value, dict)
    lease = Lease(
        saver=text_of(value.pop("saver")),
        host=text_of(value.pop("host")),
        since_ns=int64_of(value.pop("since_ns")),
    )
    require(not value)
    return lease
