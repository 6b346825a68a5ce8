"""A file as a mounted session has it now, and as what its last commit has it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from workspacefs.client.locate import SessionAddress
from workspacefs.errors import NotFoundError, UsageError, WorkspaceError
from workspacefs.objects.entry import Entry
from workspacefs.tracing.trails import find_trail, names_of
from workspacefs.trees.nodes import NodeSource
from workspacefs.workspace.attributes import kind_name


class MountedFile(NamedTuple):
    """What a mount shows of a file."""

    data: bytes
    """Its first bytes, as many as were asked for."""
    file_id: int


def read_mounted(path: str, *, limit_bytes: int) -> MountedFile:
    """Return a regular file of a mount; a link is not followed.

    Raises:
        NotFoundError: Nothing is there now.
        UsageError: It is no regular file.
        WorkspaceError: It cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return _read(descriptor, path, limit_bytes)
        finally:
            os.close(descriptor)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise UsageError(f"{path} is a symlink, not a file", kind="path.kind") from exc
        if exc.errno in (errno.ENOENT, errno.ENOTDIR):
            raise NotFoundError(
                f"there is no {path} now; of a file that is gone, name a revision that has it, too",
                kind="path.absent",
            ) from exc
        raise WorkspaceError(f"cannot read {path}: {exc.strerror}", kind="path.unreadable") from exc


def _read(descriptor: int, path: str, limit_bytes: int) -> MountedFile:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{path} is a {kind_name(status.st_mode)}, not a file", kind="path.kind")
    pieces: list[bytes] = []
    left = limit_bytes
    while left and (piece := os.read(descriptor, left)):
        pieces.append(piece)
        left -= len(piece)
    return MountedFile(b"".join(pieces), status.st_ino)


def committed_path(
    path: bytes, file_id: int, root: Entry, source: NodeSource, address: SessionAddress
) -> bytes:
    """Return where the last commit of a session has a file that the session may have renamed since.

    Args:
        path: Of the file now, from the root of the workspace.
        file_id: Of the file.
        root: Of the commit's tree.
        source: Gives its nodes.
        address: Of the session; it is asked only if the commit has another file there, or none.
    """

    def is_it(path: bytes) -> bool:
        entry = find_trail(root, names_of(path), source).entry
        return entry is not None and entry.file_id == file_id

    if is_it(path):
        return path
    with address.connect() as connection:
        rows = connection.call("status", {"under": ""})["changes"]
    assert isinstance(rows, list)
    return next(filter(is_it, _iter_names_before(path, rows)), path)


def _iter_names_before(path: bytes, rows: Sequence[dict[str, object]]) -> Iterator[bytes]:
    """Yield names that a path had before what a status tells of: of renames of the file, and of
    each directory above it, the deepest one first. A status tells the old name of what lies in a
    directory that was renamed too as if that had its new name.
    """
    renames = {
        os.fsencode(str(row["path"])): os.fsencode(str(row["from"]))
        for row in rows
        if row.get("from")
    }
    depth = path.count(b"/") + 1
    while depth:
        names = path.split(b"/")
        above, below = b"/".join(names[:depth]), names[depth:]
        depth -= 1
        if above in renames:
            path = b"/".join((renames.pop(above), *below))
            depth = path.count(b"/") - len(below)
            yield path
