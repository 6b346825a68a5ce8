"""From a store's URL to its backend."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes

from workspacefs.backend.contract import Backend
from workspacefs.backend.file import FileBackend
from workspacefs.backend.memory import MemoryBackend
from workspacefs.backend.s3_url import parse_s3_url
from workspacefs.errors import UsageError

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_FORMS: Final = "give a directory (./dir, /dir or file:///dir) or s3://BUCKET/PREFIX"


def open_backend(url: str) -> Backend:
    """Return the backend of `url`: a directory, file:///dir (percent-encoded), or s3://….

    For tests also memory:name, which messages do not offer: it ends with the process.

    Touches neither disk nor network.

    Raises:
        UsageError: No backend goes by such a URL.
    """
    if not url or "\0" in url:
        raise UsageError(f"{url!r} is no store: {_FORMS}", kind="store.url")
    scheme = _SCHEME.match(url)
    if scheme is None or url.startswith(("/", ".")):
        return FileBackend(Path(url))
    rest = url[scheme.end() :]
    match scheme[1].lower():
        case "file":
            return FileBackend(_path_of(url, rest))
        case "memory" if rest:
            return MemoryBackend(rest)
        case "s3":
            return _open_s3(url)
        case _:
            raise UsageError(
                f"{url!r} is no store: {_FORMS} (a directory whose name has a colon: ./{url})",
                kind="store.url",
            )


def _open_s3(url: str) -> Backend:
    place = parse_s3_url(url)
    # Here and not above: it loads boto3, which takes a quarter of a second and 30 MB.
    from workspacefs.backend.s3 import S3Backend

    return S3Backend(place)


def _path_of(url: str, rest: str) -> Path:
    if rest.startswith("//"):
        rest = rest[2:]
        if not rest.startswith("/"):
            raise UsageError(
                f"{url!r} names a host; a file store is file:///dir, with three slashes",
                kind="store.url",
            )
    path = unquote_to_bytes(rest)
    if not path or b"\0" in path:
        raise UsageError(f"{url!r} names no directory: {_FORMS}", kind="store.url")
    return Path(os.fsdecode(path))
