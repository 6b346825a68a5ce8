"""What the answers of an S3 server mean, by status and code; and what to tell whoever asked.

This module must not know boto3: it is the one place that says which answer means "absent".
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from workspacefs.backend.contract import (
    STORE_AWAY,
    STORE_CONFLICT,
    STORE_CREDENTIALS,
    STORE_DENIED,
    STORE_UNCLEAR,
)
from workspacefs.backend.s3_url import S3Url
from workspacefs.errors import (
    IntegrityError,
    KeyAbsentError,
    NoSpaceError,
    NotFoundError,
    UnavailableError,
    UsageError,
)


class Outcome(enum.Enum):
    """What became of a request that did not simply succeed."""

    ABSENT = "absent"
    """There is no such key; the bucket is there."""
    CONDITION = "condition"
    """The condition was not met: nothing was done."""
    CONFLICT = "conflict"
    """Another request was under way for the same key: nothing was done, try again."""
    RANGE = "range"
    """The range lies behind the end of the value."""
    NO_UPLOAD = "no upload"
    """There is no such multipart upload: it was completed, aborted, or never was."""
    NOT_SENT = "not sent"
    """No connection came about: nothing was done."""
    UNCLEAR = "unclear"
    """No answer, half an answer, or a failure of the server: it may have been done or not."""
    WRONG = "wrong"
    """An answer to something else than was asked."""
    CHANGED = "changed"
    """The value was replaced while it was read."""
    NO_BUCKET = "no bucket"
    DENIED = "denied"
    CREDENTIALS = "credentials"
    """Expired, unknown or none: nothing was done."""
    CLOCK = "clock"
    REGION = "region"
    TLS = "tls"
    FULL = "full"
    UNSUPPORTED = "unsupported"
    OTHER = "other"


RETRIED: Final = frozenset((Outcome.CONFLICT, Outcome.NOT_SENT, Outcome.UNCLEAR, Outcome.WRONG))
"""Of requests that may be sent twice."""
NOTHING_DONE: Final = frozenset((Outcome.CONFLICT, Outcome.NOT_SENT))
"""Of those even a request that may take effect only once is sent again."""
AWAY: Final = frozenset(
    (Outcome.NOT_SENT, Outcome.UNCLEAR, Outcome.TLS, Outcome.CREDENTIALS, Outcome.CLOCK)
)
"""These say that the store is not well, or that it lets nothing of ours in."""
ANSWERS: Final = frozenset(
    (Outcome.ABSENT, Outcome.CONDITION, Outcome.CONFLICT, Outcome.RANGE, Outcome.NO_UPLOAD)
)
"""These are answers like any other, and no errors."""

_BY_CODE: Final[Mapping[str, Outcome]] = {
    "ConditionalRequestConflict": Outcome.CONFLICT,
    "OperationAborted": Outcome.CONFLICT,
    "NoSuchBucket": Outcome.NO_BUCKET,
    "NoSuchUpload": Outcome.NO_UPLOAD,
    "InvalidRange": Outcome.RANGE,
    "RequestTimeout": Outcome.UNCLEAR,
    "Throttling": Outcome.UNCLEAR,
    "ThrottlingException": Outcome.UNCLEAR,
    "RequestLimitExceeded": Outcome.UNCLEAR,
    "ExpiredToken": Outcome.CREDENTIALS,
    "ExpiredTokenException": Outcome.CREDENTIALS,
    "InvalidAccessKeyId": Outcome.CREDENTIALS,
    "InvalidClientTokenId": Outcome.CREDENTIALS,
    "InvalidToken": Outcome.CREDENTIALS,
    "SignatureDoesNotMatch": Outcome.CREDENTIALS,
    "TokenRefreshRequired": Outcome.CREDENTIALS,
    "UnrecognizedClientException": Outcome.CREDENTIALS,
    "RequestTimeTooSkewed": Outcome.CLOCK,
    "RequestExpired": Outcome.CLOCK,
    "AuthorizationHeaderMalformed": Outcome.REGION,
    "IllegalLocationConstraintException": Outcome.REGION,
    "PermanentRedirect": Outcome.REGION,
    "NotImplemented": Outcome.UNSUPPORTED,
    "QuotaExceeded": Outcome.FULL,
    "XMinioStorageFull": Outcome.FULL,
    "XMinioAdminBucketQuotaExceeded": Outcome.FULL,
}
_BY_STATUS: Final[Mapping[int, Outcome]] = {
    301: Outcome.REGION,
    307: Outcome.REGION,
    401: Outcome.CREDENTIALS,
    403: Outcome.DENIED,
    405: Outcome.UNSUPPORTED,
    408: Outcome.UNCLEAR,
    409: Outcome.CONFLICT,
    412: Outcome.CONDITION,
    416: Outcome.RANGE,
    429: Outcome.UNCLEAR,
    501: Outcome.UNSUPPORTED,
    507: Outcome.FULL,
}
_SERVER_ERROR: Final = 500
_NOT_FOUND: Final = 404
_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_TEXT_MAX: Final = 200


def outcome_of(status: int, code: str) -> Outcome:
    """Return what an error answer means.

    A failure of the server is never taken for anything else, whatever code it carries; and only
    a 404 that says so means that there is no such key: one without a code may come from anything
    on the way.
    """
    if status in _BY_STATUS and status >= _SERVER_ERROR:
        return _BY_STATUS[status]
    if status >= _SERVER_ERROR:
        return _BY_CODE[code] if _BY_CODE.get(code) is Outcome.FULL else Outcome.UNCLEAR
    if code == "NoSuchKey" and status == _NOT_FOUND:
        return Outcome.ABSENT
    return _BY_CODE.get(code) or _BY_STATUS.get(status, Outcome.OTHER)


class S3Failure(Exception):
    """A request that did not simply succeed; does not leave the S3 backend.

    Args:
        outcome: What became of it.
        reason: In plain words, for a message; holds no secrets.
        retry_after_s: How long the server asks to wait.
    """

    def __init__(self, outcome: Outcome, reason: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason
        self.retry_after_s = retry_after_s


def failure_of(status: int, code: str, message: str, retry_after: str | None) -> S3Failure:
    """Return the failure that an error answer is."""
    said = f"the server answered {status} {code}".rstrip()
    text = " ".join(message.split())[:_TEXT_MAX]
    seconds = float(retry_after) if retry_after is not None and retry_after.isdigit() else 0.0
    outcome = outcome_of(status, code)
    if outcome is Outcome.OTHER and text:
        said += f" ({text})"
    return S3Failure(outcome, said, retry_after_s=seconds)


class Slice(NamedTuple):
    """Where what was asked for lies in an answer's body."""

    total_bytes: int
    skip_bytes: int
    take_bytes: int


