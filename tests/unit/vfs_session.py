"""A session's file system without a mount: real layers, a store in memory, and commits.

With `is_local=False` nothing of the store is at hand at first, as with a store far away.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from workspacefs.backend.memory import MemoryBackend
from workspacefs.clock import SystemClock
from workspacefs.layers.layer import Layer
from workspacefs.objects.commits import Provenance
from workspacefs.objects.entry import Entry
from workspacefs.objects.nodes import Node
from workspacefs.objects.refs import ChunkRef, Ref
from workspacefs.workspace.commit import Committed, commit_pending
from workspacefs.workspace.pending import Pending
from workspacefs.workspace.sessions import open_session, root_of
from workspacefs.workspace.status import iter_changes
from workspacefs.workspace.workspace import Workspace
from workspacefs_daemon.vfs.filesystem import FileSystem
from workspacefs_daemon.vfs.inode import Inode
from workspacefs_daemon.vfs.overlay import Overlay
from workspacefs_daemon.vfs.residency import NotResident, Resident
from workspacefs_daemon.vfs.services import FileIds, Services

T = TypeVar("T")


class ForgetfulStore:
    """A store that has at hand only what was loaded since the last forget_all()."""

    def __init__(self, workspace: Workspace, *, is_local: bool) -> None:
        self._store = workspace.store
        self._is_local = is_local
        self._here: set[bytes] = set()
        self.loads = 0

    def forget_all(self) -> None:
        """Have nothing at hand."""
        self._here.clear()

    def load_node(self, ref: Ref) -> Node:
        """Fetch a node."""
        self._note(ref.id)
        return self._store.load_node(ref)

    def near_node(self, ref: Ref) -> Node | None:
        """Return a node that was fetched."""
        return self._store.load_node(ref) if self._is_near(ref) else None

    def load_chunk(self, ref: ChunkRef) -> bytes:
        """Fetch a chunk."""
        self._note(ref.id)
        return self._store.load_chunk(ref)

    def near_chunk(self, ref: ChunkRef) -> bytes | None:
        """Return a chunk that was fetched."""
        return self._store.load_chunk(ref) if self._is_near(ref) else None

    def load_chunk_list(self, ref: Ref) -> tuple[ChunkRef, ...]:
        """Fetch a chunk list."""
        self._note(ref.id)
        return self._store.load_chunk_list(ref)

    def near_chunk_list(self, ref: Ref) -> tuple[ChunkRef, ...] | None:
        """Return a chunk list that was fetched."""
        return self._store.load_chunk_list(ref) if self._is_near(ref) else None

    def _is_near(self, ref: Ref) -> bool:
        return self._is_local or ref.id in self._here

    def _note(self, object_id: bytes) -> None:
        self.loads += 1
        self._here.add(object_id)


class Session:
    """A file system over layers in `directory`, with what mount and commit do to it."""

    def __init__(
        self, directory: Path, *, is_local: bool = True, workspace: Workspace | None = None
    ) -> None:
        """Begin the session "s" of a new workspace, or from main in `workspace`."""
        self.workspace = workspace or Workspace.create(MemoryBackend(secrets.token_hex(8)))
        self.session, _ = open_session(self.workspace, "s", branch="main", owner="me")
        base = self.session.head
        self.root_entry: Entry = root_of(self.workspace, base, created_ns=0, uid=0, gid=0)
        self.store = ForgetfulStore(self.workspace, is_local=is_local)
        self._directory = directory
        self._numbers = itertools.count()
        self.frozen: list[Layer] = []
        self.live = self._new_layer()
        self.restart()

    def _new_layer(self) -> Layer:
        number = next(self._numbers)
        return Layer(self._directory / str(number), number=number)

    def restart(self) -> None:
        """Forget everything that is in memory only: as after kill -9 and a new mount."""
        self.store.forget_all()
        resident = Resident(self.store)
        self.overlay = Overlay(
            self.root_entry, live=self.live, frozen=self.frozen, resident=resident
        )
        self._file_ids = FileIds(self.live, self.workspace.allocate_epoch)
        services = Services(clock=SystemClock(), file_ids=self._file_ids, live=self.live)
        self.fs = FileSystem(self.overlay, services, disk=str(self._directory), sync=_no_sync)

    def freeze(self) -> None:
        """Put a new live layer on top, and forget what is in memory."""
        self.frozen.insert(0, self.live)
        self.live = self._new_layer()
        self.restart()

    def pending(self) -> Pending:
        """Return the uncommitted changes."""
        layers = [self.live, *self.frozen]
        return Pending(
            self.root_entry,
            [layer.snapshot() for layer in layers],
            {layer.number: layer for layer in layers},
            self.workspace.store,
        )

    def status(self) -> dict[str, str]:
        """Return kind by path."""
        return {change.path.decode(): change.kind.name for change in iter_changes(self.pending())}

    def commit(self) -> None:
        """Commit everything; go on over the commit, with nothing in memory."""
        committed = commit_pending(
            self.workspace, self.session, self.pending(), message="m", provenance=Provenance(),
            meta={}, before_move=lambda commit_id: None,
        )  # fmt: skip
        if isinstance(committed, Committed):
            self.session = committed.session
        self.root_entry = committed.sealed.root
        for layer in (self.live, *self.frozen):
            layer.close()
        self.frozen = []
        self.live = self._new_layer()
        self.restart()

    def run(self, call: Callable[[], T]) -> T:
        """Do an operation as a binding does: load what is missing and call again."""
        while True:
            try:
                return call()
            except NotResident as missing:
                missing.load()

    def at(self, path: str) -> Inode:
        """Return the inode at a path, known from now on, as after a lookup."""
        inode = self.overlay.root
        for name in path.encode().split(b"/"):
            if name:
                parent = inode
                found = self.run(lambda: self.overlay.find_child(parent, name))  # noqa: B023
                assert found is not None, path
                self.overlay.remember(found)
                inode = found
        return inode

    def make(self, path: str, data: bytes = b"", *, kind: int = 0o100644) -> Inode:
        """Create a file (or what `kind` says), known from now on."""
        parent, _, name = path.rpartition("/")
        directory = self.at(parent)
        inode = self.run(lambda: self.fs.namespace.create(directory, name.encode(), kind, 0, 0))
        self.overlay.remember(inode)
        if data:
            self.run(lambda: self.fs.files.write(inode, 0, data))
        return inode

    def read(self, inode: Inode) -> bytes:
        """Return a whole file."""
        return self.run(lambda: self.fs.files.read(inode, 0, inode.size_bytes))

    def names(self, inode: Inode) -> list[bytes]:
        """Return the names in a directory."""
        return [name for name, _ in self.run(lambda: self.overlay.list_after(inode, b"", 1000))]

    def close(self) -> None:
        """Close the layers."""
        for layer in (self.live, *self.frozen):
            layer.close()


async def _no_sync() -> None:
    return None
