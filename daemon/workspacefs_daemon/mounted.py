"""One mounted view: its workspace, its layers, its file system. Freezes, rebases, closes.

This module knows no FUSE; opening.py makes one, session.py binds it to a mountpoint, and ops.py to
the control socket.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import trio

from workspacefs.clock import SystemClock
from workspacefs.errors import UnavailableError, WorkspaceError
from workspacefs.ids import CommitId
from workspacefs.layers.journal import Journal, mark_clean
from workspacefs.layers.layer import Layer
from workspacefs.layers.rebase import is_in, rebase_rows, rebased_content
from workspacefs.objects.entry import Entry
from workspacefs.objects.refs import Locator, Ref
from workspacefs.workspace.commit import Committed, settle_unclear
from workspacefs.workspace.early_upload import EarlyUpload
from workspacefs.workspace.local import LocalRecord, LocalSession
from workspacefs.workspace.pending import Pending
from workspacefs.workspace.seal import Sealed
from workspacefs.workspace.sessions import OpenSession
from workspacefs.workspace.workspace import Workspace
from workspacefs_daemon.background.durability import Durability
from workspacefs_daemon.background.hops import Blocking
from workspacefs_daemon.far import FarStore
from workspacefs_daemon.recovery import open_layer
from workspacefs_daemon.spec import SessionSpec
from workspacefs_daemon.vfs.filesystem import FileSystem
from workspacefs_daemon.vfs.overlay import Overlay
from workspacefs_daemon.vfs.residency import Resident
from workspacefs_daemon.vfs.services import FileIds, Services

log = logging.getLogger(__name__)

_NEAR_LOADS: Final = 8
_FAR_LOADS: Final = 48
"""Loads that wait for a far store at once; each is a thread that only waits."""


class Mounted:
    """What a session process serves. Made by open_mounted() before the event loop starts."""

    def __init__(
        self,
        spec: SessionSpec,
        workspace: Workspace,
        *,
        name: str,
        session_id: str,
        root: Entry,
        base: Ref | None,
        local: LocalSession | None,
        record: LocalRecord | None,
        session: OpenSession | None,
        layers: list[tuple[Layer, Journal]],
        far: FarStore | None,
    ) -> None:
        """Bring the pieces together; `layers` come eldest first, the last one is live."""
        self.spec = spec
        self.workspace = workspace
        self.name = name
        self.session_id = session_id
        self.base = base
        self.base_root = root
        self.session = session
        self.far = far
        self.early = EarlyUpload(workspace) if far is not None and spec.early_upload else None
        self.blocking = Blocking(load_threads=_FAR_LOADS if far else _NEAR_LOADS)
        self.durability = Durability(self.blocking)
        self.committing = trio.Lock()
        self.own_commits: set[CommitId] = set()
        """Made in this mount: the session's head builds on each."""
        self._is_unclear = False
        """Whether nobody knows if the session's ref moved to the commit that is being made."""
        self._local = local
        self._record = record
        self._unsettled: list[Layer] = []
        """Committed, while the record on disk still names them."""
        self._retired: list[Layer] = []
        self._views = 0
        for layer, journal in layers:
            self.durability.add(layer, journal)
        live = layers[-1][0] if layers else None
        frozen = [layer for layer, _ in reversed(layers[:-1])]
        resident = Resident(workspace.store)
        if far is not None and spec.prefetch == "adaptive":
            resident.on_sequence = far.read_on
        overlay = Overlay(root, live=live, frozen=frozen, resident=resident)
        self.file_ids = None if live is None else FileIds(live, workspace.allocate_epoch)
        self.services = Services(clock=SystemClock(), file_ids=self.file_ids, live=live)
        self.overlay = overlay
        self.fs = FileSystem(overlay, self.services, disk=spec.state_dir, sync=self.durability.sync)

    @property
    def is_read_only(self) -> bool:
        """Whether this is a view without a session."""
        return self._local is None

    def find_stored(self, object_id: bytes) -> Locator | None:
        """Return where a chunk lies that was uploaded ahead of the commit, or None."""
        return None if self.early is None else self.early.find(object_id)

    def has_changes(self) -> bool:
        """Tell whether any layer has a row that could be a change."""
        return any(
            layer.rows.has_rows(b"I") or layer.rows.has_rows(b"D")
            for layer in self.overlay.layers.values()
        )

    @contextmanager
    def viewed(self, layers: Sequence[Layer] | None = None) -> Iterator[Pending]:
        """Look at the uncommitted changes as they are now, from any thread, within the block.

        Args:
            layers: Newest first; None: all.
        """
        if layers is None:
            live = self.overlay.live
            layers = [*([] if live is None else [live]), *self.overlay.frozen]
        snapshots = [layer.snapshot() for layer in layers]
        numbered = {layer.number: layer for layer in layers}
        self._views += 1  # no layer is closed while someone looks at it
        for layer in layers:
            layer.readers += 1
        try:
            yield Pending(self.base_root, snapshots, numbered, self.workspace.store)
        finally:
            self._views -= 1
            for snapshot in snapshots:
                snapshot.close()
            for layer in layers:
                layer.readers -= 1

    async def freeze(self) -> None:
        """Freeze the live layer and put a new one on top."""
        await self._settle()
        assert self._record is not None
        assert self._local is not None
        old = self.overlay.live
        assert old is not None
        record = self._record.freeze()
        local = self._local
        number = record.layers[-1]
        layer, journal = await self.blocking.job(
            lambda: open_layer(local.layer_directory(number), number)
        )
        # The record goes first: from the switch on, the new layer holds what nothing else does.
        await self.blocking.job(lambda: local.save(record))
        # No await from here on: the switch is one instant for every request.
        self._record = record
        assert self.file_ids is not None
        self.file_ids.move_to(layer)
        self.overlay.frozen.insert(0, old)
        self.overlay.live = layer
        self.services.live = layer
        self.durability.add(layer, journal)

    def note_sealing(self, commit_id: CommitId) -> None:
        """Write down that the session's ref is about to move to `commit_id`; on a thread."""
        assert self._record is not None
        assert self._local is not None
        self._record = replace(
            self._record, sealing=commit_id, sealed_layers=self._record.layers[:-1]
        )
        self._local.save(self._record)

    @contextmanager
    def noting_unclear(self) -> Iterator[None]:
        """Remember a commit of which nobody knows whether it was made."""
        try:
            yield
        except UnavailableError as exc:
            self._is_unclear = exc.kind == "ref.unknown"
            raise

    async def settle(self, *, moved_by: str) -> None:
        """Find out what became of a commit that got no clear answer; without one, do nothing.

        Raises:
            UnavailableError: The store still does not say.
            MovedError: Somebody else moved the session's ref.
        """
        if not self._is_unclear:
            return
        record, session = self._record, self.session
        assert record is not None
        assert session is not None
        sealing = record.sealing
        assert sealing is not None
        sealed = [layer for layer in self.overlay.frozen if layer.number in record.sealed_layers]
        with self.viewed(sealed) as pending:
            found = await self.blocking.job(
                lambda: settle_unclear(self.workspace, session, sealing, pending, moved_by=moved_by)
            )
        self._is_unclear = False
        if isinstance(found, Committed):
            log.info("commit.settled", extra={"commit": found.ref.id.hex()})
            await self.rebase(found.sealed, found)
        else:
            self.session = found

    async def rebase(self, sealed: Sealed, committed: Committed | None) -> None:
        """Put the live layer onto the commit that the frozen ones became, and drop those."""
        assert self._record is not None
        assert self._local is not None
        overlay = self.overlay
        live = overlay.live
        assert live is not None
        frozen = list(overlay.frozen)
        numbers = {layer.number for layer in frozen}
        if committed is not None:
            self.session = committed.session
            self.base = committed.ref
            self.own_commits.add(CommitId(committed.ref.id))
            if self.early is not None:
                self.early.forget()
        self.base_root = sealed.root
        for _ in rebase_rows(live, sealed.entries, numbers):
            self._rebase_inodes(sealed, numbers)
            await trio.lowlevel.checkpoint()
        # No await until the layers are out: no request may see one half of it.
        self._rebase_inodes(sealed, numbers)
        for file_id in sealed.entries:
            inode = overlay.inodes.get(file_id)
            if inode is not None and inode.marked != live.number:
                inode.marked = -1
        overlay.frozen.clear()
        overlay.root.marked = live.number
        self._unsettled += frozen
        try:
            await self._settle()
        except WorkspaceError as exc:
            # The commit is made. The record still says how to finish, and freeze() tries again.
            log.warning("commit.unsettled", extra={"kind": exc.kind, "reason": str(exc)})

    async def _settle(self) -> None:
        """Let go of layers that a commit was made of, once the live one does without them."""
        if not self._unsettled:
            return
        assert self._record is not None
        assert self._local is not None
        live = self.overlay.live
        assert live is not None
        # What the rows of the live layer say now, they say of the new base: it must be durable
        # before the record tells of that.
        if self._record.sealing is None:
            await self.durability.sync()
        elif live.rows.has_rows(b"I"):
            await self.durability.sync_layer(live)
        local = self._local
        record = replace(
            self._record, base=self.base, layers=(live.number,), sealing=None, sealed_layers=()
        )
        await self.blocking.job(lambda: local.save(record))
        self._record = record
        settled, self._unsettled = self._unsettled, []
        for layer in settled:
            await self.durability.remove(layer)
        self._retired += settled
        await self._drop_retired()

    def _rebase_inodes(self, sealed: Sealed, numbers: set[int]) -> None:
        for file_id, entry in sealed.entries.items():
            inode = self.overlay.inodes.get(file_id)
            if inode is not None:
                inode.content = rebased_content(inode.content, entry, numbers)

    async def _drop_retired(self) -> None:
        """Close and delete layers that no open file reads any more."""
        local = self._local
        assert local is not None
        # Only a file that has lost its last name can still have its bytes there.
        unused = [
            layer
            for layer in self._retired
            if not self._views
            and not any(is_in(inode.content, {layer.number}) for inode in self.overlay.orphans)
        ]
        for layer in unused:
            self._retired.remove(layer)
            layer.close()
            await self.blocking.job(lambda number=layer.number: local.remove_layer(number))  # type: ignore[misc]

    async def close(self) -> None:
        """Make everything durable and let go of it; nothing may be served any more."""
        if self._local is None:
            return
        await self.durability.sync()
        for layer in self.overlay.layers.values():
            await self.blocking.sync(lambda kept=layer: mark_clean(kept))  # type: ignore[misc]
            await self.durability.remove(layer)
            layer.close()
        for layer in self._retired:
            layer.close()
        self._local.close()
