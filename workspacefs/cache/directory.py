"""The cache of one host and account: block files of all stores, under one limit.

    <cache>/<store tag>/url             where the values come from, for people
    <cache>/<store tag>/values/<key>    one block file a value, "/" in its key written ","

Everything may be deleted or cut short at any time, by anyone, also while it is in use: what is no
more there is fetched again. Eviction takes whole files, those used longest ago first, and
keeps away from the last part of the disk: work that is not committed lies on the same one.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blake3 import blake3

from workspacefs.cache.block_file import BlockFile
from workspacefs.statedir import PRIVATE_DIR_MODE

log = logging.getLogger(__name__)

_TAG_DIGITS: Final = 16
_OPEN_MAX: Final = 256
_TOUCH_PERIOD_S: Final = 60.0
_RESERVE_BYTES: Final = 1 << 30
_RESERVE_FRACTION: Final = 20
"""At least a 20th of the disk stays free."""
_DEFAULT_LIMIT_BYTES: Final = 20 << 30
_KEEP_FRACTION: Final = 0.9
"""Eviction goes on down to this part of the limit, so that it is not needed again at once."""


@dataclass(frozen=True, slots=True)
class CacheUse:
    """What the values of one store take."""

    tag: str
    url: str
    values: int
    size_bytes: int


class CacheDirectory:
    """The block files of one store in the cache. Thread-safe; several processes may use it.

    Args:
        root: The cache of the account; made when something is written.
        url: Of the store.
        is_writable: Whether files may be made; a reader finds what others put there.
    """

    def __init__(self, root: Path, url: str, *, is_writable: bool) -> None:
        self.root = root
        self.store_dir = root / blake3(url.encode()).hexdigest()[:_TAG_DIGITS]
        self._values_dir = self.store_dir / "values"
        self._url = url
        self._is_writable = is_writable
        self._files: OrderedDict[str, tuple[BlockFile, float]] = OrderedDict()
        self._lock = threading.Lock()
        self._making = threading.Lock()
        """Held while a file is made: what one thread makes, another must not take for foreign."""

    def find(self, key: str) -> BlockFile | None:
        """Return the file of a value if there is one; it may have been evicted since."""
        with self._lock:
            found = self._files.get(key)
            if found is not None:
                self._files.move_to_end(key)
        now = time.monotonic()
        # Who fills files must not fill one that was evicted; who reads looks after a miss only.
        if (
            found is not None
            and now - found[1] < _TOUCH_PERIOD_S
            and (not self._is_writable or found[0].is_linked())
        ):
            return found[0]
        if found is not None and found[0].is_linked():
            file = found[0]
        else:
            try:
                file = BlockFile(self._path(key), is_writable=self._is_writable)
            except OSError:
                self.drop(key)
                return None
        return self._keep(key, file, now)

    def open(self, key: str) -> BlockFile:
        """Return the file of a value for writing; make it if there is none.

        Only of a directory that is writable.

        Raises:
            OSError: As open(2): the disk is full, the directory cannot be written.
        """
        with self._lock:
            found = self._files.get(key)
        if found is not None and found[0].is_linked():
            return found[0]
        with self._making:
            file = self._make(self._path(key))
        return self._keep(key, file, time.monotonic())

    def _make(self, path: Path) -> BlockFile:
        try:
            return BlockFile(path, is_writable=True, is_made=True)
        except FileNotFoundError:
            self._make_directories()
        try:
            return BlockFile(path, is_writable=True, is_made=True)
        except FileNotFoundError:
            path.unlink(missing_ok=True)  # whatever it is, it is no file of ours
        return BlockFile(path, is_writable=True, is_made=True)

    def drop(self, key: str) -> None:
        """Close the file of a value; who reads it goes on."""
        with self._lock:
            found = self._files.pop(key, None)
        del found  # closed outside the lock

    def remove(self, key: str) -> None:
        """Delete the file of a value, if there is one."""
        self.drop(key)
        _delete(self._path(key))

    def _keep(self, key: str, file: BlockFile, now: float) -> BlockFile:
        evicted = None
        try:
            file.touch()
        except OSError:
            pass  # a cache that we may only read: others know what is used
        with self._lock:
            before = self._files.pop(key, None)
            self._files[key] = (file, now)
            if len(self._files) > _OPEN_MAX:
                evicted = self._files.popitem(last=False)
        del before, evicted  # closed outside the lock
        return file

    def _path(self, key: str) -> Path:
        return self._values_dir / key.replace("/", ",")

    def _make_directories(self) -> None:
        self._values_dir.mkdir(mode=PRIVATE_DIR_MODE, parents=True, exist_ok=True)
        url_file = self.store_dir / "url"
        if not url_file.exists():
            url_file.write_text(self._url + "\n")


def default_limit_bytes(root: Path) -> int:
    """Return how large a cache may grow when nobody says: 20 GiB, at most a fifth of its disk."""
    return min(_DEFAULT_LIMIT_BYTES, _disk(root)[0] // 5)


def evict(
    root: Path, limit_bytes: int, *, disk_of: Callable[[Path], tuple[int, int]] | None = None
) -> int:
    """Delete the values used longest ago until all take at most `limit_bytes`; return bytes freed.

    Nothing is deleted below the limit, unless the disk itself is nearly full.

    Args:
        root: The cache.
        limit_bytes: Of all stores together.
        disk_of: Returns (total, free) bytes of the disk that a directory is on.
    """
    found = sorted(_iter_values(root))
    used_bytes = sum(size for _, size, _ in found)
    disk_bytes, free_bytes = (disk_of or _disk)(root)
    reserve_bytes = max(_RESERVE_BYTES, disk_bytes // _RESERVE_FRACTION)
    limit_bytes = min(limit_bytes, max(0, used_bytes + free_bytes - reserve_bytes))
    if used_bytes <= limit_bytes:
        return 0
    freed_bytes = 0
    for _, size_bytes, path in found:
        if used_bytes - freed_bytes <= limit_bytes * _KEEP_FRACTION:
            break
        if _delete(path):
            freed_bytes += size_bytes
    return freed_bytes


def usage(root: Path) -> list[CacheUse]:
    """Return what each store has in the cache, the largest first."""
    found = []
    for tag in _subdirectories(root):
        values = list(_iter_values(root, tag.name))
        try:
            url = (tag / "url").read_text().strip()
        except OSError:
            url = "?"
        found.append(CacheUse(tag.name, url, len(values), sum(size for _, size, _ in values)))
    return sorted(found, key=lambda use: -use.size_bytes)


def clear(root: Path, *, url: str | None = None) -> int:
    """Delete the cache of one store, or all; return the bytes freed. Safe while it is in use."""
    freed_bytes = 0
    for use in usage(root):
        if url is None or use.url == url:
            freed_bytes += use.size_bytes
            for _, _, path in list(_iter_values(root, use.tag)):
                _delete(path)
            shutil.rmtree(root / use.tag, ignore_errors=True)
    return freed_bytes


def _delete(path: Path) -> bool:
    """Delete a value; tell whether it is gone. Its space is free at once, whoever has it open."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        descriptor = -1  # gone already, or no file
    try:
        path.unlink(missing_ok=True)
        if descriptor >= 0:
            os.ftruncate(descriptor, 0)
    except OSError as exc:
        log.info("cache.not_deleted", extra={"errno": exc.errno, "value": path.name})
        return False
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return True


def _iter_values(root: Path, tag: str | None = None) -> Iterator[tuple[float, int, Path]]:
    """Yield (time of last use, bytes on disk, path) of the values."""
    for directory in [root / tag] if tag is not None else _subdirectories(root):
        try:
            with os.scandir(directory / "values") as entries:
                for entry in entries:
                    try:
                        found = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # deleted since
                    yield found.st_mtime, found.st_blocks * 512, Path(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue


def _subdirectories(root: Path) -> list[Path]:
    try:
        with os.scandir(root) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _disk(root: Path) -> tuple[int, int]:
    """Return (total, free) bytes of the disk that a directory is on, or will be."""
    while not root.exists() and root != root.parent:
        root = root.parent
    total, _, free = shutil.disk_usage(root)
    return total, free