def slice_of(
    *,
    is_partial: bool,
    content_range: str | None,
    body_bytes: int | None,
    offset: int,
    length: int | None,
) -> Slice:
    """Return where the bytes `offset` to `offset` + `length` lie in the body of an answer.

    Args:
        is_partial: Its status is 206.
        content_range: The header; without it, unless partial, the body is the whole value.
        body_bytes: Length that the answer announces for its body, if it does.
        offset: First byte that was asked for.
        length: So many were asked for; None: all that follow.

    Raises:
        S3Failure: The answer is of another range, or contradicts itself.
    """
    if content_range is None and not is_partial:
        if body_bytes is None:
            raise S3Failure(Outcome.WRONG, "the server does not say how long the value is")
        if offset > body_bytes:
            raise S3Failure(Outcome.RANGE, "the range lies behind the end")
        available = body_bytes - offset
        return Slice(body_bytes, offset, available if length is None else min(length, available))
    match = _CONTENT_RANGE.fullmatch(content_range or "")
    if match is None:
        raise S3Failure(Outcome.WRONG, "the server does not say which range it sends")
    first, last, total = (int(group) for group in match.groups())
    end = total if length is None else min(total, offset + length)
    if first != offset or last + 1 != end or (body_bytes not in (None, last + 1 - first)):
        raise S3Failure(
            Outcome.WRONG, f"the server sends bytes {first} to {last} of {total}, not those asked"
        )
    return Slice(total, 0, end - offset)


