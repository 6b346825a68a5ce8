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
from dataclasses import dataclass
from typing import Final

from blake3 import blake3

from workspacefs.errors import IntegrityError, RefusedError
from workspacefs.ids import CommitId, commit_id_of
from workspacefs.objects.commits import Commit, decode_commit
from workspacefs.objects.refs import Locator, Ref
from workspacefs.refs.members import (
    Json,
    commit_id_in,
    int64_of,
    locator_json,
    locator_of,
    require,
    text_of,
)
from workspacefs.refs.proposal import (
    PROPOSAL_FORMAT,
    ProposalRecord,
    proposal_json,
    proposal_of,
)
from workspacefs.refs.session import (
    FORMAT_OF_OTHERS,
    SessionRecord,
    session_json,
    session_of,
)

VALUE_MAX_BYTES: Final = 64 * 1024 * 1024
EMPTY_MAX_BYTES: Final = 768
"""A longer value has a commit in it: one without takes 400 bytes and the name of who moved it."""


class RefKind(enum.Enum):
    """The kinds of names; the value is the noun for messages."""

    BRANCH = "branch"
    TAG = "tag"
    SESSION = "session"
    PROPOSAL = "proposal"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefRecord:
    """Where a ref points, and who moved it there."""

    commit_id: CommitId | None = None
    """None: nothing was committed yet; then body and locators are empty. A branch or tag without a
    commit is none: it was deleted."""
    commit_body: bytes = b""
    """The commit itself; checked against `commit_id` when it is read."""
    commit_locators: tuple[Locator | None, ...] = ()
    """Of the commit's references, in body order."""
    locator: Locator | None = None
    """Of the commit's own record; without a commit, of the one that there was before."""
    write_id: str = ""
    """Of the write that stored this value; drawn by Refs when empty."""
    moved_at_ns: int = 0
    """Set by Refs."""
    moved_by: str = ""
    session: SessionRecord | None = None
    proposal: ProposalRecord | None = None

    @property
    def needed_format(self) -> int:
        """The first format that has members for all that this says."""
        if self.proposal is not None:
            return PROPOSAL_FORMAT
        return FORMAT_OF_OTHERS if self.session is None else self.session.needed_format

    def commit(self) -> Commit:
        """Return the commit, decoded.

        Raises:
            IntegrityError: There is none, or it is malformed.
        """
        if self.commit_id is None:
            raise IntegrityError("the ref has no commit", kind="ref.empty")
        what = f"commit {self.commit_id.hex()[:12]}"
        return decode_commit(self.commit_body, self.commit_locators, what=what)

    def emptied(self) -> RefRecord:
        """Return what a branch or tag holds that led here and was deleted."""
        return RefRecord(locator=self.locator)

    def ref(self) -> Ref | None:
        """Return the reference to the commit, or None when there is none."""
        return None if self.commit_id is None else Ref(self.commit_id, self.locator)


def encode_ref(record: RefRecord) -> bytes:
    """Return the value that is stored for `record`."""
    session, proposal = record.session, record.proposal
    document: Json = {
        "format": record.needed_format,
        "commit": None if record.commit_id is None else record.commit_id.hex(),
        "body": base64.b64encode(record.commit_body).decode("ascii"),
        "locators": [locator_json(locator) for locator in record.commit_locators],
        "locator": locator_json(record.locator),
        "write_id": record.write_id,
        "moved_at_ns": record.moved_at_ns,
        "moved_by": record.moved_by,
        "session": None if session is None else session_json(session),
    }
    if proposal is not None:
        document["proposal"] = proposal_json(proposal)
    return _line({**document, "check": _check_of(document)})


def decode_ref(value: bytes, *, key: str) -> RefRecord:
    """Return the record that `value`, stored under `key`, encodes.

    Raises:
        IntegrityError: It is damaged or malformed; the message names the key.
        RefusedError: It is of a newer format.
    """
    document = _checked(value, key)
    version = document.pop("format", None)
    if type(version) is int and version > PROPOSAL_FORMAT:
        raise RefusedError(
            f"{key} is of format {version}, newer than {PROPOSAL_FORMAT}; use a newer release",
            kind="format.newer",
            key=key,
        )
    try:
        return _record_of(version, document)
    except (KeyError, TypeError, ValueError, binascii.Error) as exc:
        raise _damaged(key, "has members that no ref has") from exc


def _checked(value: bytes, key: str) -> Json:
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


def _record_of(version: object, document: Json) -> RefRecord:
    require(type(version) is int)
    commit_id, body = commit_id_in(document.pop("commit")), document.pop("body")
    locators, session = document.pop("locators"), document.pop("session")
    require(isinstance(body, str) and isinstance(locators, list))
    assert isinstance(body, str)
    assert isinstance(locators, list)
    commit_body = base64.b64decode(body, validate=True)
    if commit_id is None:
        require(not commit_body and not locators)
    else:
        require(commit_id_of(commit_body) == commit_id)
    record = RefRecord(
        commit_id=commit_id,
        commit_body=commit_body,
        commit_locators=tuple(map(locator_of, locators)),
        locator=locator_of(document.pop("locator")),
        write_id=text_of(document.pop("write_id")),
        moved_at_ns=int64_of(document.pop("moved_at_ns")),
        moved_by=text_of(document.pop("moved_by")),
        session=None if session is None else session_of(session),
        proposal=proposal_of(document.pop("proposal")) if "proposal" in document else None,
    )
    require(not document and (record.session is None or record.proposal is None))
    require(version == record.needed_format)
    return record


def _check_of(document: Json) -> str:
    return blake3(_line(document)).hexdigest()


def _line(document: Json) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii") + b"\n"


def _damaged(key: str, why: str) -> IntegrityError:
    return IntegrityError(f"{key} {why}", kind="ref.damaged", key=key)
