"""One mounted view: its workspace, its layers, its file system.

This module knows no FUSE; opening.py makes one, session.py binds it to a mountpoint, and ops.py to
the control socket.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

import trio

from workspacefs.clock import SystemClock
from workspacefs.errors import MovedError, UnavailableError, WorkspaceError
from workspacefs.ids import CommitId
from workspacefs.layers.journal import Journal
from workspacefs.layers.layer import Layer
from workspacefs.objects.commits import Commit
from workspacefs.objects.entry import Entry
from workspacefs.objects.refs import Locator, Ref
from workspacefs.workspace.commit import Committed, settle_unclear
from workspacefs.workspace.early_upload import EarlyUpload
from workspacefs.workspace.local import LocalSession
from workspacefs.workspace.local_record import LocalCheckpoint, LocalRecord
from workspacefs.workspace.open_merge import NO_MERGE, OpenMerge, load_open_merge
from workspacefs.workspace.pending import Pending
from workspacefs.workspace.saving import settle_saving
from workspacefs.workspace.seal import Sealed
from workspacefs.workspace.sessions import OpenSession, drop_lease, session_at
from workspacefs.workspace.workspace import Workspace
from workspacefs_daemon.background.durability import Durability
from workspacefs_daemon.background.hops import Blocking
from workspacefs_daemon.chain import LayerChain
from workspacefs_daemon.demands import Demands
from workspacefs_daemon.far import FarStore
from workspacefs_daemon.forking import ForkedSession, ForkParent, begin_forks
from workspacefs_daemon.processes import ProcessTable
from workspacefs_daemon.saved import Saved
from workspacefs_daemon.spec import SessionSpec
from workspacefs_daemon.vfs.filesystem import FileSystem
from workspacefs_daemon.vfs.overlay import Overlay
from workspacefs_daemon.vfs.residency import Resident
from workspacefs_daemon.vfs.services import FileIds, Services
from workspacefs_daemon.vfs.writers import Writers

log = logging.getLogger(__name__)

_LAST_WORD_S: Final = 2.0
"""Longest time that an unmount waits for the store to hear that nobody has the session."""
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
        layers: list[tuple[Layer, Journal | None]],
        far: FarStore | None,
        is_as_stored: bool = False,
    ) -> None:
        """Bring the pieces together; `layers` come eldest first, the last one is live and has a
        journal. What lies in them may be just what the store has (`is_as_stored`).
        """
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
        self.demands = Demands(workspace, self.blocking)
        self.durability = Durability(self.blocking)
        self.committing = trio.Lock()
        self.own_commits: set[CommitId] = set()
        """Made in this mount: the session's head builds on each."""
        self._is_unclear = False
        """Whether nobody knows if the session's ref moved to the commit that is being made."""
        self.is_lost = False
        """Whether the session goes on in another place; then nothing can be changed here."""
        self.is_hidden = False
        """Whether the mountpoint does not lead here any more: it was unmounted lazily."""
        for layer, journal in layers:
            self.durability.add(layer, journal)
        live = layers[-1][0] if layers else None
        frozen = [layer for layer, _ in reversed(layers[:-1])]
        stored_merge = record.merge if is_as_stored and record is not None else None
        self.saved = Saved(frozen if is_as_stored else (), stored_merge)
        resident = Resident(workspace.store)
        if far is not None and spec.prefetch == "adaptive":
            resident.on_sequence = far.read_on
        overlay = Overlay(root, live=live, frozen=frozen, resident=resident)
        self.file_ids = None
        if live is not None and record is not None:
            self.file_ids = FileIds(
                live, workspace.allocate_epoch, owner=int(session_id, 16), older=frozen,
                own=record.own_ids, given=record.given_ids,
            )  # fmt: skip
        clock = SystemClock()
        sees_writers = live is not None and spec.sees_writers
        self.services = Services(
            clock=clock, file_ids=self.file_ids, live=live,
            writers=Writers(ProcessTable(), clock.now_ns) if sees_writers else None,
        )  # fmt: skip
        self.overlay = overlay
        self.chain = LayerChain(
            overlay, self.services, self.durability, self.blocking,
            local=local, record=record, file_ids=self.file_ids,
        )  # fmt: skip
        self.fs = FileSystem(overlay, self.services, disk=spec.state_dir, sync=self.durability.sync)

    @property
    def is_read_only(self) -> bool:
        """Whether this is a view without a session."""
        return self.chain.is_read_only

    def resolve(self, rev: str) -> tuple[Ref, Commit]:
        """Return the commit that a revision names, as seen from here: HEAD is the session's newest;
        blocking.

        Raises:
            NotFoundError, UsageError: As Workspace.resolve.
        """
        if self.base is not None and re.fullmatch(r"HEAD(?:[~^].*)?", rev):
            rev = self.base.id.hex() + rev.removeprefix("HEAD")
        return self.workspace.resolve(rev)

    def find_stored(self, object_id: bytes) -> Locator | None:
        """Return where a chunk lies that was uploaded ahead of the commit, or None."""
        return None if self.early is None else self.early.find(object_id)

    def viewed(self, layers: Sequence[Layer] | None = None) -> AbstractContextManager[Pending]:
        """Look at the uncommitted changes as they are now; see LayerChain.viewed."""
        return self.chain.viewed(self.base_root, self.workspace.store, layers)

    async def fork(
        self,
        names: Sequence[str],
        *,
        owner: str,
        at: LocalCheckpoint | None = None,
        is_ephemeral: bool = False,
    ) -> list[ForkedSession]:
        """Begin sessions that stand where this one does now; no byte is copied. They survive power
        loss on return, with as much in them as was synced here. The caller holds `committing`.

        Args:
            names: What to call them; "" draws a name.
            owner: Who forks.
            at: Where they shall stand instead.
            is_ephemeral: Whether they shall be; the rest of their policy is that of this one.

        Raises:
            BusyError: There is a session of such a name; those before it were begun.
        """
        assert self.session is not None
        assert self.file_ids is not None
        ids = [self.file_ids.give() for _ in names]
        frozen = await self.chain.freeze_to_share(self.file_ids.mark)
        session = self.session
        if at is not None:
            frozen = replace(frozen, base=at.base, layers=at.layers, merge=at.merge)
            session = await self.blocking.job(partial(session_at, self.workspace, session, at.base))
        parent = ForkParent(
            self.workspace, self.spec.state_dir, self.name, session, is_ephemeral, self.chain.spares
        )
        made = await self.blocking.job(
            lambda: begin_forks(parent, frozen, list(zip(names, ids, strict=True)), owner=owner)
        )
        self.chain.want_spares()
        return made

    def is_unsaved(self) -> bool:
        """Tell whether there may be work that the store does not have."""
        merge = None if self.is_read_only else self.chain.record.merge
        return self.chain.has_live_changes() or not self.saved.is_all(self.overlay.frozen, merge)

    def has_news(self) -> bool:
        """Tell whether a commit would say anything that the head does not."""
        return self.chain.has_changes() or self.chain.record.merge is not None

    async def load_open_merge(self) -> OpenMerge:
        """Return what the next commit says of merges.

        Raises:
            IntegrityError, UnavailableError: It cannot be read.
        """
        session, state = self.session, self.chain.record.merge
        assert session is not None
        head = None if session.head is None else session.record.commit()
        if state is None and (head is None or head.notes is None):
            return NO_MERGE
        store = self.workspace.store
        return await self.blocking.job(partial(load_open_merge, head, state, store))

    @contextmanager
    def holding_writers(self) -> Iterator[Callable[[], None]]:
        """Let whatever changes files wait within the block; it yields what ends that before. No
        kernel lock may be asked for meanwhile: those that wait have some.
        """
        ended = threading.Event()
        self.services.hold(ended.wait)

        def go_on() -> None:
            if not ended.is_set():
                self.services.go_on(None if self.is_lost else self.chain.live)
                ended.set()

        try:
            yield go_on
        finally:
            go_on()

    @contextmanager
    def noting_unclear(self) -> Iterator[None]:
        """Remember a commit of which nobody knows whether it was made."""
        try:
            yield
        except UnavailableError as exc:
            self._is_unclear = exc.kind == "ref.unknown"
            raise

    async def settle(self, *, moved_by: str) -> None:
        """Find out what became of a commit or save that got no clear answer; without one, do
        nothing.

        Raises:
            UnavailableError: The store still does not say.
            MovedError: Somebody else moved the session's ref.
        """
        if self.saved.is_unclear and self.session is not None:
            known, saver = self.session, self.chain.record.saver
            self.session = await self.blocking.job(
                lambda: settle_saving(self.workspace, known, saver=saver)
            )
            self.saved.is_unclear = False
        if not self._is_unclear:
            return
        record, session = self.chain.record, self.session
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
        self.saved.forget()
        if committed is not None:
            self.session = committed.session
            self.base = committed.ref
            self.own_commits.add(CommitId(committed.ref.id))
            if self.early is not None:
                self.early.forget()
        self.base_root = sealed.root
        await self.chain.move_onto(sealed.entries, self.base)

    def stop_writing(self) -> None:
        """Let nothing be changed any more: the session goes on in another place."""
        self.is_lost = True
        self.services.live = None
        log.warning("session.lost", extra={"session": self.name})

    @contextmanager
    def noting_loss(self) -> Iterator[None]:
        """Stop writing when it turns out, within the block, that the session goes on elsewhere."""
        try:
            yield
        except MovedError as exc:
            if exc.kind == "session.moved":
                self.stop_writing()
            raise

    async def _drop_lease(self) -> bool:
        """Give the session back; tell whether it is nobody's now, or not ours."""
        session, is_dropped = self.session, False
        if session is None or self.is_lost or session.session.lease is None:
            return True
        with trio.move_on_after(_LAST_WORD_S):
            try:
                has_work = self.is_unsaved()
                await self.blocking.errand(
                    lambda: drop_lease(self.workspace, session, has_work=has_work)
                )
                is_dropped = True
            except WorkspaceError as exc:
                # It stays ours, and is in nobody's way here.
                log.info("session.lease_kept", extra={"kind": exc.kind, "reason": str(exc)})
        return is_dropped

    async def close(self) -> None:
        """Make everything durable and let go of it; nothing may be served any more."""
        if not await self._drop_lease():
            # Whoever still has the lease is known by what is here: it goes with the next pause.
            self.chain.keep_at_close()
        await self.chain.close()
