"""Restoring some paths of a mount from the history that it shows: as a user would, by copying.

Each path is copied beside its place, compared with where it came from, and then renamed over what
is there; so it is there whole or as it was, and whoever has the old one open keeps it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from typing import Final

from workspacefs.errors import IntegrityError, NotFoundError, WorkspaceError
from workspacefs.protocol.receipt import ReceiptCounts

_PIECE_BYTES: Final = 1 << 20

Progress = Callable[[int, int], None]
"""Called with the files and bytes copied so far."""


def restore_path(source: str, target: str, receipt: ReceiptCounts, progress: Progress) -> None:
    """Have `target` be what `source` is: a file, a directory with all below, or absent. What was
    restored is added to `receipt`; all of it was compared with where it came from.

    Raises:
        NotFoundError: Neither is there.
        IntegrityError: The copy is not what it was made of; `target` is as it was.
        WorkspaceError: The system refuses.
    """
    try:
        if os.path.lexists(source):
            _put(source, target, receipt, progress)
        elif os.path.lexists(target):
            remove_path(target)
            receipt.removed += 1
        else:
            raise NotFoundError(f"{target} is neither there nor here", kind="restore.absent")
    except OSError as exc:
        raise WorkspaceError(
            f"{exc.filename or target} could not be restored: {exc.strerror}", kind="restore.failed"
        ) from exc


def _put(source: str, target: str, receipt: ReceiptCounts, progress: Progress) -> None:
    parent = os.path.dirname(target)
    os.makedirs(parent, exist_ok=True)
    beside = os.path.join(parent, f".restoring-{secrets.token_hex(6)}")
    try:
        _Copy(receipt, progress).copy(source, beside)
        _compare(source, beside)
        if os.path.lexists(target) and (os.path.isdir(target) or os.path.isdir(beside)):
            old = os.path.join(parent, f".replaced-{secrets.token_hex(6)}")
            os.rename(target, old)
            os.rename(beside, target)
            remove_path(old)
        else:
            os.rename(beside, target)
    finally:
        if os.path.lexists(beside):
            remove_path(beside)


def remove_path(path: str) -> None:
    """Remove a file, or a directory with all below."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


class _Copy:
    def __init__(self, receipt: ReceiptCounts, progress: Progress) -> None:
        self._receipt = receipt
        self._progress = progress
        self._linked: dict[int, str] = {}

    def copy(self, source: str, target: str) -> None:
        # Directories get their times when all is in them: those below first.
        made: list[tuple[str, str]] = []
        stack = [(source, target)]
        while stack:
            old, new = stack.pop()
            status = os.lstat(old)
            if not stat.S_ISDIR(status.st_mode):
                self._copy_file(old, new, status)
                continue
            os.mkdir(new)
            self._receipt.add(status.st_mode)
            made.append((old, new))
            stack += [
                (os.path.join(old, name), os.path.join(new, name)) for name in os.listdir(old)
            ]
        for old, new in reversed(made):
            _copy_attributes(old, new, os.lstat(old))

    def _copy_file(self, old: str, new: str, status: os.stat_result) -> None:
        receipt, mode = self._receipt, status.st_mode
        known = self._linked.get(status.st_ino) if status.st_nlink > 1 else None
        if known is not None:
            os.link(known, new, follow_symlinks=False)
            return
        self._linked[status.st_ino] = new
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink(old), new)
            receipt.add(mode)
        elif stat.S_ISREG(mode):
            receipt.add(mode, _copy_bytes(old, new))
            self._progress(receipt.files, receipt.size_bytes)
        else:
            os.mknod(new, mode, status.st_rdev)
            receipt.add(mode)
        _copy_attributes(old, new, status)


def _copy_bytes(old: str, new: str) -> int:
    total = 0
    with open(old, "rb") as reader, open(new, "xb") as writer:
        while piece := reader.read(_PIECE_BYTES):
            writer.write(piece)
            total += len(piece)
    return total


def _copy_attributes(old: str, new: str, status: os.stat_result) -> None:
    os.chown(new, status.st_uid, status.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(new, stat.S_IMODE(status.st_mode))
        for name in os.listxattr(old):
            os.setxattr(new, name, os.getxattr(old, name))
    os.utime(new, ns=(status.st_mtime_ns, status.st_mtime_ns), follow_symlinks=False)


def _compare(source: str, copy: str) -> None:
    for old, new in _iter_pairs(source, copy):
        before, after = _facts(old), _facts(new)
        if before != after:
            raise IntegrityError(
                f"{old} was copied and the copy is not the same ({after} for {before}); nothing "
                "was replaced",
                kind="restore.incomplete",
            )
        if stat.S_ISREG(os.lstat(old).st_mode) and not _same_bytes(old, new):
            raise IntegrityError(
                f"{old} was copied and the copy has other bytes; nothing was replaced",
                kind="restore.incomplete",
            )


def _iter_pairs(source: str, copy: str) -> Iterator[tuple[str, str]]:
    stack = [(source, copy)]
    while stack:
        old, new = stack.pop()
        yield old, new
        if os.path.isdir(old) and not os.path.islink(old):
            stack += [
                (os.path.join(old, name), os.path.join(new, name)) for name in os.listdir(old)
            ]


def _facts(path: str) -> tuple[object, ...]:
    status = os.lstat(path)
    is_dir, is_link = stat.S_ISDIR(status.st_mode), stat.S_ISLNK(status.st_mode)
    return (
        status.st_mode,
        (status.st_uid, status.st_gid),
        sorted(os.listdir(path)) if is_dir else status.st_size,
        status.st_mtime_ns,
        os.readlink(path) if is_link else None,
        None if is_link else sorted((name, os.getxattr(path, name)) for name in os.listxattr(path)),
    )


def _same_bytes(old: str, new: str) -> bool:
    with open(old, "rb") as first, open(new, "rb") as second:
        while piece := first.read(_PIECE_BYTES):
            if piece != second.read(_PIECE_BYTES):
                return False
        return not second.read(1)
