"""Store URLs as people type them. What a URL means is the backend's matter (backend.open)."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Mapping
from typing import Final

from workspacefs.cli.parser import STORE_FLAGS
from workspacefs.errors import UsageError

_FLAG_OF: Final = {option: flag for flag, (option, _, _) in STORE_FLAGS.items()}
_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""Source: AWS SDKs and Tools Reference Guide, service-specific endpoints; the first one counts."""


def absolute_url(url: str, environ: Mapping[str, str], options: argparse.Namespace) -> str:
    """Return `url` in a spelling that leads to the store from anywhere, without our arguments.

    A relative directory becomes absolute. An s3 URL takes in the flags of `add_store_flags`, and
    an endpoint of the environment if it has none; never credentials.

    Raises:
        UsageError: It is no s3 URL, or flags for S3 are given with another kind of store.
    """
    given = _given_flags(options)
    if is_s3(url):
        # By name: it takes 4 ms of the 30 that a command with another store has to start.
        module = importlib.import_module("workspacefs.backend.s3_url")
        return str(module.merged_url(url, given, endpoint_url=_endpoint_of(environ)))
    if given:
        flags = ", ".join(f"--{_FLAG_OF[name]}" for name in given)
        raise UsageError(
            f"{flags} is for S3 stores, and the store is {url}", kind="usage.store_flags"
        )
    scheme, colon, _ = url.partition(":")
    if url.startswith(("/", ".", "~")) or not colon or "/" in scheme:
        return os.path.abspath(os.path.expanduser(url))
    return url


def _given_flags(options: argparse.Namespace) -> dict[str, str]:
    given: dict[str, str] = {}
    for flag, (option, _, _) in STORE_FLAGS.items():
        value = getattr(options, flag.replace("-", "_"))
        if value is not None:
            given[option] = os.path.abspath(value) if option == "ca_bundle" else value
    return given


def _endpoint_of(environ: Mapping[str, str]) -> str | None:
    if environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
        return None
    return next((environ[name] for name in _ENDPOINT_VARIABLES if environ.get(name)), None)


def split_revision(text: str) -> tuple[str, str | None]:
    """Return the URL and the revision of URL[@REV].

    Both may have an @ in them: the first one that stands behind an existing directory parts them,
    else the last one. In an s3 URL an @ is spelled %40, so the first one parts.
    """
    if is_s3(text):
        url, at_sign, rev = text.partition("@")
        return url, rev if at_sign else None
    if os.path.isdir(_path_in(text)):
        return text, None
    at = text.find("@")
    while at > 0:
        if os.path.isdir(_path_in(text[:at])):
            return text[:at], text[at + 1 :]
        at = text.find("@", at + 1)
    url, at_sign, rev = text.rpartition("@")
    return (url, rev) if at_sign and url and "/" not in rev else (text, None)


def _path_in(url: str) -> str:
    return os.path.expanduser(url.removeprefix("file://"))


def is_s3(url: str) -> bool:
    """Tell what s3_url.is_s3_url tells, without loading that."""
    return url[:3].lower() == "s3:"
