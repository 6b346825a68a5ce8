"""Listing the keys of an S3 store in the order of the whole key, whatever order the server has.

AWS lists in the order of the key's bytes. Servers that keep directories (SeaweedFS 4.48) list a
directory's content where its bare name stands: "a/b" before "a,b", though "," sorts before "/".
Both orders agree within one directory but for its subdirectories, so each directory is listed on
its own, and subdirectories are held back until nothing can come before them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from workspacefs.backend.contract import KeyInfo

_AFTER_ALL: Final = "~"
"""Sorts behind all characters of keys."""


class Page(NamedTuple):
    """An answer to one request for keys."""

    keys: Sequence[KeyInfo]
    directories: Sequence[str]
    """Prefixes that end with a slash and have keys below."""
    token: str | None
    """Where the next page begins; None: this is the last."""


class ListPage(Protocol):
    """Asks the server for a page of what begins with `prefix`, up to the next slash."""

    def __call__(self, prefix: str, *, start_after: str, token: str | None) -> Page:
        """Return it; `start_after` counts only for the first page, which has no token."""
        ...


def iter_sorted(list_page: ListPage, prefix: str, *, start_after: str) -> Iterator[KeyInfo]:
    """Yield the keys that begin with `prefix` and are greater than `start_after`, ascending."""
    pending = [_iter_level(list_page, prefix, start_after)]
    while pending:
        entry = next(pending[-1], None)
        if entry is None:
            pending.pop()
        elif isinstance(entry, KeyInfo):
            yield entry
        else:
            pending.append(_iter_level(list_page, entry, start_after))


def _iter_level(list_page: ListPage, prefix: str, start_after: str) -> Iterator[KeyInfo | str]:
    """Yield keys and subdirectories of one directory in the order of whole keys."""
    if start_after > prefix and not start_after.startswith(prefix):
        return  # all that begins with the prefix sorts before it
    begin, token = _safe_start(prefix, start_after), None
    held: list[str] = []
    while True:
        page = list_page(prefix, start_after=begin, token=token)
        entries: list[tuple[str, KeyInfo | str]] = [(info.key, info) for info in page.keys]
        entries += [(directory, directory) for directory in (*held, *page.directories)]
        entries.sort(key=lambda entry: entry[0])
        token = page.token
        held = []
        last = max((key.rstrip("/") for key, _ in entries), default="")
        for key, entry in entries:
            if isinstance(entry, KeyInfo):
                if key > start_after:
                    yield entry
            elif token is not None and key > last:
                held.append(entry)  # "a,b" of the next page would come before "a/"
            elif key > start_after or start_after.startswith(key):
                yield entry
        if token is None:
            return


def _safe_start(prefix: str, start_after: str) -> str:
    """Return after what the server may begin, so that no order of its own hides a directory.

    A directory "a" may stand where "a" sorts, yet its keys "a/…" follow a `start_after` of "a,b".
    """
    if not start_after.startswith(prefix):
        return ""
    name = start_after[len(prefix) :].partition("/")[0]
    end = next((at for at, char in enumerate(name) if char < "/"), len(name))
    name = name[:end]
    if not name:
        return ""
    return prefix + name[:-1] + chr(ord(name[-1]) - 1) + _AFTER_ALL
