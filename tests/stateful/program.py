"""A random program of file operations, run on two directories side by side.

Whatever an operation answers, errno included, and whatever can be seen afterwards must be the same
on both. Open handles stay open over everything that leaves the mount in place.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import stat
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

NAMES = ("a", "b", "c", "d", "e", "sub", "Ünï", "x" * 200)
SIZES = (0, 1, 100, 4096, 5000, 65_535, 65_536, 70_000, 200_000, 262_144, 262_145, 300_000, 900_000)
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Handles:
    """Descriptors of the same file on both sides."""

    pairs: list[tuple[int, int]] = field(default_factory=list)

    def close_all(self) -> None:
        """Close them on both sides; the mount may be dead."""
        for pair in self.pairs:
            for fd in pair:
                try:
                    os.close(fd)
                except OSError:
                    continue
        self.pairs = []


class Program:
    """Operations chosen by a seeded generator."""

    def __init__(self, seed: int, mounted: Path, plain: Path) -> None:
        self.random = random.Random(seed)
        self.roots = (mounted, plain)
        self.handles = Handles()
        self.log: list[str] = []

    # -- choosing --------------------------------------------------------------------------

    def path(self) -> str:
        """Return a path, most likely of something that exists."""
        rng = self.random
        parts: list[str] = []
        where = self.roots[1]
        for _ in range(rng.choice((1, 1, 2, 2, 3))):
            there = sorted(os.listdir(where)) if is_directory(where) else []
            name = rng.choice(there) if there and rng.random() < 0.7 else rng.choice(NAMES)
            parts.append(name)
            where /= name
        return "/".join(parts)

    def file(self) -> str:
        """Return a path, of a regular file if one is quickly found."""
        for _ in range(6):
            path = self.path()
            if os.path.isfile(self.roots[1] / path):
                return path
        return path

    def data(self) -> bytes:
        """Return some bytes to write."""
        size = self.random.choice(SIZES)
        return self.random.randbytes(size)

    # -- doing -----------------------------------------------------------------------------

    def step(self) -> None:
        """Do one operation on both sides and compare the answers."""
        operation: Callable[[], None] = self.random.choices(
            list(_WEIGHTS), weights=list(_WEIGHTS.values())
        )[0].__get__(self)
        operation()

    def both(self, what: str, call: Callable[[Path], object]) -> None:
        """Run `call` on each root; both answer the same, or fail with the same errno."""
        self.log.append(what)
        answers = []
        for root in self.roots:
            try:
                answers.append(("ok", call(root)))
            except OSError as exc:
                answers.append(("error", errno.errorcode.get(exc.errno or 0, exc.errno)))
        assert answers[0] == answers[1], (
            f"{what}: mount {brief(answers[0])}, plain {brief(answers[1])}"
        )

    def create(self) -> None:
        path, data = self.path(), self.data()
        self.both(f"create {path} {len(data)}", lambda root: _write(root / path, data, os.O_EXCL))

    def replace(self) -> None:
        path, data = self.file(), self.data()
        self.both(f"replace {path} {len(data)}", lambda root: _write(root / path, data, os.O_TRUNC))

    def append(self) -> None:
        path, data = self.file(), self.data()
        self.both(f"append {path} {len(data)}", lambda root: _write(root / path, data, os.O_APPEND))

    def overwrite(self) -> None:
        path, data = self.file(), self.data()
        offset = self.random.choice((0, 1, 10, 4096, 65_530, 100_000, 262_140, 400_000, 2_000_000))
        self.both(
            f"write {path} {offset}+{len(data)}", lambda root: _pwrite(root / path, data, offset)
        )

    def truncate(self) -> None:
        path, size = self.file(), self.random.choice((*SIZES, 3_000_000))
        self.both(f"truncate {path} {size}", lambda root: os.truncate(root / path, size))

    def mkdir(self) -> None:
        path = self.path()
        self.both(f"mkdir {path}", lambda root: os.mkdir(root / path, 0o755))

    def rmdir(self) -> None:
        path = self.path()
        self.both(f"rmdir {path}", lambda root: os.rmdir(root / path))

    def unlink(self) -> None:
        path = self.path()
        self.both(f"unlink {path}", lambda root: os.unlink(root / path))

    def rename(self) -> None:
        old, new = self.path(), self.path()
        self.both(f"rename {old} {new}", lambda root: os.rename(root / old, root / new))

    def exchange(self) -> None:
        old, new = self.path(), self.path()
        flags = self.random.choice((1, 2, 2))
        self.both(
            f"rename2 {old} {new} {flags}", lambda root: _rename2(root / old, root / new, flags)
        )

    def link(self) -> None:
        old, new = self.path(), self.path()
        self.both(
            f"link {old} {new}",
            lambda root: os.link(root / old, root / new, follow_symlinks=False),
        )

    def symlink(self) -> None:
        path, target = self.path(), "t" * self.random.choice((1, 100, 3000))
        self.both(f"symlink {path}", lambda root: os.symlink(target, root / path))

    def mknod(self) -> None:
        path = self.path()
        kind = self.random.choice((stat.S_IFIFO, stat.S_IFSOCK))
        self.both(f"mknod {path}", lambda root: os.mknod(root / path, kind | 0o644))

    def chmod(self) -> None:
        path, mode = self.path(), self.random.choice((0o644, 0o755, 0o600, 0o1777))
        if is_directory(self.roots[1] / path):
            mode |= self.random.choice((0, 0o2000))  # on files, root's writes keep it elsewhere
        if not os.path.islink(self.roots[1] / path):
            self.both(f"chmod {path} {mode:o}", lambda root: os.chmod(root / path, mode))

    def chown(self) -> None:
        path, uid, gid = self.path(), self.random.choice((-1, 0, 1000)), self.random.choice((-1, 7))
        self.both(
            f"chown {path} {uid} {gid}",
            lambda root: os.chown(root / path, uid, gid, follow_symlinks=False),
        )

    def utime(self) -> None:
        path = self.path()
        time_ns = self.random.choice((0, 1, 10**18 + 7, -5 * 10**9, 2**33 * 10**9))
        self.both(
            f"utime {path} {time_ns}",
            lambda root: os.utime(root / path, ns=(time_ns, time_ns), follow_symlinks=False),
        )

    def xattr(self) -> None:
        path = self.file()
        name = self.random.choice(("user.a", "user.b"))
        value = self.random.randbytes(self.random.choice((0, 3, 400)))
        flags = self.random.choice((0, 0, os.XATTR_CREATE, os.XATTR_REPLACE))
        if self.random.random() < 0.3:
            self.both(f"removexattr {path}", lambda root: os.removexattr(root / path, name))
        else:
            self.both(
                f"setxattr {path} {name} {len(value)} {flags}",
                lambda root: os.setxattr(root / path, name, value, flags),
            )

    def open_handle(self) -> None:
        path = self.file()
        self.log.append(f"open {path}")
        if os.path.isfile(self.roots[1] / path) and len(self.handles.pairs) < 8:
            first, second = (os.open(root / path, os.O_RDWR) for root in self.roots)
            self.handles.pairs.append((first, second))

    def close_handle(self) -> None:
        if self.handles.pairs:
            pair = self.handles.pairs.pop(self.random.randrange(len(self.handles.pairs)))
            for fd in pair:
                os.close(fd)

    def use_handle(self) -> None:
        if not self.handles.pairs:
            return
        pair = self.random.choice(self.handles.pairs)
        data, offset = self.data(), self.random.choice((0, 7, 65_536, 300_000))
        size = self.random.choice(SIZES)
        use = self.random.choice(("write", "write", "truncate", "fsync", "read"))
        fds = dict(zip(self.roots, pair, strict=True))

        def call(root: Path) -> object:
            fd = fds[root]
            if use == "write":
                return os.pwrite(fd, data, offset) if data else None
            if use == "truncate":
                return os.ftruncate(fd, size)
            if use == "fsync":
                return os.fsync(fd)
            status = os.fstat(fd)
            return (os.pread(fd, 1 << 22, offset), status.st_size, status.st_nlink, status.st_mode)

        self.both(f"handle {use} {offset} {len(data)} {size}", call)

    def read(self) -> None:
        path = self.file()
        self.both(f"read {path}", lambda root: _read(root / path))

    def list(self) -> None:
        path = self.path()
        self.both(f"list {path}", lambda root: sorted(os.listdir(root / path)))


_WEIGHTS: dict[Callable[[Program], None], int] = {
    Program.create: 8, Program.replace: 4, Program.append: 4, Program.overwrite: 8,
    Program.truncate: 6, Program.mkdir: 5, Program.rmdir: 3, Program.unlink: 5, Program.rename: 8,
    Program.exchange: 4, Program.link: 5, Program.symlink: 2, Program.mknod: 1, Program.chmod: 2,
    Program.chown: 2, Program.utime: 2, Program.xattr: 3, Program.open_handle: 3,
    Program.close_handle: 2, Program.use_handle: 8, Program.read: 2, Program.list: 2,
}  # fmt: skip


def brief(answer: object) -> str:
    """Return an answer for a message, long bytes by length and checksum."""
    if isinstance(answer, bytes) and len(answer) > 40:
        return f"<{len(answer)} bytes, {zlib.crc32(answer):x}>"
    if isinstance(answer, tuple):
        return "(" + ", ".join(map(brief, answer)) + ")"
    return repr(answer)


def is_directory(path: Path) -> bool:
    """Tell whether a path leads to a directory, and not by a link."""
    return os.path.isdir(path) and not os.path.islink(path)


def _read(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(fd, 1 << 24)
    finally:
        os.close(fd)


def _write(path: Path, data: bytes, flags: int) -> None:
    create = os.O_CREAT if flags != os.O_APPEND else 0
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | create | flags, 0o644)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _pwrite(path: Path, data: bytes, offset: int) -> None:
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.pwrite(fd, data, offset)
    finally:
        os.close(fd)


def _rename2(old: Path, new: Path, flags: int) -> None:
    at = -100  # AT_FDCWD
    if _libc.renameat2(at, os.fsencode(old), at, os.fsencode(new), flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
