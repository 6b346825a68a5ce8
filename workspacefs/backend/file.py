"""A backend in a directory of a local disk: one file a value, safe between processes.

Layout: a value lies at <root>/<key>. `.tmp/` holds values being written, `.lock` serialises
replacements; keys cannot begin with a dot, so neither can be taken for a value. A crash leaves
at most a file in `.tmp/`, which nothing reads.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote_from_bytes

from blake3 import blake3

from workspacefs.backend.contract import KeyInfo, Version, check_key
from workspacefs.backend.disk import (
    OpenFile,
    OpenFiles,
    disk_error,
    disk_errors,
    exclusive_lock,
    sync_directory,
    temporary_file,
)
from workspacefs.errors import BusyError, IntegrityError, KeyAbsentError, WorkspaceError

_ABSENT: Final = frozenset((errno.ENOENT, errno.ENOTDIR, errno.EISDIR))
_NO_LINKS: Final = frozenset((errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK))
_RACY_NS: Final = 2_000_000_000


class FileBackend:
    """Values in files under `root`, which is made with the first value.

    What a method has stored when it returns survives power loss.
    """

    is_local = True

    def __init__(self, root: Path) -> None:
        self._root = Path(os.path.realpath(root))
        self.url = "file://" + quote_from_bytes(os.fsencode(self._root))
        self._temporaries = self._root / ".tmp"
        self._lock_path = self._root / ".lock"
        self._files = OpenFiles()
        self._durable_directories: set[Path] = set()

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return a value or exactly the range asked for. See Backend.get."""
        if offset == 0 and length is None:
            return self._get_whole(key)
        file = self._files.find(key)
        if file is None:
            file = self._open(key)
            self._files.add(key, file)
        if length is None:
            length = max(0, file.size_bytes - offset)
        try:
            data = file.read(length, offset)
        except OSError as exc:
            raise disk_error(exc, "read", self._root / key) from exc
        if len(data) != length or offset > file.size_bytes:
            raise IntegrityError(
                f"{key} has {file.size_bytes} bytes where bytes {offset} to {offset + length} "
                "were expected",
                kind="store.short",
                key=key,
            )
        return data

    def get_versioned(self, key: str) -> tuple[bytes, Version]:
        """Return a whole value and its token. See Backend.get_versioned."""
        value = self._get_whole(key)
        return value, _version_of(value)

    def size_bytes(self, key: str) -> int:
        """Return the length of a value. See Backend.size_bytes."""
        return self._open(key).size_bytes

    def put(self, key: str, parts: Sequence[bytes | memoryview]) -> None:
        """Store under a key never used. See Backend.put."""
        if not self._create(key, parts):
            raise BusyError(f"{key} is stored already", kind="store.exists", key=key)

    def put_if_absent(self, key: str, data: bytes) -> Version | None:
        """Store unless a value is there. See Backend.put_if_absent."""
        return _version_of(data) if self._create(key, (data,)) else None

    def put_if_version(self, key: str, data: bytes, version: Version) -> Version | None:
        """Replace just the value of that token. See Backend.put_if_version."""
        path = self._root / check_key(key)
        with disk_errors("replace", path):
            if not path.exists():
                return None
            self._ensure_directory(path.parent)
            self._ensure_directory(self._temporaries)
            with exclusive_lock(self._lock_path):
                if not path.exists() or _version_of(path.read_bytes()) != version:
                    return None
                with temporary_file(self._temporaries, (data,)) as temporary:
                    temporary.rename(path)
                sync_directory(path.parent)
        return _version_of(data)

    def iter_keys(self, prefix: str, *, start_after: str = "") -> Iterator[KeyInfo]:
        """Yield keys in ascending order. See Backend.iter_keys."""
        pending = [self._listed("", prefix, start_after)]
        while pending:
            entry = next(pending[-1], None)
            if entry is None:
                pending.pop()
            elif isinstance(entry, KeyInfo):
                yield entry
            else:
                pending.append(self._listed(entry, prefix, start_after))

    def delete(self, key: str) -> None:
        """Remove a value if it is there. See Backend.delete."""
        path = self._root / check_key(key)
        self._files.drop(key)
        with disk_errors("delete", path):
            if not path.exists():
                return
            with exclusive_lock(self._lock_path):
                path.unlink(missing_ok=True)
                sync_directory(path.parent)

    def delete_if_version(self, key: str, version: Version) -> bool:
        """Remove just the value of that token. See Backend.delete_if_version."""
        path = self._root / check_key(key)
        with disk_errors("delete", path):
            if not path.exists():
                return False
            with exclusive_lock(self._lock_path):
                if not path.exists() or _version_of(path.read_bytes()) != version:
                    return False
                self._files.drop(key)
                path.unlink()
                sync_directory(path.parent)
        return True

    def forget_local(self, key: str, *, offset: int, length: int) -> None:
        """Do nothing: there are no copies. See Backend.forget_local."""

    def is_near(self, key: str, *, offset: int, length: int) -> bool:
        """Return True. See Backend.is_near."""
        return True

    def find_near(self, key: str, *, offset: int, length: int) -> bytes | None:
        """Return a range if it is there. See Backend.find_near."""
        try:
            return self.get(key, offset=offset, length=length)
        except (KeyAbsentError, WorkspaceError):
            return None

    def free_bytes(self) -> tuple[int, int] | None:
        """Return (total, free) of the disk, bytes; free as an ordinary user has it."""
        path = self._root
        while not path.exists() and path != path.parent:
            path = path.parent
        with disk_errors("measure", path):
            found = os.statvfs(path)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def _open(self, key: str) -> OpenFile:
        path = self._root / check_key(key)
        try:
            return OpenFile(path)
        except OSError as exc:
            if exc.errno in _ABSENT:
                raise KeyAbsentError(key) from exc
            raise disk_error(exc, "open", path) from exc

    def _get_whole(self, key: str) -> bytes:
        file = self._open(key)
        with disk_errors("read", self._root / key):
            data = file.read(file.size_bytes, 0)
        if len(data) != file.size_bytes:
            raise IntegrityError(
                f"{key} has {len(data)} bytes where {file.size_bytes} were expected",
                kind="store.short",
                key=key,
            )
        return data

    def _create(self, key: str, parts: Sequence[bytes | memoryview]) -> bool:
        path = self._root / check_key(key)
        with disk_errors("write", path):
            if path.exists():
                return False
            self._ensure_directory(path.parent)
            self._ensure_directory(self._temporaries)
            with temporary_file(self._temporaries, parts) as temporary:
                try:
                    os.link(temporary, path)
                except FileExistsError:
                    return False
                except OSError as exc:
                    if exc.errno not in _NO_LINKS:
                        raise
                    if not self._rename_if_absent(temporary, path):
                        return False
            sync_directory(path.parent)
        return True

    def _rename_if_absent(self, temporary: Path, path: Path) -> bool:
        # File systems without hard links (FAT, some FUSE ones) get here with every writer, so the
        # lock decides between all of them.
        with exclusive_lock(self._lock_path):
            if path.exists():
                return False
            temporary.rename(path)
            return True

    def _ensure_directory(self, path: Path) -> None:
        if path in self._durable_directories:
            return
        is_inside = path != self._root and path.is_relative_to(self._root)
        if is_inside or not path.parent.exists():
            self._ensure_directory(path.parent)
        is_new = not path.exists()
        path.mkdir(exist_ok=True)
        if is_new and is_inside:
            path.chmod(stat.S_IMODE(path.parent.stat().st_mode))
        # Also when it was there: whoever made it may have died before its name was durable. The
        # parent of the root may be closed to us (a /home of mode 711); then the root is old.
        if is_new or is_inside or os.access(path.parent, os.R_OK):
            sync_directory(path.parent)
        self._durable_directories.add(path)

    def _listed(self, directory: str, prefix: str, start_after: str) -> Iterator[KeyInfo | str]:
        """Yield values of a directory, and its directories as texts that end with a slash."""
        path = self._root / directory
        try:
            with os.scandir(path) as found:
                entries = [
                    (directory + entry.name + "/" * entry.is_dir(follow_symlinks=False), entry)
                    for entry in found
                    if not entry.name.startswith(".")
                ]
        except FileNotFoundError:
            return
        except OSError as exc:
            raise disk_error(exc, "list", path) from exc
        # A directory sorts as its keys do: "a-" stands before "a/b" because - sorts before /.
        for key, entry in sorted(entries, key=lambda item: item[0]):
            if key.endswith("/"):
                ended = key <= start_after and not start_after.startswith(key)
                if not ended and (key.startswith(prefix) or prefix.startswith(key)):
                    yield key
            elif key.startswith(prefix) and key > start_after:
                try:
                    status = entry.stat()
                except FileNotFoundError:
                    continue  # deleted since
                except OSError as exc:
                    raise disk_error(exc, "list", path) from exc
                yield KeyInfo(key, status.st_size, _state_of(status))


def _state_of(status: os.stat_result) -> str | None:
    """Return what tells a value from others under its key, which are other files. None: it is so
    young that a later one may have the number of its inode and, by a coarse clock, its time.
    """
    if time.time_ns() - status.st_mtime_ns < _RACY_NS:
        return None
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"


def _version_of(value: bytes) -> Version:
    return Version(blake3(value).hexdigest())
