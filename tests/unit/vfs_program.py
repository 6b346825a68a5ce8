"""Random operations on a session's file system, chosen by a seeded generator, and what is seen."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.unit.vfs_session import Session
from workspacefs_daemon.vfs.inode import Inode
from workspacefs_daemon.vfs.overlay import Overlay
from workspacefs_daemon.vfs.residency import Resident

DIRECTORY, FILE = 0o040755, 0o100644
NAMES = tuple("abcdef")
SIZES = (0, 1, 300, 70_000, 262_144, 300_000)


def facts_of(inode: Inode) -> tuple[object, ...]:
    return (
        inode.file_id, inode.mode, inode.uid, inode.size_bytes, inode.mtime_ns, inode.ctime_ns,
        inode.nlink, inode.xattrs,
    )  # fmt: skip


def seen(session: Session, overlay: Overlay) -> dict[bytes, tuple[object, ...]]:
    """Return everything that an overlay shows, by path."""
    found: dict[bytes, tuple[object, ...]] = {b"": facts_of(overlay.root)}
    stack = [(b"", overlay.root)]
    while stack:
        prefix, directory = stack.pop()
        listed = session.run(
            lambda: overlay.list_after(directory, b"", 1000)  # noqa: B023
        )
        for name, child in listed:
            path = prefix + name
            found[path] = facts_of(child)
            if child.is_dir:
                stack.append((path + b"/", child))
            else:
                found[path] += (session.read(child),)
    return found


def as_rows_say(session: Session) -> dict[bytes, tuple[object, ...]]:
    """Return what a process would see that begins now."""
    resident = Resident(session.workspace.store)
    fresh = Overlay(session.root_entry, live=session.live, frozen=session.frozen, resident=resident)
    return seen(session, fresh)


class Program:
    """Operations chosen by a seeded generator."""

    def __init__(self, session: Session, rng: random.Random) -> None:
        self.session = session
        self.rng = rng
        self.held: list[Inode] = []

    def known(self, *, is_dir: bool) -> Inode | None:
        """Walk down to some inode, as the kernel does, and hold it."""
        overlay = self.session.overlay
        inode = overlay.root
        best = inode if is_dir else None
        for _ in range(4):
            listed = self.session.run(
                lambda: overlay.list_after(inode, b"", 1000)  # noqa: B023
            )
            if not listed:
                break
            _, child = self.rng.choice(listed)
            overlay.remember(child)
            self.held.append(child)
            if child.is_dir == is_dir and self.rng.random() < 0.7:
                best = child
            if not child.is_dir:
                break
            inode = child
        return best

    def step(self) -> None:
        """Do one operation."""
        fs, rng = self.session.fs, self.rng
        name, other = (rng.choice(NAMES).encode() for _ in range(2))
        first, second = self.known(is_dir=True), self.known(is_dir=True)
        file = self.known(is_dir=False)
        assert first is not None
        assert second is not None
        size, offset = rng.choice(SIZES), rng.choice((0, 5, 65_536, 300_000))
        calls: list[Callable[[], object]] = [
            lambda: fs.namespace.create(first, name, FILE, 1, 1),
            lambda: fs.namespace.create(first, name, DIRECTORY, 1, 1),
            lambda: fs.unlink(first, name),
            lambda: fs.namespace.rmdir(first, name),
        ]
        if not self.is_below(second, first, name):
            calls += [lambda: fs.rename(first, name, second, other, rng.choice((0, 0, 1)))] * 2
        if first is second:
            calls += [lambda: fs.rename(first, name, second, other, 2)]
        if file is not None:
            calls += [
                lambda: fs.files.write(file, offset, rng.randbytes(size)),
                lambda: fs.files.write(file, offset, b"xyz"),
                lambda: fs.files.resize(file, size),
                lambda: fs.namespace.link(file, second, other),
                lambda: fs.files.set_xattr(file, b"user.k", b"v" * rng.randrange(9)),
                lambda: fs.files.set_attributes(file, mode=rng.choice((0o600, 0o755))),
            ]
        self.session.run(rng.choice(calls))

    def is_below(self, directory: Inode, parent: Inode, name: bytes) -> bool:
        """Tell whether a move would put a directory into itself; the kernel refuses that."""
        overlay = self.session.overlay
        moved = self.session.run(lambda: overlay.find_child(parent, name))
        at: Inode | None = directory
        while at is not None and moved is not None:
            if at.file_id == moved.file_id:
                return True
            at = at.parent
        return False

    def forget_some(self) -> None:
        """Let go of some inodes, as the kernel does under memory pressure: children first."""
        for inode in reversed(self.held):
            self.session.fs.forget(inode.file_id, 1)
        self.held = []
