"""A backend in a bucket of S3 or of a server that speaks its protocol.

This module must not know boto3: s3_connection sends the requests.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

from workspacefs.backend.contract import (
    STORE_NO_CONDITIONAL_DELETE,
    KeyInfo,
    RangeAnswer,
    Version,
    check_key,
)
from workspacefs.backend.probe import PROBE_KEY, PROBE_VALUE
from workspacefs.backend.retry import Retries, RetryPolicy
from workspacefs.backend.s3_answers import Outcome, S3Failure
from workspacefs.backend.s3_connection import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, S3Connection
from workspacefs.backend.s3_listing import Page, iter_sorted
from workspacefs.backend.s3_multipart import MULTIPART_MIN_BYTES
from workspacefs.backend.s3_reading import Opened, Reader
from workspacefs.backend.s3_url import S3Url
from workspacefs.backend.s3_writing import Writer, version_of
from workspacefs.backend.stats import RequestStats
from workspacefs.errors import IntegrityError, UnavailableError

_NO_ETAG: Final = '"00000000000000000000000000000000"'


class S3Backend:
    """Values under `url`. Thread-safe; must not be used across a fork.

    Making one touches no network and looks for no credentials: the first request does. What a
    method has stored when it returns survives whatever the store survives.

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
        self._connection = S3Connection(
            url,
            retry=retry or RetryPolicy(),
            stats=self.stats,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
        )
        self.health = self._connection.health
        self._reader = Reader(self._connection)
        self._writer = Writer(self._connection, self._reader)
        self._deletes_conditionally: bool | None = None

    def __repr__(self) -> str:
        return f"S3Backend({self.url!r})"

    def prepare(self) -> None:
        """Make the client now, before the first request needs it; asks no server.

        Raises:
            UsageError: The configuration cannot be used.
            UnavailableError: There are no credentials.
        """
        with self._connection.told("get", ""):
            self._connection.client()

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return a value or exactly the range asked for. See Backend.get."""
        if offset == 0 and length is None:
            with self._connection.told("get", key):
                return self._reader.read_whole(key)[0]
        if length == 0:
            self._check_reaches(key, offset, offset)
            return b""
        with self._connection.told("get", key):
            tries = self._connection.retry.begin()
            try:
                opened = self._reader.open(key, offset, length, tries)
            except S3Failure as failure:
                if failure.outcome is not Outcome.RANGE:
                    raise
                self._check_reaches(key, offset, offset + (length or 0))
                if length is None:
                    return b""
                raise
            if length is not None and opened.slice.take_bytes < length:
                opened.body.close()
                _raise_short(key, opened.slice.total_bytes, offset, offset + length)
            return b"".join(self._reader.iter_pieces(key, offset, opened, tries))

    def get_versioned(self, key: str) -> tuple[bytes, Version]:
        """Return a whole value and its ETag. See Backend.get_versioned."""
        with self._connection.told("get", key):
            value, etag = self._reader.read_whole(key)
        return value, version_of(etag, key)

    def size_bytes(self, key: str) -> int:
        """Return the length of a value. See Backend.size_bytes."""
        with self._connection.told("head", key):
            return self._reader.look(key)[0]

    def open_range(self, key: str, *, offset: int, length: int) -> RangeAnswer:
        """Begin to read a range, clipped to the value's end. See RangeSource.open_range."""
        if length == 0:
            return RangeAnswer(self._check_reaches(key, offset, offset), _no_pieces())
        with self._connection.told("get", key):
            tries = self._connection.retry.begin()
            try:
                opened = self._reader.open(key, offset, length, tries)
            except S3Failure as failure:
                if failure.outcome is not Outcome.RANGE:
                    raise
                total = self._check_reaches(key, offset, offset)
                if offset == total:
                    return RangeAnswer(total, _no_pieces())
                # rclone 1.75 refuses a range that reaches beyond the end, instead of clipping it.
                opened = self._reader.open(key, offset, min(length, total - offset), tries)
        return RangeAnswer(opened.slice.total_bytes, self._iter_told(key, offset, opened, tries))

    def put(self, key: str, parts: Sequence[bytes | memoryview]) -> None:
        """Store under a key never used, in parts that travel side by side if it is large.

        See Backend.put.
        """
        check_key(key)
        if sum(memoryview(part).nbytes for part in parts) > MULTIPART_MIN_BYTES:
            with self._connection.told("multipart", key):
                self._writer.put_in_parts(key, parts)
            return
        with self._connection.told("put", key):
            self._writer.put(key, bytearray().join(parts))

    def put_if_absent(self, key: str, data: bytes) -> Version | None:
        """Store unless a value is there; sent once. See Backend.put_if_absent."""
        check_key(key)
        with self._connection.told("put_if", key):
            return self._writer.put_if_absent(key, data)

    def put_if_version(self, key: str, data: bytes, version: Version) -> Version | None:
        """Replace just the value of that ETag; sent once. See Backend.put_if_version."""
        check_key(key)
        if not version:
            return None
        with self._connection.told("put_if", key):
            return self._writer.put_if(key, data, {"IfMatch": version})

    def iter_keys(self, prefix: str, *, start_after: str = "") -> Iterator[KeyInfo]:
        """Yield keys in ascending order. See Backend.iter_keys."""
        return iter_sorted(self._list_page, prefix, start_after=start_after)

    def delete(self, key: str) -> None:
        """Remove a value if it is there. See Backend.delete."""
        check_key(key)
        with self._connection.told("delete", key):
            self._writer.delete(key)

    def delete_if_version(self, key: str, version: Version) -> bool:
        """Remove just the value of that ETag; sent once. See Backend.delete_if_version."""
        check_key(key)
        if not version:
            return False
        with self._connection.told("delete", key):
            try:
                self._check_conditional_delete()
                return self._writer.delete_if(key, {"IfMatch": version})
            except S3Failure as failure:
                if failure.outcome is not Outcome.UNSUPPORTED:
                    raise
                raise self._no_conditional_delete() from failure

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

    def _iter_told(
        self, key: str, offset: int, opened: Opened, tries: Retries
    ) -> Generator[bytes, None, None]:
        with self._connection.told("get", key):
            yield from self._reader.iter_pieces(key, offset, opened, tries)

    def _check_reaches(self, key: str, offset: int, end: int) -> int:
        total = self.size_bytes(key)
        if offset > total or end > total:
            _raise_short(key, total, offset, end)
        return total

    def _check_conditional_delete(self) -> None:
        """Make sure, once, that the server does not delete whatever the condition says."""
        if self._deletes_conditionally is None:
            # A value that nobody misses: should the condition be ignored, the probe makes it anew.
            self._writer.put_if_absent(PROBE_KEY, PROBE_VALUE)
            has_deleted = self._writer.delete_if(PROBE_KEY, {"IfMatch": _NO_ETAG})
            self._deletes_conditionally = not has_deleted
        if not self._deletes_conditionally:
            raise self._no_conditional_delete()

    def _no_conditional_delete(self) -> UnavailableError:
        return UnavailableError(
            f"the server of bucket {self._connection.bucket} cannot delete on a condition",
            kind=STORE_NO_CONDITIONAL_DELETE,
        )

    def _list_page(self, prefix: str, *, start_after: str, token: str | None) -> Page:
        connection = self._connection
        arguments: dict[str, Any] = {}
        if token is not None:
            arguments["ContinuationToken"] = token
        elif start_after:
            arguments["StartAfter"] = connection.name_of(start_after)

        def ask() -> Page:
            answer = connection.send(
                "list",
                lambda client: client.list_objects_v2(
                    Bucket=connection.bucket,
                    Prefix=connection.name_of(prefix),
                    Delimiter="/",
                    **arguments,
                ),
            )
            try:
                return _page_of(answer, connection)
            except (KeyError, TypeError) as exc:
                raise S3Failure(Outcome.UNCLEAR, "the server sent half a listing") from exc

        with connection.told("list", prefix):
            return connection.retried("list", ask)


def _page_of(answer: Mapping[str, Any], connection: S3Connection) -> Page:
    keys = [
        KeyInfo(connection.key_of(found["Key"]), found["Size"], found.get("ETag"))
        for found in answer.get("Contents", ())
        # Consoles mark directories by an empty value whose key ends with a slash.
        if not found["Key"].endswith("/")
    ]
    directories = [connection.key_of(found["Prefix"]) for found in answer.get("CommonPrefixes", ())]
    token = answer["NextContinuationToken"] if answer["IsTruncated"] else None
    return Page(keys, directories, token)


def _no_pieces() -> Generator[bytes, None, None]:
    yield from ()


def _raise_short(key: str, total: int, offset: int, end: int) -> NoReturn:
    raise IntegrityError(
        f"{key} has {total} bytes where bytes {offset} to {end} were expected",
        kind="store.short",
        key=key,
    )
