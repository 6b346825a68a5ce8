"""Requests to an S3 server: each is counted, judged and, where that is safe, sent again.

The only module that imports boto3. Its own retries are off: only what may be sent twice is, and a
write that may take effect only once is sent once (docs/design/0004). boto3 costs about a
millisecond of processor time a request under the interpreter lock: this runs in processes that
serve no file system.

Credentials come from where boto3 looks for them in this process: os.environ, the files in ~/.aws,
the machine's role. A daemon that gets them over a socket puts them into os.environ before its first
request, and again when they are renewed; so nothing here ever holds a secret.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeVar
from urllib.parse import urlsplit

import boto3
import botocore.exceptions
import botocore.loaders
import botocore.parsers
import botocore.session
import urllib3.exceptions
from botocore.awsrequest import AWSPreparedRequest
from botocore.config import Config

from workspacefs.backend.retry import Retries, RetryPolicy
from workspacefs.backend.s3_answers import (
    ANSWERS,
    AWAY,
    RETRIED,
    Outcome,
    S3Failure,
    error_for,
    failure_of,
)
from workspacefs.backend.s3_url import S3Url
from workspacefs.backend.stats import RequestStats, StoreHealth
from workspacefs.errors import UsageError

if TYPE_CHECKING:  # stubs, which only checks need
    from botocore.config import _S3Dict
    from mypy_boto3_s3.client import S3Client

log = logging.getLogger(__name__)

for _name in ("boto3", "botocore", "urllib3"):
    # Their DEBUG lines hold session tokens and signatures, and cost more than a request does; those
    # of INFO say again what our own errors say.
    logging.getLogger(_name).setLevel(logging.WARNING)

_T = TypeVar("_T")

CONNECT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 20.0
POOL_CONNECTIONS: Final = 32
_JOINED_MAX_BYTES: Final = 64 << 10
"""Values that are replaced are shorter than this."""
DEFAULT_REGION: Final = "us-east-1"
_WRONG_MAX: Final = 2
"""So often a wrong answer is asked for again: it may be chance, but rarely is."""
_RENEW_EVERY_S: Final = 1.0
"""Looking for credentials may run a program or ask the network: not at every refusal."""
_CAUSES_MAX: Final = 32
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


class Body(Protocol):
    """The bytes of an answer that still come."""

    def read(self, amt: int) -> bytes:
        """Return up to so many; none at the end."""
        ...

    def close(self) -> None:
        """Let go of the connection; it can be used again only if all bytes were read."""
        ...


class S3Connection:
    """The way to one store. Thread-safe; must not be used across a fork.

    The client, which takes about 0.1 s to make, is made by the first request.

    Args:
        url: Which store.
        retry: Limits for each call.
        stats: Counts every request.
        connect_timeout_s: For a connection to come about.
        read_timeout_s: For the next bytes of an answer to come.
    """

    def __init__(
        self,
        url: S3Url,
        *,
        retry: RetryPolicy,
        stats: RequestStats,
        connect_timeout_s: float,
        read_timeout_s: float,
    ) -> None:
        self.url = url
        self.bucket = url.bucket
        self.retry = retry
        self.stats = stats
        self.health = StoreHealth()
        self._prefix = url.prefix + "/" if url.prefix else ""
        self._timeouts_s = (connect_timeout_s, read_timeout_s)
        self._lock = threading.Lock()
        self._client: S3Client | None = None
        self._renewed_s = float("-inf")

    def name_of(self, key: str) -> str:
        """Return the name of a key, or a prefix of keys, in the bucket."""
        return self._prefix + key

    def key_of(self, name: str) -> str:
        """Return the key of a name in the bucket."""
        return name[len(self._prefix) :]

    def retried(
        self,
        operation: str,
        send: Callable[[], _T],
        again: frozenset[Outcome] = RETRIED,
        *,
        tries: Retries | None = None,
    ) -> _T:
        """Send until there is an answer, or the limits are reached."""
        tries = tries or self.retry.begin()
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

    def send(self, operation: str, call: Callable[[S3Client], _T], *, bytes_out: int = 0) -> _T:
        """Send one request, twice when credentials had to be read again."""
        client = self.client()
        try:
            return self._send_once(operation, client, call, bytes_out)
        except S3Failure as failure:
            if failure.outcome is not Outcome.CREDENTIALS or not self._renew(client):
                raise
        return self._send_once(operation, self.client(), call, bytes_out)

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
    def told(self, operation: str, key: str) -> Iterator[None]:
        """Turn what requests within end with into what callers of a backend know."""
        try:
            yield
        except S3Failure as failure:
            error = error_for(failure, operation=operation, key=key, url=self.url)
            raise error from (failure.__cause__ or failure)

    def read(self, body: Body, amount: int) -> bytes:
        """Return the next bytes of an answer, up to `amount`.

        Raises:
            S3Failure: The connection broke, or nothing came in time (UNCLEAR).
        """
        try:
            return body.read(amount)
        except _BODY_ERRORS as exc:
            raise self.broken_off(f"the answer broke off ({_name_of(exc)})") from exc

    def broken_off(self, reason: str) -> S3Failure:
        """Return the failure that an answer is which ends too early; it is noted."""
        self.health.note_failure(reason)
        return S3Failure(Outcome.UNCLEAR, reason)

    def client(self) -> S3Client:
        """Return the client, made now if need be.

        Raises:
            S3Failure: There are no credentials.
            UsageError: The configuration cannot be used.
        """
        client = self._client
        if client is None:
            with self._lock:
                if self._client is None:
                    try:
                        self._client = self._new_client()
                    except S3Failure as failure:
                        self.health.note_failure(failure.reason)
                        raise
                client = self._client
        return client

    def _renew(self, used: S3Client) -> bool:
        """Forget a client whose credentials were refused; False: they were read just now."""
        with self._lock:
            if self._client is not used:
                return True  # another thread has done so
            now_s = self.retry.monotonic()
            if now_s - self._renewed_s < _RENEW_EVERY_S:
                return False
            self._renewed_s = now_s
            self._client = None
        log.info("credentials.read_again", extra={"bucket": self.url.bucket})
        return True

    def _new_client(self) -> S3Client:
        place = self.url
        try:
            core = botocore.session.Session(profile=place.profile)
            core.register_component("data_loader", _LOADER)
            # The type says no more than that all arguments come by name, and they do.
            core.register("before-send.s3.PutObject", join_small_body)  # type: ignore[arg-type]
            session = boto3.session.Session(botocore_session=core)
            if session.get_credentials() is None:
                raise S3Failure(Outcome.CREDENTIALS, "none were found")
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
                f"no S3 client can be made for {place} ({_name_of(exc)}); check the URL and "
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
            s3=_addressing(self.url),
        )


def join_small_body(request: AWSPreparedRequest, **others: object) -> None:
    """Have a small value leave in one piece with the head of its request.

    botocore sends bytes so, but not a bytearray. If we die in between, SeaweedFS 4.48 replaces the
    value by one of no bytes.
    """
    if isinstance(request.body, bytearray) and len(request.body) <= _JOINED_MAX_BYTES:
        request.body = bytes(request.body)


def load_models() -> None:
    """Read what every client needs from disk, so that processes forked later have it.

    Asks nobody, opens nothing, and looks at no credentials.
    """
    for name in ("service-2", "endpoint-rule-set-1", "paginators-1", "waiters-2"):
        _LOADER.load_service_model("s3", name)
    _LOADER.load_data("endpoints")
    _LOADER.load_data("partitions")
    _LOADER.load_data("sdk-default-configuration")


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
        if isinstance(found, BaseException) and len(seen) < _CAUSES_MAX:
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
