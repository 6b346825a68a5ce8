"""Store URLs as people type them. What a URL means is the backend's matter (backend.open)."""

from __future__ import annotations

import os


def absolute_url(url: str) -> str:
    """Return `url`, made absolute when it is a relative directory: a daemon has another one."""
    scheme, colon, _ = url.partition(":")
    if url.startswith(("/", ".", "~")) or not colon or "/" in scheme:
        return os.path.abspath(os.path.expanduser(url))
    return url


def split_revision(text: str) -> tuple[str, str | None]:
    """Return the URL and the revision of URL[@REV].

    Both may have an @ in them: the first one that stands behind an existing directory parts them,
    else the last one.
    """
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
