"""A backend in a bucket of S3 or of a server that speaks its protocol.

The only module that imports boto3; every request to the store is made here, one function above
the client. boto3's own retries are off: only what may be sent twice is, and a write that may take
effect only once is sent once (docs/design/0004). boto3 costs about a millisecond of processor time
a request under the interpreter lock: this runs in processes that serve no file system.

Credentials come from where boto3 looks for them in this process: os.environ, the files in ~/.aws,
the machine's role. A daemon that gets them over a socket puts them into os.environ before its first
request, and again when they are renewed; so nothing here ever holds a secret.
"""

from __future__ import annotations

import logging
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeVar
from urllib.parse import urlsplit

import boto3
import botocore.exceptions
import botocore.loaders
import botocore.parsers
import botocore.session
import urllib3.exceptions
from blake3 import blake3
from botocore.config import Config

from workspacefs.backend.contract import (
    PIECE_MAX_BYTES,
    STORE_NO_CONDITIONAL_DELETE,
    KeyInfo,
    RangeAnswer,
    Version,
    check_key,
)
from workspacefs.backend.retry import Retries, RetryPolicy
from workspacefs.backend.s3_answers import (
    ANSWERS,
    AWAY,
    NOTHING_DONE,
    RETRIED,
    Outcome,
    S3Failure,
    Slice,
    error_for,
    failure_of,
    slice_of,
)
from workspacefs.backend.s3_listing import Page, iter_sorted
from workspacefs.backend.s3_multipart import MULTIPART_MIN_BYTES, upload_parts
from workspacefs.backend.s3_url import S3Url
from workspacefs.backend.stats import RequestStats, StoreHealth
from workspacefs.errors import (
    BusyError,
    IntegrityError,
    RefusedError,
    UnavailableError,
    UsageError,
)

if TYPE_CHECKING:  # stubs, which only checks need
    from botocore.config import _S3Dict
    from mypy_boto3_s3.client import S3Client

log = logging.getLogger(__name__)

_T = TypeVar("_T")

CONNECT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 20.0
POOL_CONNECTIONS: Final = 32
DEFAULT_REGION: Final = "us-east-1"
WRITE_ID: Final = "wsfs-write"
"""Metadata of every value: 32 hex digits, new for each write; by it a writer knows its own."""
CHECKSUM: Final = "wsfs-blake3"
"""Metadata of values written in one request: BLAKE3 of the content, 64 hex digits."""
_PIECE_MIN_BYTES: Final = 4 << 10
_PIECE_FIRST_BYTES: Final = 16 << 10
_PIECE_S: Final = 0.5
"""A read of a body asks for what comes in this time, so that slow bodies are seen in time."""
_PROGRESS_BYTES_S: Final = 16 << 10
"""A body that comes more slowly than this does not get ahead."""
_WRONG_MAX: Final = 2
"""So often a wrong answer is asked for again: it may be chance, but rarely is."""
_RENEW_EVERY_S: Final = 5.0
_PROBE_KEY: Final = "probe/conditional"
_NO_ETAG: Final = '"00000000000000000000000000000000"'
_LOADER: Final = botocore.loaders.create_loader()
"""Keeps the model of S3, which is most of what making a client costs: 60 of 70 ms."""
_CREDENTIAL_ERRORS: Final = (
    botocore.exceptions.NoCredentialsError,
    botocore.exceptions.PartialCredentialsError,
    botocore.exceptions.CredentialRetrievalError,
    botocore.exceptions.NoAuthTokenError,
    botocore.exceptions.TokenRetrievalError,
    botocore.exceptions.SSOError,
    botocore.exceptions.MetadataRetrievalError,
    botocore.exceptions.RefreshWithMFAUnsupportedError,
)
_NOT_SENT_ERRORS: Final = (
    botocore.exceptions.EndpointConnectionError,
    botocore.exceptions.ConnectTimeoutError,
    botocore.exceptions.ProxyConnectionError,
)
_BODY_ERRORS: Final = (
    botocore.exceptions.BotoCoreError,
    urllib3.exceptions.HTTPError,
    OSError,
)


