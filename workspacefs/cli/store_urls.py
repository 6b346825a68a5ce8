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
    """Return the URL and the revision of URL[@REV]; a directory that has the @ in it wins."""
    url, at, rev = text.rpartition("@")
    if not at or not url or "/" in rev or os.path.isdir(text):
        return text, None
    return url, rev
