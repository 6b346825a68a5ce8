"""Settling one conflict in a mount, as a user would: by changing files.

A file that stays a file is written in its place, so that it is the same file for whoever has it
open, and for later merges. The versions are read from where the mount shows them.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from typing import Final

from workspacefs.client.path_restore import remove_path, restore_path
from workspacefs.errors import RefusedError, UsageError, WorkspaceError
from workspacefs.merge.lines import Labels, is_text, merge_lines
from workspacefs.protocol.receipt import ReceiptCounts

_MARKERS: Final = (b"<<<<<<< ", b"=======", b">>>>>>> ")
_MOVES: Final = ("rename/rename", "rename/delete")
_BY_LINE: Final = ("content", "add/add")


class Conflict:
    """One conflict of a mount."""

    def __init__(self, row: Mapping[str, object], mountpoint: str, subpath: str) -> None:
        """Look at a row of the operation `conflicts`.

        Raises:
            RefusedError: The mount does not show where it is.
        """
        self._row = row
        self._mountpoint = mountpoint
        self._subpath = subpath.strip("/")
        self.number = int(str(row["number"]))
        self.kind = str(row["kind"])
        self.path = str(row["path"])
        self._place = self._seen(self.path)

    def take(self, side: str) -> None:
        """Have it as one side has it: "ours", "theirs" or "base"."""
        version = self._row[side]
        source = self._source(side)
        beside = self._row["beside"]
        if isinstance(beside, str) and os.path.lexists(self._seen(beside)):
            _remove(self._seen(beside))
        if not isinstance(version, Mapping):
            _remove(self._place)
            return
        assert source is not None
        place = self._place
        if self.kind in _MOVES:
            place = self._seen(str(version["path"]))
            if place != self._place and os.path.lexists(self._place):
                if os.path.lexists(place):
                    raise RefusedError(
                        f"{version['path']} is there already; move it away first",
                        kind="conflict.taken",
                    )
                os.makedirs(os.path.dirname(place), exist_ok=True)
                os.rename(self._place, place)
                return
        if self.kind == "mode" and os.path.lexists(place):
            _copy_attributes(source, place)
        elif _is_file(source) and _is_file(place):
            _write(place, source)
            _copy_attributes(source, place)
        else:
            restore_path(source, place, ReceiptCounts(), lambda files, size_bytes: None)

    def unite(self) -> None:
        """Have the lines of both sides, where they differ ours first.

        Raises:
            UsageError: It is not about lines of text.
        """
        texts = [self._text(side) for side in ("base", "ours", "theirs")]
        if self.kind not in _BY_LINE or not _is_file(self._place) or None in texts:
            raise UsageError(
                f"{self.path} is a conflict of kind {self.kind}, which has no lines to unite; take "
                "--ours or --theirs",
                kind="conflict.not_text",
            )
        base, ours, theirs = (text or b"" for text in texts)
        united = merge_lines(base, ours, theirs, Labels()).union
        with open(self._place, "r+b") as file:
            file.write(united)
            file.truncate()

    def put(self, path: str) -> None:
        """Have the content of a file.

        Raises:
            UsageError: It is no file.
        """
        if not os.path.isfile(path):
            raise UsageError(f"{path} is no file", kind="usage.file")
        if os.path.lexists(self._place) and not _is_file(self._place):
            _remove(self._place)
        os.makedirs(os.path.dirname(self._place), exist_ok=True)
        _write(self._place, path)

    def check_no_markers(self) -> None:
        """Refuse to call it settled while the marks of the conflict are still in the text."""
        if self.kind not in _BY_LINE or not _is_file(self._place):
            return
        found = set()
        with open(self._place, "rb") as file:
            for line in file:
                found |= {mark for mark in _MARKERS if line.startswith(mark)}
        if len(found) == len(_MARKERS):
            raise RefusedError(
                f"{self.path} still has conflict markers; edit it first, or say --ours, --theirs, "
                "--union or a FILE (--as-is, if they belong there)",
                kind="conflict.markers",
            )

    def _text(self, side: str) -> bytes | None:
        """Return the lines of a side; None: it has none. Nothing, of a base that is not there."""
        source = self._source(side)
        if source is None:
            return b"" if side == "base" else None
        if not _is_file(source):
            return None
        with open(source, "rb") as file:
            data = file.read()
        return data if is_text(data) else None

    def _source(self, side: str) -> str | None:
        """Return where the mount shows what a side has, or None: it has nothing."""
        if not isinstance(self._row[side], Mapping):
            return None
        directory = os.path.join(
            self._mountpoint, ".workspacefs", "conflicts", f"{self.number}.{side}"
        )
        (name,) = os.listdir(directory)
        return os.path.join(directory, name)

    def _seen(self, path: str) -> str:
        """Return where the mount shows a path of the workspace."""
        if self._subpath:
            if not path.startswith(self._subpath + "/"):
                raise RefusedError(
                    f"this mount shows {self._subpath} alone, and {path} is not in it; mount the "
                    "session without --subpath for that",
                    kind="conflict.subpath",
                )
            path = path.removeprefix(self._subpath + "/")
        return os.path.join(self._mountpoint, path)


def change(conflict: Conflict, choice: str, path: str | None) -> None:
    """Change the files of a mount as was chosen: "ours", "theirs", "base", "union", "file" (with
    `path`), "as-is", or "" for as it stands, which must have no conflict markers.

    Raises:
        WorkspaceError: It cannot be done; the message says why.
    """
    try:
        match choice:
            case "union":
                conflict.unite()
            case "file":
                assert path is not None
                conflict.put(path)
            case "ours" | "theirs" | "base":
                conflict.take(choice)
            case "":
                conflict.check_no_markers()
    except OSError as exc:
        raise WorkspaceError(
            f"{conflict.path} could not be changed: {exc.strerror}", kind="conflict.failed"
        ) from exc


def _is_file(path: str) -> bool:
    return os.path.isfile(path) and not os.path.islink(path)


def _write(place: str, source: str) -> None:
    mode = "r+b" if os.path.lexists(place) else "wb"
    with open(source, "rb") as reader, open(place, mode) as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
        writer.truncate()


def _copy_attributes(source: str, place: str) -> None:
    status = os.lstat(source)
    os.chown(place, status.st_uid, status.st_gid, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        return
    os.chmod(place, stat.S_IMODE(status.st_mode))
    wanted = {name: os.getxattr(source, name) for name in os.listxattr(source)}
    for name in set(os.listxattr(place)) - set(wanted):
        os.removexattr(place, name)
    for name, value in wanted.items():
        os.setxattr(place, name, value)


def _remove(path: str) -> None:
    if os.path.lexists(path):
        remove_path(path)