@dataclass(frozen=True, slots=True)
class _Opened:
    """A value, or a range of it, whose bytes have begun to come."""

    slice: Slice
    body: Any
    etag: str
    metadata: Mapping[str, str]


class S3Backend:
    """Values under `url`. Thread-safe; must not be used across a fork.

    Making one touches no network; the client, which takes about 0.1 s, is made by the first
    request. What a method has stored when it returns survives whatever the store survives.

    Args:
        url: Which store.
        retry: Limits for each call, and within a range for each stretch without progress.
        stats: Counts every request; default: an own one.
        connect_timeout_s: For a connection to come about.
        read_timeout_s: For the next bytes of an answer to come.
    """

    is_local = False

    def __init__(
        self,
        url: S3Url,
        *,
        retry: RetryPolicy | None = None,
        stats: RequestStats | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self.url = str(url)
        self.stats = stats or RequestStats()
        self.health = StoreHealth()
        self._place = url
        self._prefix = url.prefix + "/" if url.prefix else ""
        self._retry = retry or RetryPolicy()
        self._timeouts_s = (connect_timeout_s, read_timeout_s)
        self._lock = threading.Lock()
        self._client: S3Client | None = None
        self._renewed_s = float("-inf")
        self._deletes_conditionally: bool | None = None

    def __repr__(self) -> str:
        return f"S3Backend({self.url!r})"

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return a value or exactly the range asked for. See Backend.get."""
        if offset == 0 and length is None:
            return self._get_whole(key)[0]
        if length == 0:
            self._check_reaches(key, offset, offset)
            return b""
        with self._told("get", key):
            tries = self._retry.begin()
            try:
                opened = self._open(key, offset, length, tries)
            except S3Failure as failure:
                if failure.outcome is not Outcome.RANGE:
                    raise
                self._check_reaches(key, offset, offset + (length or 0))
                if length is None:
                    return b""
                raise
            if length is not None and opened.slice.take_bytes < length:
                opened.body.close()
                self._raise_short(key, opened.slice.total_bytes, offset, offset + length)
            return b"".join(self._iter_pieces(key, offset, opened, tries))

    def get_versioned(self, key: str) -> tuple[bytes, Version]:
        """Return a whole value and its ETag. See Backend.get_versioned."""
        value, etag = self._get_whole(key)
        return value, _version_of(etag, key)

    def size_bytes(self, key: str) -> int:
        """Return the length of a value. See Backend.size_bytes."""
        with self._told("head", key):
            return self._retried("head", lambda: self._look(key))[0]

    def open_range(self, key: str, *, offset: int, length: int) -> RangeAnswer:
        """Begin to read a range, clipped to the value's end. See RangeSource.open_range."""
        if length == 0:
            return RangeAnswer(self._check_reaches(key, offset, offset), _no_pieces())
        with self._told("get", key):
            tries = self._retry.begin()
            try:
                opened = self._open(key, offset, length, tries)
            except S3Failure as failure:
                if failure.outcome is not Outcome.RANGE:
                    raise
                total = self._check_reaches(key, offset, offset)
                if offset == total:
                    return RangeAnswer(total, _no_pieces())
                # rclone 1.75 refuses a range that reaches beyond the end, instead of clipping it.
                opened = self._open(key, offset, min(length, total - offset), tries)
        return RangeAnswer(opened.slice.total_bytes, self._told_pieces(key, offset, opened, tries))

    def put(self, key: str, parts: Sequence[bytes | memoryview]) -> None:
        """Store under a key never used, in parts that travel side by side if it is large.

        See Backend.put.
        """
        check_key(key)
        write_id = secrets.token_hex(16)
        if sum(memoryview(part).nbytes for part in parts) > MULTIPART_MIN_BYTES:
            with self._told("multipart", key):
                upload_parts(_Upload(self, key, write_id), parts)
            return
        data = b"".join(parts)
        with self._told("put", key):
            self._settled(
                "put",
                key,
                write_id,
                lambda: self._put_object("put", key, data, write_id, IfNoneMatch="*"),
            )

    def put_if_absent(self, key: str, data: bytes) -> Version | None:
        """Store unless a value is there; sent once. See Backend.put_if_absent."""
        return self._put_if(key, data, IfNoneMatch="*")

    def put_if_version(self, key: str, data: bytes, version: Version) -> Version | None:
        """Replace just the value of that ETag; sent once. See Backend.put_if_version."""
        check_key(key)
        return self._put_if(key, data, IfMatch=version) if version else None

    def iter_keys(self, prefix: str, *, start_after: str = "") -> Iterator[KeyInfo]:
        """Yield keys in ascending order. See Backend.iter_keys."""
        return iter_sorted(self._list_page, prefix, start_after=start_after)

    def delete(self, key: str) -> None:
        """Remove a value if it is there. See Backend.delete."""
        check_key(key)
        with self._told("delete", key):
            self._retried("delete", lambda: self._delete_object(key))

    def delete_if_version(self, key: str, version: Version) -> bool:
        """Remove just the value of that ETag; sent once. See Backend.delete_if_version."""
        check_key(key)
        if not version:
            return False
        with self._told("delete", key):
            self._check_conditional_delete()
            return self._retried(
                "delete", lambda: self._delete_object(key, IfMatch=version), NOTHING_DONE
            )

    def forget_local(self, key: str, *, offset: int, length: int) -> None:
        """Do nothing: there are no copies. See Backend.forget_local."""

    def is_near(self, key: str, *, offset: int, length: int) -> bool:
        """Return False. See Backend.is_near."""
        return False

    def find_near(self, key: str, *, offset: int, length: int) -> bytes | None:
        """Return None. See Backend.find_near."""
        return None

    def free_bytes(self) -> tuple[int, int] | None:
        """Return None: a bucket has no disk."""
        return None

    # Reading

    def _get_whole(self, key: str) -> tuple[bytes, str]:
        with self._told("get", key):
            return self._retried("get", lambda: self._get_once(key))

    def _get_once(self, key: str) -> tuple[bytes, str]:
        opened = self._request_range(key, 0, None)
        value = b"".join(self._iter_body(opened))
        checksum = opened.metadata.get(CHECKSUM)
        if checksum is not None and checksum != blake3(value).hexdigest():
            raise S3Failure(Outcome.WRONG, "the server sends other bytes than were stored")
        return value, opened.etag

    def _open(
        self,
        key: str,
        offset: int,
        length: int | None,
        tries: Retries,
        *,
        etag: str | None = None,
    ) -> _Opened:
        return self._retried(
            "get", lambda: self._request_range(key, offset, length, etag=etag), tries=tries
        )

    def _request_range(
        self, key: str, offset: int, length: int | None, *, etag: str | None = None
    ) -> _Opened:
        check_key(key)
        arguments: dict[str, Any] = {}
        if offset or length is not None:
            last = "" if length is None else str(offset + length - 1)
            arguments["Range"] = f"bytes={offset}-{last}"
        if etag is not None:
            arguments["IfMatch"] = etag
        try:
            answer = self._send(
                "get",
                lambda client: client.get_object(
                    Bucket=self._place.bucket, Key=self._prefix + key, **arguments
                ),
            )
        except S3Failure as failure:
            if failure.outcome is Outcome.CONDITION:
                raise S3Failure(Outcome.CHANGED, "it was replaced while it was read") from failure
            raise
        return self._opened(answer, offset, length)

    def _opened(self, answer: Mapping[str, Any], offset: int, length: int | None) -> _Opened:
        body = answer["Body"]
        try:
            found = slice_of(
                content_range=answer.get("ContentRange"),
                body_bytes=answer.get("ContentLength"),
                offset=offset,
                length=length,
            )
            etag = answer.get("ETag")
            if not etag:  # not from a store, or not from a value: an error page, or a proxy's
                raise S3Failure(Outcome.UNCLEAR, "the server answers without an ETag")
        except S3Failure:
            body.close()
            raise
        metadata = {name.lower(): text for name, text in answer.get("Metadata", {}).items()}
        return _Opened(found, body, etag, metadata)

    def _told_pieces(
        self, key: str, offset: int, opened: _Opened, tries: Retries
    ) -> Generator[bytes, None, None]:
        with self._told("get", key):
            yield from self._iter_pieces(key, offset, opened, tries)

    def _iter_pieces(
        self, key: str, offset: int, opened: _Opened, tries: Retries
    ) -> Generator[bytes, None, None]:
        """Yield what was opened; where the connection breaks, go on with another one."""
        end = offset + opened.slice.take_bytes
        while True:
            began, first = time.monotonic(), offset
            try:
                for piece in self._iter_body(opened):
                    offset += len(piece)
                    yield piece
                return
            except S3Failure as failure:
                seconds = time.monotonic() - began
                if offset - first >= max(1, _PROGRESS_BYTES_S * seconds):
                    tries.restart()
                if not tries.wait():
                    raise
                self.stats.count_retry("get")
                log.debug("range.resumed", extra={"key": key, "reason": failure.reason})
            opened = self._open(key, offset, end - offset, tries, etag=opened.etag)

    def _iter_body(self, opened: _Opened) -> Generator[bytes, None, None]:
        """Yield the bytes that were asked for out of a body; closes it."""
        body, skip, left = opened.body, opened.slice.skip_bytes, opened.slice.take_bytes
        began, done, amount = time.monotonic(), 0, _PIECE_FIRST_BYTES
        try:
            while left or not done:
                piece = _read(body, min(amount, skip + left))
                seconds = time.monotonic() - began
                if not piece and skip + left:
                    self._break_off("the answer ended too early")
                if skip + left > len(piece) and seconds > self._retry.deadline_s:
                    self._break_off("the answer comes too slowly")
                done += len(piece)
                amount = int(
                    min(
                        max(done / max(seconds, 1e-6) * _PIECE_S, _PIECE_MIN_BYTES), PIECE_MAX_BYTES
                    )
                )
                self.stats.count_bytes_in("get", len(piece))
                cut = min(skip, len(piece))
                skip -= cut
                left -= len(piece) - cut
                if len(piece) > cut:
                    yield piece[cut:] if cut else piece
                if not piece:
                    return
        except _BODY_ERRORS as exc:
            self._break_off(f"the answer broke off ({_name_of(exc)})", exc)
        finally:
            body.close()

    def _break_off(self, reason: str, cause: Exception | None = None) -> NoReturn:
        self.health.note_failure(reason)
        raise S3Failure(Outcome.UNCLEAR, reason) from cause

    def _look(self, key: str) -> tuple[int, str | None]:
        """Return size and write id of a value.

        By the smallest range and not by HEAD, whose errors have no body: whether the key or the
        bucket is missing, or which right, could not be told.
        """
        check_key(key)
        bucket, name = self._place.bucket, self._prefix + key
        try:
            answer: Mapping[str, Any] = self._send(
                "head", lambda client: client.get_object(Bucket=bucket, Key=name, Range="bytes=0-0")
            )
        except S3Failure as failure:
            if failure.outcome is not Outcome.RANGE:
                raise
        else:
            opened = self._opened(answer, 0, 1)
            if opened.slice.total_bytes <= _PIECE_FIRST_BYTES or answer.get("ContentRange"):
                for _ in self._iter_body(opened):
                    pass  # so that the connection can be used again
            opened.body.close()
            return opened.slice.total_bytes, opened.metadata.get(WRITE_ID)
        answer = self._send("head", lambda client: client.head_object(Bucket=bucket, Key=name))
        metadata = {word.lower(): text for word, text in answer.get("Metadata", {}).items()}
        return answer["ContentLength"], metadata.get(WRITE_ID)

    def _check_reaches(self, key: str, offset: int, end: int) -> int:
        total = self.size_bytes(key)
        if offset > total or end > total:
            self._raise_short(key, total, offset, end)
        return total

    def _raise_short(self, key: str, total: int, offset: int, end: int) -> NoReturn:
        raise IntegrityError(
            f"{key} has {total} bytes where bytes {offset} to {end} were expected",
            kind="store.short",
            key=key,
        )

    # Writing

    def _put_if(self, key: str, data: bytes, **condition: str) -> Version | None:
        check_key(key)
        write_id = secrets.token_hex(16)
        with self._told("put_if", key):
            try:
                etag = self._retried(
                    "put_if",
                    lambda: self._put_object("put_if", key, data, write_id, **condition),
                    NOTHING_DONE,
                )
            except S3Failure as failure:
                # moto and AWS: a condition on a value that is gone is answered by 404.
                if failure.outcome in (Outcome.CONDITION, Outcome.ABSENT):
                    return None
                raise
        return _version_of(etag, key)

    def _put_object(
        self, operation: str, key: str, data: bytes, write_id: str, **condition: str
    ) -> str:
        arguments: dict[str, Any] = {**self._encryption(), **condition}
        # Bytes, not a file: botocore would ask before it sends one, which costs a round trip.
        answer = self._send(
            operation,
            lambda client: client.put_object(
                Bucket=self._place.bucket,
                Key=self._prefix + key,
                Body=data,
                Metadata={WRITE_ID: write_id, CHECKSUM: blake3(data).hexdigest()},
                **arguments,
            ),
            bytes_out=len(data),
        )
        return _etag_of(answer)

    def _settled(
        self, operation: str, key: str, write_id: str, write: Callable[[], object]
    ) -> None:
        """Write under a condition that nothing is there, as often as it takes.

        Sent again, a write may find itself: by its id it is known to have succeeded.
        """
        try:
            self._retried(operation, write)
        except S3Failure as failure:
            if failure.outcome not in (Outcome.CONDITION, Outcome.NO_UPLOAD):
                raise
            if self._has_write(key, write_id):
                return
            if failure.outcome is Outcome.NO_UPLOAD:
                raise
            raise BusyError(f"{key} is stored already", kind="store.exists", key=key) from failure

    def _has_write(self, key: str, write_id: str) -> bool:
        try:
            return self._retried("head", lambda: self._look(key))[1] == write_id
        except S3Failure as failure:
            if failure.outcome is Outcome.ABSENT:
                return False
            raise

    def _exists(self, key: str) -> bool:
        try:
            self._retried("head", lambda: self._look(key))
        except S3Failure as failure:
            if failure.outcome is Outcome.ABSENT:
                return False
            raise
        return True

    def _encryption(self) -> dict[str, str]:
        if self._place.sse is None:
            return {}
        headers = {"ServerSideEncryption": self._place.sse}
        if self._place.sse_kms_key_id is not None:
            headers["SSEKMSKeyId"] = self._place.sse_kms_key_id
        return headers

    def _delete_object(self, key: str, **condition: str) -> bool:
        arguments: dict[str, Any] = condition
        try:
            self._send(
                "delete",
                lambda client: client.delete_object(
                    Bucket=self._place.bucket, Key=self._prefix + key, **arguments
                ),
            )
        except S3Failure as failure:
            if failure.outcome in (Outcome.CONDITION, Outcome.ABSENT):
                return False
            if failure.outcome is Outcome.UNSUPPORTED and condition:
                self._raise_no_conditional_delete()
            raise
        return True

    def _check_conditional_delete(self) -> None:
        """Make sure, once, that the server does not delete whatever the condition says."""
        if self._deletes_conditionally is None:
            # Content that nobody misses: should the condition be ignored, the probe makes it anew.
            self._put_if(_PROBE_KEY, b"probe\n", IfNoneMatch="*")
            self._deletes_conditionally = not self._retried(
                "delete", lambda: self._delete_object(_PROBE_KEY, IfMatch=_NO_ETAG)
            )
        if not self._deletes_conditionally:
            self._raise_no_conditional_delete()

    def _raise_no_conditional_delete(self) -> NoReturn:
        raise UnavailableError(
            f"the server of bucket {self._place.bucket} cannot delete on a condition",
            kind=STORE_NO_CONDITIONAL_DELETE,
        )

    # Listing

    def _list_page(self, prefix: str, *, start_after: str, token: str | None) -> Page:
        own = self._prefix
        arguments: dict[str, Any] = {}
        if token is not None:
            arguments["ContinuationToken"] = token
        elif start_after:
            arguments["StartAfter"] = own + start_after

        def ask() -> Page:
            answer = self._send(
                "list",
                lambda client: client.list_objects_v2(
                    Bucket=self._place.bucket, Prefix=own + prefix, Delimiter="/", **arguments
                ),
            )
            following = answer.get("NextContinuationToken") if answer.get("IsTruncated") else None
            if "IsTruncated" not in answer or (answer["IsTruncated"] and not following):
                raise S3Failure(Outcome.UNCLEAR, "the server sent half a listing")
            keys = [
                KeyInfo(found["Key"][len(own) :], found["Size"])
                for found in answer.get("Contents", ())
                # Consoles mark directories by an empty value whose key ends with a slash.
                if not found["Key"].endswith("/")
            ]
            directories = [
                found["Prefix"][len(own) :] for found in answer.get("CommonPrefixes", ())
            ]
            return Page(keys, directories, following)

        with self._told("list", prefix):
            return self._retried("list", ask)

    # Requests

    def _retried(
        self,
        operation: str,
        send: Callable[[], _T],
        again: frozenset[Outcome] = RETRIED,
        *,
        tries: Retries | None = None,
    ) -> _T:
        """Send until there is an answer, or the limits are reached."""
        tries = tries or self._retry.begin()
        wrong = 0
        while True:
            try:
                return send()
            except S3Failure as failure:
                wrong += failure.outcome is Outcome.WRONG
                if failure.outcome not in again or wrong > _WRONG_MAX:
                    raise
                if not tries.wait(at_least_s=failure.retry_after_s):
                    log.warning(
                        "store.gave_up",
                        extra={
                            "operation": operation,
                            "reason": failure.reason,
                            "retries": tries.retries,
                            "duration_ms": round(tries.elapsed_s * 1000),
                        },
                    )
                    raise
                self.stats.count_retry(operation)
                log.debug(
                    "request.retried", extra={"operation": operation, "reason": failure.reason}
                )

    def _send(self, operation: str, call: Callable[[S3Client], _T], *, bytes_out: int = 0) -> _T:
        """Send one request, twice when credentials had to be read again."""
        client = self._current_client()
        try:
            return self._send_once(operation, client, call, bytes_out)
        except S3Failure as failure:
            if failure.outcome is not Outcome.CREDENTIALS or not self._renew(client):
                raise
        return self._send_once(operation, self._current_client(), call, bytes_out)

    def _send_once(
        self, operation: str, client: S3Client, call: Callable[[S3Client], _T], bytes_out: int
    ) -> _T:
        began = time.monotonic()
        failure: S3Failure | None = None
        cause: Exception
        try:
            return call(client)
        except botocore.exceptions.ClientError as exc:
            failure, cause = _failure_of_answer(exc), exc
        except botocore.exceptions.BotoCoreError as exc:
            failure, cause = _failure_of_transport(exc), exc
        except botocore.parsers.ResponseParserError as exc:
            failure, cause = S3Failure(Outcome.UNCLEAR, "the server answers no XML"), exc
        finally:
            is_error = failure is not None and failure.outcome not in ANSWERS
            self.stats.count(
                operation,
                seconds=time.monotonic() - began,
                is_error=is_error,
                bytes_out=bytes_out,
            )
            if failure is not None and failure.outcome in AWAY:
                self.health.note_failure(failure.reason)
            else:
                self.health.note_ok()
        raise failure from cause

    @contextmanager
    def _told(self, operation: str, key: str) -> Iterator[None]:
        """Turn what requests within end with into what callers of a backend know."""
        try:
            yield
        except S3Failure as failure:
            error = error_for(failure, operation=operation, key=key, url=self._place)
            raise error from (failure.__cause__ or failure)

    # The client

    def _current_client(self) -> S3Client:
        client = self._client
        if client is None:
            with self._lock:
                if self._client is None:
                    self._client = self._new_client()
                client = self._client
        return client

    def _renew(self, used: S3Client) -> bool:
        """Forget a client whose credentials were refused; False: they were read just now."""
        with self._lock:
            if self._client is not used:
                return True  # another thread has done so
            now_s = time.monotonic()
            if now_s - self._renewed_s < _RENEW_EVERY_S:
                return False
            self._renewed_s = now_s
            self._client = None
        log.info("credentials.read_again", extra={"bucket": self._place.bucket})
        return True

    def _new_client(self) -> S3Client:
        place = self._place
        try:
            core = botocore.session.Session(profile=place.profile)
            core.register_component("data_loader", _LOADER)
            session = boto3.session.Session(botocore_session=core)
            return session.client(
                "s3",
                region_name=place.region or session.region_name or DEFAULT_REGION,
                endpoint_url=place.endpoint_url,
                verify=place.ca_bundle,
                config=self._new_config(),
            )
        except botocore.exceptions.ProfileNotFound as exc:
            raise UsageError(
                "the AWS configuration files have no such profile as was asked for; check "
                "--profile and AWS_PROFILE",
                kind="store.profile",
            ) from exc
        except _CREDENTIAL_ERRORS as exc:
            raise S3Failure(Outcome.CREDENTIALS, _name_of(exc)) from exc
        except (botocore.exceptions.BotoCoreError, ValueError) as exc:
            raise UsageError(
                f"no S3 client can be made for {self.url} ({_name_of(exc)}); check the URL and "
                "the AWS configuration files",
                kind="store.url",
            ) from exc

    def _new_config(self) -> Config:
        connect_timeout_s, read_timeout_s = self._timeouts_s
        return Config(
            signature_version="s3v4",
            connect_timeout=connect_timeout_s,
            read_timeout=read_timeout_s,
            tcp_keepalive=True,
            max_pool_connections=POOL_CONNECTIONS,
            retries={"total_max_attempts": 1},
            # What we send is our own: checking it costs a tenth of a request's processor time.
            parameter_validation=False,
            # Checksums in trailers are not understood by all servers. Bodies are covered by the
            # signature; what comes back is checked against ids, or against our own checksum.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3=_addressing(self._place),
        )


class _Upload:
    """A multipart upload that has begun. See s3_multipart.Upload."""

    def __init__(self, backend: S3Backend, key: str, write_id: str) -> None:
        self._backend = backend
        self._key = key
        self._write_id = write_id
        self._target: dict[str, Any] = {
            "Bucket": backend._place.bucket,
            "Key": backend._prefix + key,
        }
        arguments: dict[str, Any] = {
            **self._target,
            **backend._encryption(),
            "Metadata": {WRITE_ID: write_id},
        }
        # A lost answer leaves an upload without parts: servers and bucket rules clear those away.
        answer = backend._retried(
            "multipart",
            lambda: backend._send(
                "multipart", lambda client: client.create_multipart_upload(**arguments)
            ),
        )
        self._target["UploadId"] = answer["UploadId"]

    def send_part(self, number: int, data: bytes) -> str:
        """Send a part. See Upload.send_part."""
        backend = self._backend

        def send() -> str:
            answer = backend._send(
                "multipart",
                lambda client: client.upload_part(PartNumber=number, Body=data, **self._target),
                bytes_out=len(data),
            )
            return _etag_of(answer)

        return backend._retried("multipart", send)

    def complete(self, tokens: Sequence[str]) -> None:
        """Make the parts the value, unless one is there. See Upload.complete."""
        listed = [
            {"PartNumber": number, "ETag": token} for number, token in enumerate(tokens, start=1)
        ]
        arguments: dict[str, Any] = {**self._target, "MultipartUpload": {"Parts": listed}}
        condition: dict[str, Any] = {"IfNoneMatch": "*"}

        def send() -> str:
            try:
                answer = self._backend._send(
                    "multipart",
                    lambda client: client.complete_multipart_upload(**arguments, **condition),
                )
            except S3Failure as failure:
                if failure.outcome is not Outcome.UNSUPPORTED or not condition:
                    raise
                # Not all servers know conditions here; the key is random, so look and go on.
                condition.clear()
                if self._backend._exists(self._key):
                    raise S3Failure(Outcome.CONDITION, "it is there") from failure
                return send()
            return _etag_of(answer)

        self._backend._settled("multipart", self._key, self._write_id, send)

    def abort(self) -> None:
        """Let the server forget the parts. See Upload.abort."""
        try:
            self._backend._send(
                "multipart", lambda client: client.abort_multipart_upload(**self._target)
            )
        except S3Failure as failure:
            # Not worth waiting for: what called for the abort is being raised already.
            log.warning("upload.not_aborted", extra={"key": self._key, "reason": failure.reason})


def load_models() -> None:
    """Read what every client needs from disk, so that processes forked later have it.

    Asks nobody, opens nothing, and looks at no credentials.
    """
    for name in ("service-2", "endpoint-rule-set-1", "paginators-1", "waiters-2"):
        _LOADER.load_service_model("s3", name)
    _LOADER.load_data("endpoints")
    _LOADER.load_data("partitions")
    _LOADER.load_data("sdk-default-configuration")


def _read(body: Any, amount: int) -> bytes:
    data: bytes = body.read(amount)
    return data


def _no_pieces() -> Generator[bytes, None, None]:
    yield from ()


def _etag_of(answer: Mapping[str, Any]) -> str:
    etag = answer.get("ETag")
    if not etag:
        raise S3Failure(Outcome.UNCLEAR, "the server answers a write without an ETag")
    return str(etag)


def _version_of(etag: str, key: str) -> Version:
    if etag.startswith("W/"):
        raise RefusedError(
            f"the server names {key} by a weak ETag, which other bytes may have too; a proxy on "
            "the way may change answers: reach the store without it",
            kind="store.weak_etag",
            key=key,
        )
    return Version(etag)


def _failure_of_answer(exc: botocore.exceptions.ClientError) -> S3Failure:
    answer = exc.response
    about = answer.get("ResponseMetadata", {})
    error = answer.get("Error", {})
    status = int(about.get("HTTPStatusCode", 0))
    code = str(error.get("Code", ""))
    retry_after = about.get("HTTPHeaders", {}).get("retry-after")
    return failure_of(status, code, str(error.get("Message", "")), retry_after)


def _failure_of_transport(exc: botocore.exceptions.BotoCoreError) -> S3Failure:
    if isinstance(exc, _CREDENTIAL_ERRORS):
        return S3Failure(Outcome.CREDENTIALS, _name_of(exc))
    if isinstance(exc, botocore.exceptions.SSLError) and _has_cause(
        exc, ssl.SSLCertVerificationError
    ):
        return S3Failure(Outcome.TLS, "its certificate is not trusted")
    if isinstance(exc, _NOT_SENT_ERRORS):
        return S3Failure(Outcome.NOT_SENT, f"no connection comes about ({_name_of(exc)})")
    return S3Failure(Outcome.UNCLEAR, f"no clear answer came ({_name_of(exc)})")


def _has_cause(exc: BaseException, kind: type[BaseException]) -> bool:
    seen: list[object] = [exc]
    for found in seen:  # grows while it is walked
        if isinstance(found, kind):
            return True
        if isinstance(found, BaseException) and len(seen) < 32:
            seen += [found.__cause__, found.__context__, *found.args]
            seen += [getattr(found, "reason", None), *getattr(found, "kwargs", {}).values()]
    return False


def _name_of(exc: BaseException) -> str:
    """Return what an exception is, without its text: that may hold what must not be told."""
    return type(exc).__name__


def _addressing(place: S3Url) -> _S3Dict:
    style: Literal["auto", "path", "virtual"]
    match place.addressing:
        case "path":
            style = "path"
        case "virtual":
            style = "virtual"
        case _:
            # A bucket has a host name of its own only where names can be made up at will.
            style = "path" if _is_bare_host(place.endpoint_url) else "auto"
    return {"addressing_style": style}


def _is_bare_host(endpoint_url: str | None) -> bool:
    if endpoint_url is None:
        return False
    parts = urlsplit(endpoint_url)
    if parts.port is not None or parts.hostname == "localhost":
        return True
    try:
        ip_address(parts.hostname or "")
    except ValueError:
        return False
    return True
