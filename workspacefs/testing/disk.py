"""Trees on a real disk: made with every kind of file, and written down for comparison."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

from workspacefs.workspace.attributes import read_xattrs

Snapshot = dict[bytes, tuple[object, ...]]


def make_zoo(root: Path) -> None:
    """Fill an existing directory with one of every kind of file that needs no rights."""

    def at(name: bytes) -> Path:
        return root / os.fsdecode(name)

    def write(name: bytes, data: bytes, mode: int = 0o644) -> Path:
        at(name).write_bytes(data)
        at(name).chmod(mode)
        return at(name)

    write(b"empty", b"")
    write(b"inline", b"x" * 128)
    write(b"one chunk", b"y" * 129)
    write(b"many chunks", os.urandom(3 << 20))
    write(b"script", b"#!/bin/sh\n", 0o755)
    write(b"secret", b"s", 0o600)
    write(b"\xff\xfe not utf-8 \n", b"odd")
    write(b"-rf", b"dash")
    write(b"n" * 255, b"long")
    at(b"void").mkdir()
    at(b"sticky").mkdir()
    at(b"sticky").chmod(0o1777)
    at(b"deep/er/est").mkdir(parents=True)
    first = write(b"deep/first name", b"linked" * 100)
    os.link(first, at(b"deep/er/second name"))
    os.link(first, at(b"third name"))
    at(b"dangling").symlink_to(os.fsdecode(b"nowhere/at\xffall"))
    at(b"deep/up").symlink_to("..")
    os.mkfifo(at(b"fifo"), 0o640)
    _make_socket(root, b"sock")
    with at(b"sparse").open("wb") as file:
        file.truncate(64 << 20)
        file.seek(20 << 20)
        file.write(b"island")
    for name, mtime_ns in ((b"empty", -123_456_789_012), (b"inline", 1), (b"script", 10**18 + 7)):
        os.utime(at(name), ns=(mtime_ns, mtime_ns))
    os.utime(at(b"void"), ns=(5, 1_234_567_890_123_456_789))
    try:
        os.setxattr(at(b"inline"), b"user.note", b"value\0\xff")
        os.setxattr(at(b"void"), b"user.dir", b"")
    except OSError:
        pass  # this file system has none


def snapshot(root: Path) -> Snapshot:
    """Return everything that must survive a round trip, by path; inodes become groups."""
    base = os.fsencode(root)
    found: Snapshot = {}
    groups: dict[tuple[int, int], int] = {}
    for directory, dirs, files in os.walk(base):
        dirs.sort()
        for name in sorted(dirs + files):
            path = os.path.join(directory, name)
            found[os.path.relpath(path, base)] = _state_of(path, groups)
    return found


def _state_of(path: bytes, groups: dict[tuple[int, int], int]) -> tuple[object, ...]:
    status = os.lstat(path)
    content: object = None
    if stat.S_ISREG(status.st_mode):
        with open(path, "rb") as file:
            content = file.read()
    elif stat.S_ISLNK(status.st_mode):
        content = os.fsencode(Path(os.fsdecode(path)).readlink())
    group = 0
    if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
        group = groups.setdefault((status.st_dev, status.st_ino), len(groups) + 1)
    return (
        status.st_mode,
        status.st_uid,
        status.st_gid,
        status.st_mtime_ns,
        content,
        read_xattrs(path),
        group,
    )


def _make_socket(root: Path, name: bytes) -> None:
    # Through a descriptor, because socket paths are short and those of tests are not.
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(b"/proc/self/fd/%d/%s" % (fd, name))
    finally:
        os.close(fd)
