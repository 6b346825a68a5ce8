"""Listing a source tree: what an import sees, and in which order.

Two passes share this: one that only counts (totals for progress, names of each hard-linked file),
and the import itself.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field

from workspacefs.errors import UsageError, WorkspaceError
from workspacefs.workspace.directories import DIRECTORY_FLAGS, OpenDirectories
from workspacefs.workspace.ignore import IgnoreRules

Inode = tuple[int, int]
"""(st_dev, st_ino)."""


@dataclass(slots=True)
class SourceCounts:
    """What a source tree holds, less what is ignored."""

    files: int = 0
    """Names of anything but directories."""
    links: dict[Inode, int] = field(default_factory=dict)
    """Names in the tree of each file that has more than one name anywhere."""


@dataclass(frozen=True, slots=True)
class Listing:
    """One directory: what is imported from it, in ascending order of name."""

    files: int
    """Names of anything but directories."""
    names: list[tuple[bytes, os.DirEntry[str]]]
    excluded: int
    """Names that rules leave out."""
    rules: IgnoreRules
    """Rules that hold in it and below."""


def open_source(source: str | bytes | os.PathLike[str], avoid: Inode | None) -> int:
    """Open the directory to import.

    Raises:
        WorkspaceError: It cannot be opened (kind "import.source").
        UsageError: It is no directory, or the one to avoid.
    """
    shown = os.fsdecode(source)
    try:
        # The root itself may be a link: the user named it.
        fd = os.open(source, DIRECTORY_FLAGS & ~os.O_NOFOLLOW)
    except NotADirectoryError as exc:
        raise UsageError(
            f"cannot import {shown}: it is no directory; name a directory, whose content is to "
            "become the root",
            kind="import.source",
            path=shown,
        ) from exc
    except OSError as exc:
        raise WorkspaceError(
            f"cannot import {shown}: {exc.strerror}; give a directory that can be read",
            kind="import.source",
            path=shown,
        ) from exc
    if inode_of(fd) == avoid:
        os.close(fd)
        raise UsageError(
            f"cannot import {shown} into itself: it is the store", kind="import.source"
        )
    return fd


def inode_of(fd: int) -> Inode:
    """Return what tells an open file from all others of the machine."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def list_directory(fd: int, prefix: str, rules: IgnoreRules) -> Listing:
    """List an open directory.

    Args:
        fd: The directory; the entries' `stat` works while it is open.
        prefix: Its path with a slash at the end, empty for the root.
        rules: Those that hold above it.
    """
    with os.scandir(fd) as scan:
        found = list(scan)
    rules = rules.below(fd, prefix) if any(e.name == ".workspacefsignore" for e in found) else rules
    names = []
    files = excluded = 0
    for entry in found:
        is_dir = entry.is_dir(follow_symlinks=False)
        if rules.excludes(prefix + entry.name, is_dir=is_dir):
            excluded += 1
            continue
        files += not is_dir
        names.append((os.fsencode(entry.name), entry))
    names.sort(key=lambda pair: pair[0])
    return Listing(files, names, excluded, rules)


def count_source(
    root_fd: int,
    rules: IgnoreRules,
    avoid: Inode | None,
) -> SourceCounts:
    """Count what `root_fd` (which is closed) holds; unreadable directories count as empty.

    Args:
        avoid: A directory that is not entered (the store itself).
    """
    counts = SourceCounts()
    with OpenDirectories(root_fd) as directories:
        pending: list[tuple[str, list[bytes], IgnoreRules]] = []

        def enter(prefix: str, rules: IgnoreRules) -> None:
            try:
                listing = list_directory(directories.fd, prefix, rules)
            except OSError:
                pending.append((prefix, [], rules))
                return
            counts.files += listing.files
            for _, entry in listing.names:
                if not entry.is_dir(follow_symlinks=False):
                    _count_links(entry, counts.links)
            below = [name for name, entry in listing.names if entry.is_dir(follow_symlinks=False)]
            pending.append((prefix, below[::-1], listing.rules))

        enter("", rules)
        while pending:
            prefix, below, rules_here = pending[-1]
            if not below:
                pending.pop()
                if pending:
                    directories.leave()
                continue
            name = below.pop()
            try:
                fd = directories.enter(name)
            except OSError:
                continue  # the import itself reports it
            if inode_of(fd) == avoid:
                directories.leave()
                continue
            enter(f"{prefix}{os.fsdecode(name)}/", rules_here)
    return counts


def _count_links(entry: os.DirEntry[str], links: dict[Inode, int]) -> None:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return  # gone, or the import itself reports it
    if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
        inode = (status.st_dev, status.st_ino)
        links[inode] = links.get(inode, 0) + 1
