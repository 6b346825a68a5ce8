"""URLs of S3 stores: s3://bucket/prefix?endpoint_url=…; one canonical spelling for each store.

Part of the start of every command: this module must not load boto3, nor dataclasses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from workspacefs.errors import UsageError

ADDRESSINGS: Final = ("auto", "path", "virtual")
SSE_KINDS: Final = ("AES256", "aws:kms")
PREFIX_MAX_CHARS: Final = 120
"""With the longest key of a backend (900) it stays below the 1,024 bytes of an S3 key."""
_SCHEME: Final = "s3://"
_FORM: Final = "give s3://BUCKET[/PREFIX][?endpoint_url=URL&region=NAME&...]"
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._,+@=-]*")
_WORD: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PROFILE: Final = re.compile(r"[^\x00-\x1f\x7f]{1,128}")
_KMS_KEY: Final = re.compile(r"[A-Za-z0-9:/_-]{1,2048}")


class S3Url(NamedTuple):
    """Where an S3 store is, and how it is reached; never with what right."""

    bucket: str
    prefix: str = ""
    """Keys begin with it and a slash; without slashes at its ends; may be empty."""
    endpoint_url: str | None = None
    """None: that of AWS."""
    region: str | None = None
    profile: str | None = None
    """Section of the AWS configuration files that credentials and more come from."""
    addressing: str = "auto"
    """One of ADDRESSINGS: whether the bucket stands in the path or in the host name."""
    ca_bundle: str | None = None
    """File of the certificates to trust; None: those of the system."""
    sse: str | None = None
    """One of SSE_KINDS: asked of the server with everything that is stored."""
    sse_kms_key_id: str | None = None

    def __str__(self) -> str:
        """Return the canonical spelling; it has no @ and no space."""
        place = _SCHEME + self.bucket
        if self.prefix:
            place += "/" + quote(self.prefix, safe="/,+=")
        query = "&".join(
            f"{name}={quote(value, safe=':/,+[]')}"
            for name, value in sorted(self._options().items())
        )
        return f"{place}?{query}" if query else place

    def _options(self) -> dict[str, str]:
        values = self._asdict()
        return {
            name: str(values[name])
            for name in OPTIONS
            if values[name] is not None and values[name] != self._field_defaults[name]
        }


OPTIONS: Final = S3Url._fields[2:]
"""What may stand in the query of a URL."""


def is_s3_url(url: str) -> bool:
    """Tell whether `url` means an S3 store, well spelled or not."""
    return url[: len(_SCHEME) - 2].lower() == "s3:"


def parse_s3_url(url: str) -> S3Url:
    """Return what an s3 URL means.

    Raises:
        UsageError: It is none, or holds credentials or options that nobody knows; the message
            does not repeat them (kind "store.url").
    """
    # Not urlsplit's own parts for the whole: it takes a ? or # in a value for more syntax.
    rest = url[len(_SCHEME) :] if url[: len(_SCHEME)].lower() == _SCHEME else ""
    place, _, query = rest.partition("?")
    bucket, _, prefix = place.partition("/")
    if "@" in bucket or ":" in bucket:
        raise _refused(
            "credentials do not belong into a store's URL; give them by AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or by a profile"
        )
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        raise _refused(f"an s3 URL names no bucket, or none that can be; {_FORM}")
    prefix = unquote(prefix).strip("/")
    if len(prefix) > PREFIX_MAX_CHARS or not all(
        _PREFIX_PART.fullmatch(part) for part in prefix.split("/") if prefix
    ):
        raise _refused(
            f"the prefix of an s3 URL is at most {PREFIX_MAX_CHARS} characters in parts of "
            "A-Z a-z 0-9 . _ , + @ = - that begin with no dot"
        )
    return S3Url(bucket, prefix, **_checked(_parse_query(query)))


def merged_url(url: str, options: Mapping[str, str], *, endpoint_url: str | None) -> str:
    """Return the canonical spelling of an s3 URL with the options that are given beside it.

    Args:
        url: As typed.
        options: They count more than those of the URL.
        endpoint_url: Taken when neither has one.

    Raises:
        UsageError: The URL or an option makes no sense.
    """
    place = merge_options(parse_s3_url(url), options)
    if place.endpoint_url is None and endpoint_url is not None:
        place = merge_options(place, {"endpoint_url": endpoint_url})
    return str(place)


def merge_options(url: S3Url, options: Mapping[str, str]) -> S3Url:
    """Return `url` with the options that are given; they count more than those it had.

    Raises:
        UsageError: An option makes no sense.
    """
    known: dict[str, str] = {name: str(value) for name, value in url._options().items()}
    known.update(options)
    return S3Url(url.bucket, url.prefix, **_checked(known))


def _parse_query(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    # A plus sign stays one: it is in names of keys and regions' endpoints, and nobody types forms.
    for name, value in parse_qsl(query.replace("+", "%2B"), keep_blank_values=True):
        if name not in OPTIONS:
            raise _refused(
                f"an s3 URL has an option that is none of {', '.join(OPTIONS)}; credentials "
                "do not belong there"
            )
        if name in options:
            raise _refused(f"an s3 URL gives {name} twice")
        options[name] = value
    return options


def _checked(options: dict[str, str]) -> dict[str, str]:
    for name, pattern in (
        ("region", _WORD),
        ("profile", _PROFILE),
        ("sse_kms_key_id", _KMS_KEY),
        ("ca_bundle", _PROFILE),
    ):
        if name in options and not pattern.fullmatch(options[name]):
            raise _refused(f"the {name} of an s3 URL is empty, too long or has odd characters")
    for name, allowed in (("addressing", ADDRESSINGS), ("sse", SSE_KINDS)):
        if name in options and options[name] not in allowed:
            raise _refused(f"{name} of an s3 URL is one of {', '.join(allowed)}")
    if "sse_kms_key_id" in options and options.get("sse") != "aws:kms":
        raise _refused("sse_kms_key_id needs sse=aws:kms")
    if "endpoint_url" in options:
        options["endpoint_url"] = _checked_endpoint(options["endpoint_url"])
    return options


def _checked_endpoint(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError as exc:
        raise _refused("the endpoint_url of an s3 URL is no URL") from exc
    if "@" in parts.netloc:
        raise _refused("credentials do not belong into an endpoint_url")
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.query
        or parts.fragment
        or not re.fullmatch(r"[A-Za-z0-9.:\[\]-]+", parts.netloc)
        or not re.fullmatch(r"[A-Za-z0-9._~/-]*", parts.path)
    ):
        raise _refused("an endpoint_url is http://HOST[:PORT] or https://HOST[:PORT]")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    is_default = port == {"http": 80, "https": 443}[parts.scheme]
    shown_port = "" if port is None or is_default else f":{port}"
    return f"{parts.scheme}://{host}{shown_port}{parts.path.rstrip('/')}"


def _refused(message: str) -> UsageError:
    return UsageError(message, kind="store.url")
