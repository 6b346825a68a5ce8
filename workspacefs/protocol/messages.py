"""The messages of the control protocol, one JSON document a line, and their codec.

A request is answered by any number of Progress and Part messages and then one Ok or Failure, all
with the id of the request. File names travel as text with surrogateescape (os.fsdecode), which
JSON writes as lone surrogates. What comes from the wire is never trusted: every decoder is total.
This module must not know sockets or operations. Documented field by field in docs/protocol.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple, NoReturn, TypeAlias

from workspacefs.errors import UnavailableError, UsageError, WorkspaceError
from workspacefs.protocol.failures import error_from_document

PROTOCOL_VERSION: Final = 1
LINE_MAX_BYTES: Final = 16 * 1024 * 1024
"""Longest message, its line end included."""
PART_MAX_ITEMS: Final = 1000
"""Rows in one Part."""
PART_MAX_CHARS: Final = 1024 * 1024
"""Characters of text in one Part."""

_OP_MAX_CHARS: Final = 64
_ID_MAX: Final = 2**53 - 1


class Request(NamedTuple):
    """Asks for one operation."""

    id: int
    op: str
    args: Mapping[str, object]


class Progress(NamedTuple):
    """Says how far a request is; its members are the operation's own."""

    id: int
    progress: Mapping[str, object]


class Part(NamedTuple):
    """Carries a piece of one long member of the answer, to be appended to those before it."""

    id: int
    member: str
    value: list[object] | str


class Ok(NamedTuple):
    """Ends a request that succeeded. Members sent as parts are not repeated."""

    id: int
    ok: Mapping[str, object]


class Failure(NamedTuple):
    """Ends a request that failed."""

    id: int
    error: WorkspaceError


Reply: TypeAlias = Progress | Part | Ok | Failure


def encode_request(request: Request) -> bytes:
    """Return the line of a request."""
    return encode_line(
        {"v": PROTOCOL_VERSION, "id": request.id, "op": request.op, "args": request.args}
    )


def encode_line(document: Mapping[str, object]) -> bytes:
    """Return a document as one line.

    Raises:
        UsageError: It is longer than LINE_MAX_BYTES.
    """
    line = json.dumps(document, separators=(",", ":")).encode("ascii") + b"\n"
    if len(line) > LINE_MAX_BYTES:
        raise UsageError(
            f"a message of {len(line)} bytes is longer than {LINE_MAX_BYTES}",
            kind="protocol.too_long",
        )
    return line


def decode_request(line: bytes) -> Request:
    """Return the request on a line.

    Raises:
        UsageError: It is no request, or one of another version of the protocol.
    """
    document = _decode_object(line)
    if document is None:
        raise UsageError("the request is no JSON object", kind="protocol.malformed")
    version = document.get("v")
    if version != PROTOCOL_VERSION or type(version) is not int:
        raise UsageError(
            f"the request speaks protocol version {version!r:.40}, we speak {PROTOCOL_VERSION}; "
            "use the same release of workspacefs on both sides",
            kind="protocol.version",
            ours=PROTOCOL_VERSION,
        )
    request_id, op, args = document.get("id"), document.get("op"), document.get("args")
    if not _is_id(request_id) or not isinstance(op, str) or not isinstance(args, dict):
        raise UsageError(
            "a request needs an integer id, a text op and an object args", kind="protocol.malformed"
        )
    if not 0 < len(op) <= _OP_MAX_CHARS:
        raise UsageError(
            f"the name of an operation has 1-{_OP_MAX_CHARS} characters", kind="protocol.malformed"
        )
    return Request(_as_id(request_id), op, args)


def find_request_id(line: bytes) -> int:
    """Return the id on a line that is no valid request, so that the error finds its way; else 0."""
    document = _decode_object(line)
    request_id = document.get("id") if document is not None else None
    return _as_id(request_id) if _is_id(request_id) else 0


def decode_reply(line: bytes) -> Reply:
    """Return the reply on a line.

    Raises:
        UnavailableError: It is no reply.
    """
    document = _decode_object(line)
    if document is None or not _is_id(document.get("id")):
        raise _no_reply()
    reply_id = _as_id(document["id"])
    match document:
        case {"ok": dict(ok)}:
            return Ok(reply_id, ok)
        case {"error": dict(error)}:
            return Failure(reply_id, error_from_document(error))
        case {"progress": dict(progress)}:
            return Progress(reply_id, progress)
        case {"part": {"member": str(member), "value": (list() | str()) as value}}:
            return Part(reply_id, member, value)
    raise _no_reply()


def _no_reply() -> UnavailableError:
    return UnavailableError(
        "the daemon answered with something that is no reply of this protocol",
        kind="protocol.malformed",
    )


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value <= _ID_MAX


def _as_id(value: object) -> int:
    assert isinstance(value, int)
    return value


def _decode_object(line: bytes) -> dict[str, object] | None:
    if len(line) > LINE_MAX_BYTES:
        return None
    try:
        document = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
