"""Writing values to an S3 server, under conditions, so that nobody's value is overwritten.

This module must not know boto3.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from blake3 import blake3

from workspacefs.backend.contract import Version
from workspacefs.backend.s3_answers import NOTHING_DONE, Outcome, S3Failure
from workspacefs.backend.s3_connection import S3Connection
from workspacefs.backend.s3_multipart import upload_parts
from workspacefs.backend.s3_reading import CHECKSUM, WRITE_ID, Reader
from workspacefs.errors import BusyError, RefusedError

log = logging.getLogger(__name__)

_TORN_MAX: Final = 3
_IF_ABSENT: Final[Mapping[str, str]] = {"IfNoneMatch": "*"}


class Writer:
    """Writes and deletes values. Thread-safe. All methods end with S3Failure when they fail."""

    def __init__(self, connection: S3Connection, reader: Reader) -> None:
        self._connection = connection
        self._reader = reader

    def put(self, key: str, data: bytes | bytearray) -> None:
        """Store under a key never used, as often as it takes.

        Raises:
            BusyError: There is another's value.
        """
        write_id = secrets.token_hex(16)

        def write() -> object:
            return self._put_object("put", key, data, write_id, _IF_ABSENT)

        for _ in range(_TORN_MAX):
            if self._settle("put", key, write_id, len(data), write):
                return
            # Nobody knows of it yet, and it is ours.
            self.delete(key)
        raise S3Failure(Outcome.WRONG, "the server keeps less than it was sent")

    def put_in_parts(self, key: str, parts: Sequence[bytes | memoryview]) -> None:
        """Store under a key never used, in parts that travel side by side.

        Raises:
            BusyError: There is another's value.
        """
        write_id = secrets.token_hex(16)
        connection = self._connection
        arguments: dict[str, Any] = {
            **self._target(key),
            **self._encryption(),
            "Metadata": {WRITE_ID: write_id},
        }
        # A lost answer leaves an upload without parts: servers and bucket rules clear those away.
        answer = connection.retried(
            "multipart",
            lambda: connection.send(
                "multipart", lambda client: client.create_multipart_upload(**arguments)
            ),
        )
        target = {**self._target(key), "UploadId": answer["UploadId"]}
        size_bytes = sum(memoryview(part).nbytes for part in parts)

        def settle(write: Callable[[], object]) -> None:
            if not self._settle("multipart", key, write_id, size_bytes, write):
                raise S3Failure(Outcome.WRONG, "the server keeps less than it was sent")

        upload_parts(_Upload(connection, target, settle, lambda: self._reader.exists(key)), parts)

    def put_if(self, key: str, data: bytes, condition: Mapping[str, str]) -> Version | None:
        """Store on a condition, sent once; None: it is not met."""
        write_id = secrets.token_hex(16)
        try:
            etag = self._connection.retried(
                "put_if",
                lambda: self._put_object("put_if", key, data, write_id, condition),
                NOTHING_DONE,
            )
        except S3Failure as failure:
            # moto and AWS: a condition on a value that is gone is answered by 404.
            if failure.outcome in (Outcome.CONDITION, Outcome.ABSENT):
                return None
            raise
        return version_of(etag, key)

    def put_if_absent(self, key: str, data: bytes) -> Version | None:
        """Store unless a value is there, sent once; None: one is."""
        return self.put_if(key, data, _IF_ABSENT)

    def delete(self, key: str) -> None:
        """Remove a value if it is there."""
        self._connection.retried("delete", lambda: self._delete_object(key, {}))

    def delete_if(self, key: str, condition: Mapping[str, str]) -> bool:
        """Remove a value on a condition, sent once; False: it is not met."""
        return self._connection.retried(
            "delete", lambda: self._delete_object(key, condition), NOTHING_DONE
        )

    def _put_object(
        self,
        operation: str,
        key: str,
        data: bytes | bytearray,
        write_id: str,
        condition: Mapping[str, str],
    ) -> str:
        arguments: dict[str, Any] = {
            **self._target(key),
            **self._encryption(),
            **condition,
            "Metadata": {WRITE_ID: write_id, CHECKSUM: blake3(data).hexdigest()},
            "Body": _body_of(data),
        }
        answer = self._connection.send(
            operation, lambda client: client.put_object(**arguments), bytes_out=len(data)
        )
        return _etag_of(answer)

    def _settle(
        self,
        operation: str,
        key: str,
        write_id: str,
        size_bytes: int,
        write: Callable[[], object],
    ) -> bool:
        """Write under the condition that nothing is there, as often as it takes.

        Sent again, a write may find itself: by its id it is known to have got there. False: not
        all of it did.
        """
        try:
            self._connection.retried(operation, write)
        except S3Failure as failure:
            if failure.outcome not in (Outcome.CONDITION, Outcome.NO_UPLOAD):
                raise
            found_bytes, found_id = self._look(key)
            if found_id == write_id:
                if found_bytes != size_bytes:
                    # SeaweedFS 4.48 stores a value of no bytes when a connection ends between
                    # the head of a request and its body.
                    log.warning("put.torn", extra={"key": key, "bytes": found_bytes})
                return found_bytes == size_bytes
            if failure.outcome is Outcome.NO_UPLOAD:
                raise
            raise BusyError(f"{key} is stored already", kind="store.exists", key=key) from failure
        return True

    def _look(self, key: str) -> tuple[int, str | None]:
        try:
            return self._reader.look(key)
        except S3Failure as failure:
            if failure.outcome is Outcome.ABSENT:
                return 0, None
            raise

    def _delete_object(self, key: str, condition: Mapping[str, str]) -> bool:
        arguments: dict[str, Any] = {**self._target(key), **condition}
        try:
            self._connection.send("delete", lambda client: client.delete_object(**arguments))
        except S3Failure as failure:
            if failure.outcome in (Outcome.CONDITION, Outcome.ABSENT):
                return False
            raise
        return True

    def _target(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._connection.bucket, "Key": self._connection.name_of(key)}

    def _encryption(self) -> dict[str, str]:
        url = self._connection.url
        if url.sse is None:
            return {}
        headers = {"ServerSideEncryption": url.sse}
        if url.sse_kms_key_id is not None:
            headers["SSEKMSKeyId"] = url.sse_kms_key_id
        return headers


class _Upload:
    """A multipart upload that has begun. See s3_multipart.Upload."""

    def __init__(
        self,
        connection: S3Connection,
        target: dict[str, Any],
        settle: Callable[[Callable[[], object]], None],
        exists: Callable[[], bool],
    ) -> None:
        self._connection = connection
        self._target = target
        self._settle = settle
        self._exists = exists

    def send_part(self, number: int, data: bytearray) -> str:
        """Send a part. See Upload.send_part."""
        arguments = {**self._target, "PartNumber": number, "Body": _body_of(data)}

        def send() -> str:
            answer = self._connection.send(
                "multipart",
                lambda client: client.upload_part(**arguments),
                bytes_out=len(data),
            )
            return _etag_of(answer)

        return self._connection.retried("multipart", send)

    def complete(self, tokens: Sequence[str]) -> None:
        """Make the parts the value, unless one is there. See Upload.complete."""
        listed = [
            {"PartNumber": number, "ETag": token} for number, token in enumerate(tokens, start=1)
        ]
        arguments: dict[str, Any] = {**self._target, "MultipartUpload": {"Parts": listed}}
        condition = dict(_IF_ABSENT)

        def send() -> str:
            given: dict[str, Any] = {**arguments, **condition}
            try:
                answer = self._connection.send(
                    "multipart", lambda client: client.complete_multipart_upload(**given)
                )
            except S3Failure as failure:
                if failure.outcome is not Outcome.UNSUPPORTED or not condition:
                    raise
                # Not all servers know conditions here. No one else makes such a key: look, go on.
                condition.clear()
                if self._exists():
                    raise S3Failure(Outcome.CONDITION, "it is there") from failure
                return send()
            return _etag_of(answer)

        self._settle(send)

    def abort(self) -> None:
        """Let the server forget the parts. See Upload.abort."""
        try:
            self._connection.send(
                "multipart", lambda client: client.abort_multipart_upload(**self._target)
            )
        except S3Failure as failure:
            # Not worth waiting for: what called for the abort is being raised already.
            log.warning(
                "upload.not_aborted", extra={"key": self._target["Key"], "reason": failure.reason}
            )


def _body_of(data: bytes | bytearray) -> bytearray:
    """Return data as the body of a request that is sent without asking.

    botocore 1.44 makes files of bytes, and asks ("Expect: 100-continue") before it sends a file,
    which costs a round trip. Of a bytearray it does not.
    """
    return data if isinstance(data, bytearray) else bytearray(data)


def _etag_of(answer: Mapping[str, Any]) -> str:
    etag = answer.get("ETag")
    if not etag:
        raise S3Failure(Outcome.UNCLEAR, "the server answers a write without an ETag")
    return str(etag)


def version_of(etag: str, key: str) -> Version:
    """Return an ETag as the token of a value.

    Raises:
        RefusedError: It is a weak one, which other bytes may have too (kind "store.weak_etag").
    """
    if etag.startswith("W/"):
        raise RefusedError(
            f"the server names {key} by a weak ETag, which other bytes may have too; a proxy on "
            "the way may change answers: reach the store without it",
            kind="store.weak_etag",
            key=key,
        )
    return Version(etag)
