"""One mounted view: its workspace, its layers, its file system. Opens, freezes, rebases, closes.

This module knows no FUSE; session.py binds it to a mountpoint, and ops.py to the control socket.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import trio

from workspacefs.clock import SystemClock
from workspacefs.errors import BusyError, RefusedError, WorkspaceError
from workspacefs.ids import CommitId
from workspacefs.layers.journal import Journal, mark_clean, recover
from workspacefs.layers.layer import Layer
from workspacefs.layers.rebase import is_in, rebase_rows, rebased_content
from workspacefs.objects.entry import Entry
from workspacefs.objects.refs import Ref
from workspacefs.refs import RefRecord
from workspacefs.workspace.commit import Committed
from workspacefs.workspace.local import LocalRecord, LocalSession
from workspacefs.workspace.pending import Pending, entries_in
from workspacefs.workspace.seal import Sealed
from workspacefs.workspace.sessions import OpenSession, open_session, root_of
from workspacefs.workspace.workspace import Workspace
from workspacefs_daemon.background.durability import Durability
from workspacefs_daemon.background.hops import Blocking
from workspacefs_daemon.identity import default_session_names, owner_name
from workspacefs_daemon.spec import SessionSpec
from workspacefs_daemon.vfs.filesystem import FileSystem
from workspacefs_daemon.vfs.overlay import Overlay
from workspacefs_daemon.vfs.residency import Resident
from workspacefs_daemon.vfs.services import FileIds, Services

log = logging.getLogger(__name__)

_CACHE_BYTES: Final = 16 << 20
"""The kernel caches what is read; ours only bridges neighbouring small files in one frame."""


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
    ) -> None:
        """Bring the pieces together; `layers` come eldest first, the last one is live."""
        self.spec = spec
        self.workspace = workspace
        self.name = name
        self.session_id = session_id
        self.base = base
        self.base_root = root
        self.session = session
        self.blocking = Blocking()
        self.durability = Durability(self.blocking)
        self.committing = trio.Lock()
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
        overlay = Overlay(root, live=live, frozen=frozen, resident=resident)
        self._file_ids = None if live is None else FileIds(live, workspace.allocate_epoch)
        self._services = Services(clock=SystemClock(), file_ids=self._file_ids, live=live)
        self.overlay = overlay
        self.fs = FileSystem(
            overlay, self._services, disk=spec.state_dir, sync=self.durability.sync
        )

    @property
    def is_read_only(self) -> bool:
        """Whether this is a view without a session."""
        return self._local is None

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
            lambda: _open_layer(local.layer_directory(number), number)
        )
        # The record goes first: from the switch on, the new layer holds what nothing else does.
        await self.blocking.job(lambda: local.save(record))
        # No await from here on: the switch is one instant for every request.
        self._record = record
        assert self._file_ids is not None
        self._file_ids.move_to(layer)
        self.overlay.frozen.insert(0, old)
        self.overlay.live = layer
        self._services.live = layer
        self.durability.add(layer, journal)

    def note_sealing(self, commit_id: CommitId) -> None:
        """Write down that the session's ref is about to move to `commit_id`; on a thread."""
        assert self._record is not None
        assert self._local is not None
        self._record = replace(
            self._record, sealing=commit_id, sealed_layers=self._record.layers[:-1]
        )
        self._local.save(self._record)

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


def open_mounted(spec: SessionSpec) -> Mounted:
    """Open what `spec` asks for: a session, begun or resumed, or a read-only view.

    Raises:
        WorkspaceError: As workspace, session and layers tell.
    """
    workspace = Workspace.open(spec.store_url, cache_bytes=_CACHE_BYTES)
    if spec.read_only:
        ref, commit = workspace.resolve(spec.at_rev or spec.branch)
        return Mounted(
            spec, workspace, name=f"@{spec.at_rev or spec.branch}",
            session_id=secrets.token_hex(8), root=commit.root, base=ref,
            local=None, record=None, session=None, layers=[],
        )  # fmt: skip
    name, local = _lock_session(spec, workspace)
    try:
        session, _ = open_session(workspace, name, branch=spec.branch, owner=owner_name())
        record = _local_record(local, session, name)
        local.sweep_layers(record)
        local.check_layers(record)
        layers = [_open_layer(local.layer_directory(n), n) for n in record.layers]
        root = root_of(
            workspace, record.base, created_ns=session.session.created_ns,
            uid=os.geteuid(), gid=os.getegid(),
        )  # fmt: skip
        if record.sealing is not None:
            record, root = _finish_commit(workspace, local, session, record, root, layers)
        return Mounted(
            spec, workspace, name=name, session_id=session.session.session_id, root=root,
            base=record.base, local=local, record=record, session=session, layers=layers,
        )  # fmt: skip
    except BaseException:
        local.close()
        raise


