"""Looking whether a restore has done what it should: every path, against what it was restored from.

Content in the store is fetched and held against its ids; content in layers is read to its end.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from workspacefs.errors import IntegrityError
from workspacefs.ids import ROOT_FILE_ID, FileId
from workspacefs.layers.rows import InodeRow
from workspacefs.protocol.receipt import ReceiptCounts
from workspacefs.workspace.difference import Difference, Place
from workspacefs.workspace.pending import Pending, PendingFile

_READ_BYTES: Final = 1 << 20
_TOLD_MAX: Final = 20


class Suspect(NamedTuple):
    """A path that is not seen in the mount as it should be."""

    path: bytes
    why: str
    file_ids: tuple[FileId, ...]
    """Of the file, if it should be there, and of the directories on the way."""


@dataclass(slots=True)
class Receipt:
    """What was restored, and what is not as it should be."""

    counts: ReceiptCounts = field(default_factory=ReceiptCounts)
    suspects: list[Suspect] = field(default_factory=list)
    """What looks otherwise in the mount: a program may have changed it since."""
    wrong: list[str] = field(default_factory=list)
    """What is not as it should be, a line each; at most 20."""
    wrong_count: int = 0

    def blame(self, path: bytes, why: str) -> None:
        """Note that something is wrong."""
        self.wrong_count += 1
        if len(self.wrong) < _TOLD_MAX:
            self.wrong.append(f"{os.fsdecode(path) or '.'}: {why}")


LookThrough = Callable[[bytes, PendingFile | None], str | None]
"""Looks at a path as programs see it, given what it should be (None: not there); returns what is
wrong, or None."""


def check_restored(
    difference: Difference,
    now: Pending,
    wanted: Pending,
    look_through: LookThrough,
    progress: Callable[[int, int], None] = lambda files, size_bytes: None,
) -> Receipt:
    """Compare what differed before a restore with what it was restored from.

    Args:
        difference: From the state before to the one that was wanted.
        now: The session's layers after it.
        wanted: What it was restored from: a tree, or layers.
        look_through: Looks at the mount.
        progress: Called with the files and bytes read so far.

    Raises:
        UnavailableError: The store does not answer.
    """
    return _Check(difference, now, wanted, look_through, progress).run()


class _Check:
    def __init__(
        self,
        difference: Difference,
        now: Pending,
        wanted: Pending,
        look_through: LookThrough,
        progress: Callable[[int, int], None],
    ) -> None:
        self._difference = difference
        self._states = (now, wanted)
        self._look_through = look_through
        self._progress = progress
        self._receipt = Receipt()
        self._directories: dict[FileId, tuple[bytes, PendingFile | None, PendingFile | None]] = {
            ROOT_FILE_ID: (b"", now.root_file(), wanted.root_file())
        }

    def run(self) -> Receipt:
        for place in self._difference.places.values():
            self._check_place(place)
        for directory_id, name in sorted(self._difference.names):
            self._check_name(directory_id, name)
        return self._receipt

    def _check_place(self, place: Place) -> None:
        above = self._directory(place.directory_id)
        if above is None:
            return
        path, found, expected = self._children(above, place.name)
        if expected is None:
            self._receipt.blame(path, "is not in what was restored")
        elif found is None:
            self._receipt.blame(path, "is missing")
        else:
            self._count(expected.state)
            why = self._differs(found, expected)
            if why is not None:
                self._receipt.blame(path, why)
            elif (why := self._look_through(path, found)) is not None:
                self._suspect(path, why, found.file_id, place.directory_id)

    def _check_name(self, directory_id: FileId, name: bytes) -> None:
        above = self._directory(directory_id)
        if above is None:
            return
        path, found, expected = self._children(above, name)
        if expected is not None:
            return  # among the places
        self._receipt.counts.removed += 1
        if found is not None:
            self._receipt.blame(path, "should be gone")
        elif (why := self._look_through(path, None)) is not None:
            self._suspect(path, why, directory_id)

    def _suspect(self, path: bytes, why: str, *file_ids: FileId) -> None:
        ids, places = list(file_ids), self._difference.places
        while (place := places.get(ids[-1])) is not None:
            ids.append(place.directory_id)
        self._receipt.suspects.append(Suspect(path, why, tuple(ids)))

    def _children(
        self, above: tuple[bytes, PendingFile | None, PendingFile | None], name: bytes
    ) -> tuple[bytes, PendingFile | None, PendingFile | None]:
        path, *directories = above
        found, expected = (
            None if directory is None or not directory.is_dir else state.find_child(directory, name)
            for state, directory in zip(self._states, directories, strict=True)
        )
        return (path + b"/" + name if path else name), found, expected

    def _directory(
        self, file_id: FileId
    ) -> tuple[bytes, PendingFile | None, PendingFile | None] | None:
        """Return path and states of a directory of the wanted state; None: it is as it was, or is
        not there any more.
        """
        missing: list[Place] = []
        while file_id not in self._directories:
            place = self._difference.places.get(file_id)
            if place is None:
                return None
            missing.append(place)
            file_id = place.directory_id
        above = self._directories[file_id]
        for place in reversed(missing):
            above = self._children(above, place.name)
            self._directories[place.file.file_id] = above
        return above

    def _differs(self, found: PendingFile, expected: PendingFile) -> str | None:
        is_now, should_be = found.state, expected.state
        if found.is_dir:
            return _attributes_differ(is_now, should_be, is_directory=True)
        if why := _attributes_differ(is_now, should_be):
            return why
        if not stat.S_ISREG(should_be.mode):
            return None if is_now.content == should_be.content else "leads elsewhere"
        try:
            return self._read(found, expected)
        except IntegrityError as exc:
            return str(exc)

    def _read(self, found: PendingFile, expected: PendingFile) -> str | None:
        is_now, should_be = found.state, expected.state
        now, wanted = self._states
        is_same = is_now.content == should_be.content and found.file_id == expected.file_id
        for offset in range(0, should_be.size_bytes, _READ_BYTES):
            length = min(_READ_BYTES, should_be.size_bytes - offset)
            data = now.read(is_now, found.file_id, offset, length)
            if not is_same and data != wanted.read(should_be, expected.file_id, offset, length):
                return "has other bytes"
        return None

    def _count(self, state: InodeRow) -> None:
        counts = self._receipt.counts
        counts.add(state.mode, state.size_bytes)
        if stat.S_ISREG(state.mode):
            self._progress(counts.files, counts.size_bytes)


def _attributes_differ(
    is_now: InodeRow, should_be: InodeRow, *, is_directory: bool = False
) -> str | None:
    for what, now, wanted in _facts(is_now, should_be):
        if now != wanted and not (is_directory and what == "size"):
            return f"has another {what} ({now} for {wanted})"
    return None


def _facts(is_now: InodeRow, should_be: InodeRow) -> Iterator[tuple[str, object, object]]:
    yield "mode", oct(is_now.mode), oct(should_be.mode)
    yield "owner", (is_now.uid, is_now.gid), (should_be.uid, should_be.gid)
    yield "size", is_now.size_bytes, should_be.size_bytes
    yield "time", is_now.mtime_ns, should_be.mtime_ns
    yield "link count", is_now.nlink, should_be.nlink
    yield "set of attributes", is_now.xattrs, should_be.xattrs