_PERMISSIONS: Final[Mapping[str, str]] = {
    "get": "s3:GetObject",
    "head": "s3:GetObject",
    "put": "s3:PutObject",
    "put_if": "s3:PutObject",
    "multipart": "s3:PutObject and s3:AbortMultipartUpload",
    "list": "s3:ListBucket",
    "delete": "s3:DeleteObject",
}
_VERBS: Final[Mapping[str, str]] = {
    "get": "read",
    "head": "measure",
    "put": "write",
    "put_if": "write",
    "multipart": "write",
    "list": "list",
    "delete": "delete",
}
CREDENTIALS_HINT: Final = (
    "give credentials by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), "
    "by a profile in ~/.aws (--profile or AWS_PROFILE), or by the machine's role"
)


def error_for(failure: S3Failure, *, operation: str, key: str, url: S3Url) -> Exception:
    """Return what a failure means to whoever called the backend.

    Args:
        failure: What happened.
        operation: One of stats.OPERATIONS.
        key: On which key, or prefix of keys.
        url: Of the store.
    """
    verb, reason = _VERBS[operation], failure.reason
    what = f"cannot {verb} {key or 'keys'} in bucket {url.bucket}"
    where = url.endpoint_url or "AWS"
    match failure.outcome:
        case Outcome.ABSENT:
            return KeyAbsentError(key)
        case Outcome.NO_BUCKET:
            return NotFoundError(
                f"there is no bucket {url.bucket} at {where}; check the URL, or make the bucket",
                kind="store.no_bucket",
                bucket=url.bucket,
            )
        case Outcome.DENIED:
            hint = " (and s3:ListBucket, without which S3 hides that a key is absent)"
            return UnavailableError(
                f"{what}: access is denied; these credentials need {_PERMISSIONS[operation]} "
                f"there{hint if operation in ('get', 'head') else ''}",
                kind=STORE_DENIED,
                operation=operation,
                key=key,
            )
        case Outcome.CREDENTIALS:
            return UnavailableError(
                f"{what}: the credentials are missing, expired or not known there ({reason}); "
                f"renew them and try again, or {CREDENTIALS_HINT}",
                kind=STORE_CREDENTIALS,
                key=key,
            )
        case Outcome.RANGE | Outcome.WRONG:
            return IntegrityError(f"{what}: {reason}", kind="store.short", key=key)
        case Outcome.FULL:
            return NoSpaceError(f"{what}: the store is full or over quota ({reason})", key=key)
        case Outcome.REGION:
            return UsageError(
                f"{what}: it lies in another region ({reason}); give --region", kind="store.region"
            )
        case _:
            kind, hint = _KINDS.get(failure.outcome, ("store.refused", ""))
            return UnavailableError(f"{what} at {where}: {reason}{hint}", kind=kind, key=key)


_KINDS: Final[Mapping[Outcome, tuple[str, str]]] = {
    Outcome.UNCLEAR: (STORE_UNCLEAR, ""),
    Outcome.NOT_SENT: (STORE_AWAY, "; check the URL and the network"),
    Outcome.CONFLICT: (STORE_CONFLICT, "; other writers keep it busy, try again"),
    Outcome.CHANGED: ("store.changed", "; read it again"),
    Outcome.CLOCK: ("store.clock", "; set this machine's clock"),
    Outcome.TLS: ("store.tls", "; check the certificate, or give --ca-bundle"),
    Outcome.UNSUPPORTED: ("store.unsupported", ""),
}
