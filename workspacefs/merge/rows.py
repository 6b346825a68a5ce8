"""One row out of three: attributes, content, id and times of a file or directory."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import TypeVar

from workspacefs.ids import FileId
from workspacefs.merge.conflicts import ConflictKind
from workspacefs.merge.content import ContentMerger, MergedContent, is_same_content
from workspacefs.objects.entry import Entry, Xattrs

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a row became."""

    entry: Entry
    """Name and link count are those of any version; so are a directory's content and times."""
    conflicts: tuple[ConflictKind, ...] = ()


class RowMerger:
    """Merges rows of one merge."""

    def __init__(self, contents: ContentMerger, time_ns: int) -> None:
        self._contents = contents
        self._time_ns = time_ns

    def merge(self, base: Entry | None, ours: Entry | None, theirs: Entry | None) -> Outcome:
        """Return the merge of three rows of one kind; at least one side has it.

        A row that only one side has, or changed, is taken as it is.
        """
        if ours is None or theirs is None:
            only = ours or theirs
            assert only is not None
            return Outcome(only)
        if _bare(ours) == _bare(theirs) or (base and _bare(base) == _bare(theirs)):
            return Outcome(ours)
        if base and _bare(base) == _bare(ours):
            return Outcome(theirs)
        content = self._merge_content(base, ours, theirs)
        file_id = choose_id(base.file_id if base else None, ours.file_id, theirs.file_id)
        return self.assemble(base, ours, theirs, content, file_id)

    def assemble(
        self,
        base: Entry | None,
        ours: Entry,
        theirs: Entry,
        content: MergedContent,
        file_id: FileId,
    ) -> Outcome:
        """Return a row with this content and id, the attributes merged, and times that fit."""
        merged, is_conflict = merge_attributes(base, ours, theirs)
        merged = merged._replace(
            content=content.content, size_bytes=content.size_bytes, file_id=file_id
        )
        mtime_ns, ctime_ns = merge_times(
            base,
            ours if is_same_state(merged, ours) else None,
            theirs if is_same_state(merged, theirs) else None,
            self._time_ns,
        )
        kinds = (content.conflict, ConflictKind.MODE if is_conflict else None)
        return Outcome(
            merged._replace(mtime_ns=mtime_ns, ctime_ns=ctime_ns),
            tuple(kind for kind in kinds if kind is not None),
        )

    def _merge_content(self, base: Entry | None, ours: Entry, theirs: Entry) -> MergedContent:
        if ours.is_dir:
            return MergedContent(ours.content, 0)
        return self._contents.merge(base, ours, theirs)


def choose_id(base: FileId | None, ours: FileId, theirs: FileId) -> FileId:
    """Return the base's id if a side still has it, else the smaller one: both sides agree."""
    return base if base is not None and base in (ours, theirs) else min(ours, theirs)


def merge_attributes(base: Entry | None, ours: Entry, theirs: Entry) -> tuple[Entry, bool]:
    """Return our row with permissions, owner, group and extended attributes merged one by one.

    Also whether they conflict; then ours has its way.
    """
    merged: list[int] = []
    is_conflict = False
    for read in (_permissions, _uid, _gid):
        old = None if base is None else read(base)
        value, is_disputed = _three_way(old, read(ours), read(theirs))
        merged.append(value)
        is_conflict |= is_disputed
    xattrs, is_disputed = _merge_xattrs(base.xattrs if base else (), ours.xattrs, theirs.xattrs)
    mode = stat.S_IFMT(ours.mode) | merged[0]
    row = ours._replace(mode=mode, uid=merged[1], gid=merged[2], xattrs=xattrs)
    return row, is_conflict or is_disputed


def is_same_state(one: Entry, other: Entry) -> bool:
    """Tell whether attributes and content are equal, whatever the times, ids and names.

    Of directories, only attributes are compared.
    """
    return is_same_attributes(one, other) and (one.is_dir or is_same_content(one, other))


def is_same_attributes(one: Entry, other: Entry) -> bool:
    """Tell whether kind, permissions, owner, group and extended attributes are equal."""
    return one[1:4] == other[1:4] and one.xattrs == other.xattrs


def merge_times(
    base: Entry | None, ours: Entry | None, theirs: Entry | None, time_ns: int
) -> tuple[int, int]:
    """Return mtime and ctime of a result.

    Args:
        base: What was there before.
        ours: Our row, if the result says the same but for the times.
        theirs: Their row, likewise.
        time_ns: For a result that neither side had.
    """
    if ours is None or theirs is None:
        only = ours or theirs
        return (time_ns, time_ns) if only is None else (only.mtime_ns, only.ctime_ns)
    return (
        _later(base.mtime_ns if base else None, ours.mtime_ns, theirs.mtime_ns),
        _later(base.ctime_ns if base else None, ours.ctime_ns, theirs.ctime_ns),
    )


def _later(base: int | None, ours: int, theirs: int) -> int:
    """Return the time that one side set; of two that were set, the later one."""
    value, is_disputed = _three_way(base, ours, theirs)
    return max(ours, theirs) if is_disputed else value


def _three_way(base: _T | None, ours: _T, theirs: _T) -> tuple[_T, bool]:
    """Return the merged value and whether it is disputed; then it is ours."""
    if ours == theirs or theirs == base:
        return ours, False
    if ours == base:
        return theirs, False
    return ours, True


def _merge_xattrs(base: Xattrs, ours: Xattrs, theirs: Xattrs) -> tuple[Xattrs, bool]:
    """Merge each attribute by its name; one that is not there counts as a value too."""
    old, left, right = dict(base), dict(ours), dict(theirs)
    merged: dict[bytes, bytes] = {}
    is_conflict = False
    for name in sorted(left.keys() | right.keys()):
        value, is_disputed = _three_way(old.get(name), left.get(name), right.get(name))
        if value is not None:
            merged[name] = value
        is_conflict |= is_disputed
    return tuple(merged.items()), is_conflict


def _permissions(entry: Entry) -> int:
    return stat.S_IMODE(entry.mode)


def _uid(entry: Entry) -> int:
    return entry.uid


def _gid(entry: Entry) -> int:
    return entry.gid


def _bare(entry: Entry) -> Entry:
    """Return what of a row one side can have changed by itself."""
    content = None if entry.is_dir else entry.content
    return entry._replace(name=b"", nlink=1, content=content)