def _lock_session(spec: SessionSpec, workspace: Workspace) -> tuple[str, LocalSession]:
    sessions_dir = Path(spec.state_dir) / "sessions"
    if spec.session_name is not None:
        return spec.session_name, LocalSession.lock(sessions_dir, workspace.id, spec.session_name)
    return _first_free(default_session_names(spec.state_dir), sessions_dir, workspace.id)


def _first_free(
    names: Iterator[str], sessions_dir: Path, workspace_id: str
) -> tuple[str, LocalSession]:
    while True:
        name = next(names)
        try:
            return name, LocalSession.lock(sessions_dir, workspace_id, name)
        except BusyError:
            continue


def _local_record(local: LocalSession, session: OpenSession, name: str) -> LocalRecord:
    """Return what this machine has of a session; begin with the session's head if nothing."""
    found = local.load()
    head = session.head
    if found is not None and found.session_id != session.session.session_id:
        kept = local.set_aside(found.session_id)
        log.warning("session.set_aside", extra={"session": name, "kept": str(kept)})
        found = None
    if found is None:
        if local.has_layers():
            kept = local.set_aside(secrets.token_hex(8))
            log.warning("session.set_aside", extra={"session": name, "kept": str(kept)})
        record = LocalRecord(
            session_id=session.session.session_id, base=head, layers=(0,), next_layer=1
        )
        recover(local.layer_directory(0), boot_id=_boot_id())
        local.save(record)
        return record
    base_id = None if found.base is None else found.base.id
    if session.record.commit_id in (base_id, found.sealing):
        return found
    raise RefusedError(
        f"session {name} has gone on in another place (it is at "
        f"{_short(session.record)} there, at {base_id.hex()[:12] if base_id else 'nothing'} here), "
        f"and the work that is not committed here, kept in {local.directory}, does not build on "
        "that. Mount with another --session",
        kind="session.diverged",
        session=name,
    )


def _short(record: RefRecord) -> str:
    return record.commit_id.hex()[:12] if record.commit_id else "nothing"


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text()


def _open_layer(directory: Path, number: int) -> tuple[Layer, Journal]:
    recovery = recover(directory, boot_id=_boot_id())
    if recovery.lost_power:
        log.warning(
            "layer.recovered",
            extra={"layer": str(directory), "torn_bytes": recovery.torn_bytes},
        )
    layer = Layer(directory, number=number)
    if not recovery.journal_is_complete:
        layer.sweep_own_files()
        layer.distrust_bodies()
    layer.ensure_ballast()
    return layer, Journal(layer, is_complete=recovery.journal_is_complete)


def _finish_commit(
    workspace: Workspace,
    local: LocalSession,
    session: OpenSession,
    record: LocalRecord,
    root: Entry,
    layers: list[tuple[Layer, Journal]],
) -> tuple[LocalRecord, Entry]:
    """Finish, or give up, the commit that a process was making when it died."""
    if session.record.commit_id != record.sealing:
        record = replace(record, sealing=None, sealed_layers=())
        local.save(record)
        return record, root
    head = session.head
    assert head is not None
    new_root = workspace.store.load_commit(head).root
    sealed = [pair for pair in layers if pair[0].number in record.sealed_layers]
    snapshots = [layer.snapshot() for layer, _ in reversed(sealed)]
    numbered = {layer.number: layer for layer, _ in sealed}
    entries = entries_in(new_root, Pending(root, snapshots, numbered, workspace.store))
    for snapshot in snapshots:
        snapshot.close()
    for layer, journal in layers:
        if layer.number not in numbered:
            for _ in rebase_rows(layer, entries, numbered):
                pass
            # Durable before the record says that the sealed layers are gone.
            pending = journal.prepare()
            journal.write(pending)
            layer.bury(pending.doomed)
    kept = tuple(number for number in record.layers if number not in numbered)
    record = replace(record, base=head, layers=kept, sealing=None, sealed_layers=())
    local.save(record)
    for pair in sealed:
        layers.remove(pair)
        pair[1].close()
        pair[0].close()
        local.remove_layer(pair[0].number)
    log.info("commit.finished", extra={"commit": head.id.hex()})
    return record, new_root
