"""Reading values and ranges from an S3 server: checked against the answer's own words, resumed.

This module must not know boto3.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from blake3 import blake3

from workspacefs.backend.contract import PIECE_MAX_BYTES, check_key
from workspacefs.backend.retry import Retries
from workspacefs.backend.s3_answers import RETRIED, Outcome, S3Failure, Slice, slice_of
from workspacefs.backend.s3_connection import Body, S3Connection

log = logging.getLogger(__name__)

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
_PARTIAL: Final = 206
_WHOLE: Final = RETRIED | {Outcome.CHANGED}


@dataclass(frozen=True, slots=True)
class Opened:
    """A value, or a range of it, whose bytes have begun to come."""

    slice: Slice
    body: Body
    etag: str
    metadata: Mapping[str, str]


class Reader:
    """Reads what lies in a store. Thread-safe. All methods end with S3Failure when they fail."""

    def __init__(self, connection: S3Connection) -> None:
        self._connection = connection

    def read_whole(self, key: str) -> tuple[bytes, str]:
        """Return a whole value and its ETag."""
        tries = self._connection.retry.begin()

        def read() -> tuple[bytes, str]:
            opened = self._request_range(key, 0, None)
            value = b"".join(self.iter_pieces(key, 0, opened, tries))
            checksum = opened.metadata.get(CHECKSUM)
            if checksum is not None and checksum != blake3(value).hexdigest():
                raise S3Failure(Outcome.WRONG, "the server sends other bytes than were stored")
            return value, opened.etag

        return self._connection.retried("get", read, _WHOLE, tries=tries)

    def open(
        self,
        key: str,
        offset: int,
        length: int | None,
        tries: Retries,
        *,
        etag: str | None = None,
    ) -> Opened:
        """Begin to read a range, clipped to the end of the value.

        Args:
            key: Of the value.
            offset: First byte.
            length: So many bytes; None: all that follow.
            tries: Of the whole read.
            etag: Only of the value that has this one.
        """
        return self._connection.retried(
            "get", lambda: self._request_range(key, offset, length, etag=etag), tries=tries
        )

    def iter_pieces(
        self, key: str, offset: int, opened: Opened, tries: Retries
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
                self._connection.stats.count_retry("get")
                log.debug("range.resumed", extra={"key": key, "reason": failure.reason})
            opened = self.open(key, offset, end - offset, tries, etag=opened.etag)

    def look(self, key: str) -> tuple[int, str | None]:
        """Return size and write id of a value; sent again as need be."""
        return self._connection.retried("head", lambda: self._look(key))

    def exists(self, key: str) -> bool:
        """Tell whether there is a value."""
        try:
            self.look(key)
        except S3Failure as failure:
            if failure.outcome is Outcome.ABSENT:
                return False
            raise
        return True

    def _request_range(
        self, key: str, offset: int, length: int | None, *, etag: str | None = None
    ) -> Opened:
        check_key(key)
        arguments: dict[str, Any] = {}
        if offset or length is not None:
            last = "" if length is None else str(offset + length - 1)
            arguments["Range"] = f"bytes={offset}-{last}"
        if etag is not None:
            arguments["IfMatch"] = etag
        connection = self._connection
        try:
            answer = connection.send(
                "get",
                lambda client: client.get_object(
                    Bucket=connection.bucket, Key=connection.name_of(key), **arguments
                ),
            )
        except S3Failure as failure:
            if failure.outcome is Outcome.CONDITION:
                raise S3Failure(Outcome.CHANGED, "it was replaced while it was read") from failure
            raise
        return _opened(answer, offset, length)

    def _iter_body(self, opened: Opened) -> Generator[bytes, None, None]:
        """Yield the bytes that were asked for out of a body; closes it."""
        connection, body = self._connection, opened.body
        skip, left = opened.slice.skip_bytes, opened.slice.take_bytes
        began, done, amount = time.monotonic(), 0, _PIECE_FIRST_BYTES
        try:
            while skip + left:
                piece = connection.read(body, min(amount, skip + left))
                seconds = time.monotonic() - began
                if not piece:
                    raise connection.broken_off("the answer ended too early")
                if skip + left > len(piece) and seconds > connection.retry.deadline_s:
                    raise connection.broken_off("the answer comes too slowly")
                done += len(piece)
                amount = _amount(done, seconds)
                connection.stats.count_bytes_in("get", len(piece))
                cut = min(skip, len(piece))
                skip -= cut
                left -= len(piece) - cut
                if len(piece) > cut:
                    yield piece[cut:] if cut else piece
            if not done:
                connection.read(body, 1)  # nothing comes, and the connection can be used again
        finally:
            body.close()

    def _look(self, key: str) -> tuple[int, str | None]:
        """Ask by the smallest range and not by HEAD, whose errors have no body.

        From those it could not be told whether the key or the bucket is missing, or which right.
        """
        check_key(key)
        connection = self._connection
        target: dict[str, Any] = {"Bucket": connection.bucket, "Key": connection.name_of(key)}
        try:
            answer: Mapping[str, Any] = connection.send(
                "head", lambda client: client.get_object(Range="bytes=0-0", **target)
            )
        except S3Failure as failure:
            if failure.outcome is not Outcome.RANGE:  # else it is empty
                raise
            answer = connection.send("head", lambda client: client.head_object(**target))
            return answer["ContentLength"], _metadata_of(answer).get(WRITE_ID)
        opened = _opened(answer, 0, 1)
        for _ in self._iter_body(opened):
            pass  # so that the connection can be used again
        return opened.slice.total_bytes, opened.metadata.get(WRITE_ID)


def _opened(answer: Mapping[str, Any], offset: int, length: int | None) -> Opened:
    body = answer["Body"]
    try:
        found = slice_of(
            is_partial=answer["ResponseMetadata"]["HTTPStatusCode"] == _PARTIAL,
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
    return Opened(found, body, etag, _metadata_of(answer))


def _metadata_of(answer: Mapping[str, Any]) -> Mapping[str, str]:
    # rclone 1.75 answers with capitals.
    return {name.lower(): text for name, text in answer.get("Metadata", {}).items()}


def _amount(done_bytes: int, seconds: float) -> int:
    """Return how much to ask a body for next, by how fast it has come so far."""
    expected = done_bytes / max(seconds, 1e-6) * _PIECE_S
    return int(min(max(expected, _PIECE_MIN_BYTES), PIECE_MAX_BYTES))
