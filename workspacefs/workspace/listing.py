"""Looking into a commit without a mount: what `ls` and `cat` do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from workspacefs.errors import NotFoundError, UsageError
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.trees.nodes import NodeSource
from workspacefs.trees.walk import iter_entries, resolve_path, walk
from workspacefs.workspace.attributes import kind_name
from workspacefs.workspace.content import ContentSource, iter_content, read_content
from workspacefs.workspace.near import near_names


class TreeStore(NodeSource, ContentSource, Protocol):
    """Gives all objects of trees."""


def find_path(root: Entry, path: bytes, store: NodeSource) -> Entry:
    """Return the entry at `path` below `root`; links are not followed.

    Raises:
        NotFoundError: Nothing is there; the message lists near names from the same directory.
    """
    try:
        return resolve_path(root, path, store)
    except NotFoundError as exc:
        near = _near(root, path, store)
        if not near:
            raise
        raise NotFoundError(
            f"{exc}; did you mean {', '.join(near)}?", kind=exc.kind, **exc.context
        ) from exc


def list_path(
    root: Entry, path: bytes, store: NodeSource, *, recursive: bool = False
) -> Iterator[tuple[bytes, Entry]]:
    """Yield (path, entry) of what a directory holds, in order of name; of a file, itself.

    Paths begin with `path` as it was given, less slashes at its ends.
    """
    entry = find_path(root, path, store)
    prefix = path.strip(b"/")
    if not isinstance(entry.content, Subtree):
        yield prefix, entry
        return
    prefix += b"/" if prefix else b""
    if recursive:
        for below, found in walk(entry, store):
            yield prefix + below, found
    else:
        for found in iter_entries(entry.content, store):
            yield prefix + found.name, found


def find_file(root: Entry, path: bytes, store: NodeSource) -> Entry:
    """Return the regular file at `path`.

    Raises:
        NotFoundError: Nothing is there.
        UsageError: Something else is there.
    """
    entry = find_path(root, path, store)
    if not entry.is_regular:
        shown = path.decode("utf-8", "backslashreplace") or "/"
        raise UsageError(f"{shown} is a {kind_name(entry.mode)}, not a file", kind="path.kind")
    return entry


def read_file(
    root: Entry, path: bytes, store: TreeStore, *, offset: int = 0, length: int | None = None
) -> bytes:
    """Return a range of the file at `path`, to its end unless `length` is given."""
    entry = find_file(root, path, store)
    wanted = max(entry.size_bytes - offset, 0) if length is None else length
    return read_content(entry, store, offset, wanted)


def stream_file(root: Entry, path: bytes, store: TreeStore) -> Iterator[bytes]:
    """Yield the content of the file at `path`, piece by piece."""
    return iter_content(find_file(root, path, store), store)


def _near(root: Entry, path: bytes, store: NodeSource) -> list[str]:
    """Return names near the first part of `path` that is missing."""
    entry = root
    seen: list[str] = []
    for name in filter(None, path.split(b"/")):
        if not isinstance(entry.content, Subtree):
            return []
        text = name.decode("utf-8", "backslashreplace")
        found = None
        names = []
        for number, row in enumerate(iter_entries(entry.content, store)):
            if row.name == name:
                found = row
                break
            if number < 10_000:
                names.append(row.name.decode("utf-8", "backslashreplace"))
        if found is None:
            return ["/".join([*seen, near]) for near in near_names(text, names)]
        seen.append(text)
        entry = found
    return []
