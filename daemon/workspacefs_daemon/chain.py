"""The chain of layers of a mounted session: frozen, flattened, moved onto a commit, let go.

What is on disk (the record of workspace/local.py) and what is in memory (the overlay) change
together here. This module must not know commits, refs or the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

import trio

from workspacefs.errors import WorkspaceError
from workspacefs.ids import CommitId, FileId
from workspacefs.layers.bodies import BodyContent, content_from_desc
from workspacefs.layers.flatten import layers_to_merge, size_of_layer
from workspacefs.layers.journal import Journal, mark_clean, settle
from workspacefs.layers.layer import Layer
from workspacefs.layers.rebase import is_in, rebase_rows, rebased_content
from workspacefs.objects.entry import Entry
from workspacefs.objects.refs import Ref
from workspacefs.workspace.local import LocalSession
from workspacefs.workspace.local_record import (
    IdMark,
    LocalCheckpoint,
    LocalRecord,
    MergeState,
)
from workspacefs.workspace.pending import Pending, PendingSource
from workspacefs_daemon.background.durability import Durability
from workspacefs_daemon.background.hops import Blocking
from workspacefs_daemon.layer_steps import (
    begin_live,
    finder,
    has_changes,
    iter_file_ids,
    merge,
)
from workspacefs_daemon.retired_layers import RetiredLayers
from workspacefs_daemon.spares import SpareLayers
from workspacefs_daemon.vfs.overlay import Overlay
from workspacefs_daemon.vfs.services import FileIds, Services

log = logging.getLogger(__name__)

T = TypeVar("T")

_DEPTH_MAX: Final = 32
"""A chain of more layers is flattened before another one comes on top."""
_DEEP: Final = 8
"""A chain of more is flattened when there is time."""


@dataclass(frozen=True, slots=True)
class Upper:
    """What comes into a chain."""

    settled: Collection[int]
    """Numbers of frozen layers that stand on any boot."""
    live: Layer
    journal: Journal


class LayerChain:
    """The layers under one mount. All but viewed() is for a session, not for a read-only view.

    Only one of freeze, flatten, move_onto and let_go may be under way: the caller locks.
    """

    def __init__(
        self,
        overlay: Overlay,
        services: Services,
        durability: Durability,
        blocking: Blocking,
        *,
        local: LocalSession | None,
        record: LocalRecord | None,
        file_ids: FileIds | None,
    ) -> None:
        self._overlay = overlay
        self._services = services
        self._durability = durability
        self._blocking = blocking
        self._local = local
        self._record = record
        self._file_ids = file_ids
        self._unsettled: list[Layer] = []
        """Committed, while the record on disk still names them."""
        self.retired = RetiredLayers(overlay, durability, blocking, local)
        self._deepened = trio.Event()
        self._forgets = False
        self._spares = None if local is None else SpareLayers(local)
        self._spares_wanted = trio.Event()

    @property
    def is_read_only(self) -> bool:
        """Whether this is a view without a session."""
        return self._local is None

    @property
    def record(self) -> LocalRecord:
        """What session.json says, or is about to."""
        assert self._record is not None
        return self._record

    @property
    def local(self) -> LocalSession:
        """The session's home on this machine."""
        assert self._local is not None
        return self._local

    @property
    def live(self) -> Layer:
        """The layer that changes go to."""
        assert self._overlay.live is not None
        return self._overlay.live

    def has_changes(self) -> bool:
        """Tell whether any layer has a row that could be a change."""
        return any(map(has_changes, self._overlay.layers.values()))

    def has_live_changes(self) -> bool:
        """Tell whether the live layer has a row that could be a change."""
        return self._overlay.live is not None and has_changes(self._overlay.live)

    @contextmanager
    def viewed(
        self, root: Entry, source: PendingSource, layers: Sequence[Layer] | None = None
    ) -> Iterator[Pending]:
        """Look at the uncommitted changes as they are now, from any thread, within the block.

        Args:
            root: Of the base.
            source: Gives its objects.
            layers: Newest first; None: all.
        """
        if layers is None:
            live = self._overlay.live
            layers = [*([] if live is None else [live]), *self._overlay.frozen]
        snapshots = [layer.snapshot() for layer in layers]
        numbered = self._overlay.layers  # a body may lie in one that is not looked at
        with self.retired.viewing():
            for layer in layers:
                layer.readers += 1
            try:
                yield Pending(root, snapshots, numbered, source)
            finally:
                for snapshot in snapshots:
                    snapshot.close()
                for layer in layers:
                    layer.readers -= 1

    # -- freezing --------------------------------------------------------------------------

    async def freeze(self) -> None:
        """Freeze the live layer and put a new one on top."""
        await self.let_go()
        assert self._file_ids is not None
        old = self.live
        # The record goes first: from the switch on, the new layer holds what nothing else does.
        record, (layer, journal) = await self._blocking.job(
            partial(begin_live, self.local, self.record, self.spares)
        )
        # No await from here on: the switch is one instant for every request.
        self._record = record
        self._file_ids.move_to(layer)
        self._overlay.frozen.insert(0, old)
        self._overlay.put_live(layer)
        if self._services.live is not None:  # else nothing may be changed any more
            self._services.live = layer
        self._durability.add(layer, journal)
        old.drop_ballast()  # nothing is deleted in a frozen layer
        self.want_spares()
        if len(self._overlay.frozen) > _DEEP:
            self._deepened.set()

    @property
    def spares(self) -> SpareLayers:
        """Layers for the next freezes and forks."""
        assert self._spares is not None
        return self._spares

    def want_spares(self) -> None:
        """Have keep_spares() make some: there was a freeze or fork, or there will be one."""
        self._spares_wanted.set()

    def want_spares_if_changed(self) -> None:
        """Do that for a session that is worked in. One that is idle has none."""
        if self.has_live_changes() and not self.spares.are_full():
            self.want_spares()

    async def keep_spares(self) -> None:
        """Make spare layers whenever they are wanted; runs until cancelled."""
        while True:
            await self._spares_wanted.wait()
            self._spares_wanted = trio.Event()
            try:
                await self._blocking.job(self.spares.fill)
            except WorkspaceError as exc:
                log.info("layers.no_spares", extra={"kind": exc.kind, "reason": str(exc)})

    async def bound_depth(self, *, spare: int = 0) -> None:
        """Flatten, if not that many layers and one more may come on top."""
        if len(self._overlay.frozen) + spare >= _DEPTH_MAX:
            await self.flatten()

    async def freeze_changes(self) -> None:
        """Freeze the live layer, if it has changes."""
        await self.bound_depth()
        if has_changes(self.live):
            await self.freeze()

    async def freeze_to_share(self, given: IdMark) -> LocalRecord:
        """Freeze the live layer if it has changes; return the record of the frozen layers alone,
        for others that shall stand on them. On return it is on disk that file ids up to `given`
        are in use.
        """
        await self.bound_depth()
        await self.let_go()
        self._record = replace(self.record, given_ids=given)
        if has_changes(self.live):
            await self.freeze()
        else:
            await self._blocking.job(partial(self.local.save, self.record))
        frozen = self.record.layers[:-1]
        return replace(self.record, layers=frozen, sealing=None, sealed_layers=())

    async def checkpoint(
        self, name: str, message: str, *, created_ns: int, is_automatic: bool = False
    ) -> LocalCheckpoint:
        """Remember the state of this moment under a name that is free; it survives power loss on
        return, with as much in it as was synced.
        """
        await self.bound_depth()
        await self.let_go()
        is_changed = has_changes(self.live)
        made = LocalCheckpoint(
            name=name,
            message=message,
            created_ns=created_ns,
            base=self.record.base,
            layers=self.record.layers if is_changed else self.record.layers[:-1],
            is_automatic=is_automatic,
            merge=self.record.merge,
        )
        before, record = self.record, self.record.with_checkpoint(made)
        if is_changed:
            # One write says both that the layer is frozen and that the checkpoint needs it.
            self._record = record
            try:
                await self.freeze()
            except BaseException:
                self._record = before
                raise
        else:
            await self._blocking.job(partial(self.local.save, record))
            self._record = record
        await self.release_checkpoints(before)
        return made

    async def drop_checkpoint(self, checkpoint: LocalCheckpoint) -> None:
        """Forget a checkpoint, and delete what only it needed."""
        kept = tuple(one for one in self.record.checkpoints if one.name != checkpoint.name)
        before, record = self.record, replace(self.record, checkpoints=kept)
        await self._blocking.job(partial(self.local.save, record))
        self._record = record
        await self.release_checkpoints(before)

    async def release_checkpoints(self, before: LocalRecord) -> None:
        """Delete layers that only checkpoints needed which the record had before and has no more;
        what is open goes when it is closed.
        """
        kept, here = self.record.checkpoints, self.names_of_open()
        gone = [one for one in before.checkpoints if one not in kept]
        unused = [place for one in gone for place in one.layers if place.name not in here]
        if unused:
            await self._blocking.job(partial(self.local.pool.release, unused))

    async def note_merge(self, merge: MergeState) -> None:
        """Write down what is merged, or settled, that no commit says; durable on return."""
        await self.let_go()
        record = replace(self.record, merge=merge)
        await self._blocking.job(partial(self.local.save, record))
        self._record = record

    def note_sealing(self, commit_id: CommitId) -> None:
        """Write down that the session's ref is about to move to `commit_id`; on a thread."""
        sealed = tuple(place.number for place in self.record.layers[:-1])
        self._record = replace(self.record, sealing=commit_id, sealed_layers=sealed)
        self.local.save(self._record)

    # -- moving onto a commit --------------------------------------------------------------

    async def move_onto(self, entries: dict[FileId, Entry], base: Ref | None) -> None:
        """Put the live layer onto the commit that the frozen ones became, and drop those.

        Args:
            entries: What the commit has for each file that they had changed.
            base: The commit.
        """
        overlay, live = self._overlay, self.live
        frozen = list(overlay.frozen)
        numbers = {layer.number for layer in frozen}
        for _ in rebase_rows(live, entries.get, numbers):
            self._rebase_inodes(entries, numbers)
            await trio.lowlevel.checkpoint()
        # No await until the layers are out: no request may see one half of it.
        self._rebase_inodes(entries, numbers)
        for file_id in entries:
            inode = overlay.inodes.get(file_id)
            if inode is not None and inode.marked != live.number:
                inode.marked = -1
        overlay.frozen.clear()
        overlay.root.marked = live.number
        self._record = replace(self.record, base=base, merge=None)
        self._unsettled += frozen
        try:
            await self.let_go()
        except WorkspaceError as exc:
            # The commit is made. The record still says how to finish, and freeze() tries again.
            log.warning("commit.unsettled", extra={"kind": exc.kind, "reason": str(exc)})

    def _rebase_inodes(self, entries: dict[FileId, Entry], numbers: set[int]) -> None:
        for file_id, entry in entries.items():
            inode = self._overlay.inodes.get(file_id)
            if inode is not None:
                inode.content = rebased_content(
                    inode.content, entry.content, numbers, moves_base=True
                )

    async def let_go(self) -> None:
        """Let go of layers that a commit was made of, once the live one does without them."""
        if not self._unsettled:
            return
        live = self.live
        # What the rows of the live layer say now, they say of the new base: it must be durable
        # before the record tells of that.
        if self.record.sealing is None:
            await self._durability.sync()
        elif live.rows.has_rows(b"I"):
            await self._durability.sync_layer(live)
        numbers = {layer.number for layer in self._unsettled}
        record = self.record.without(numbers)
        await self._blocking.job(partial(self.local.save, record))
        self._record = record
        settled, self._unsettled = self._unsettled, []
        await self.retired.retire(settled)

    # -- flattening ------------------------------------------------------------------------

    async def wait_until_deep(self) -> None:
        """Return when flatten() should be called, if there is time."""
        await self._deepened.wait()
        self._deepened = trio.Event()

    async def flatten(self) -> None:
        """Make one layer of the newest frozen ones; what the mount shows does not change.

        Raises:
            NoSpaceError: The disk is full; the chain is as it was.
        """
        await self.let_go()
        overlay = self._overlay
        count = layers_to_merge([size_of_layer(layer) for layer in overlay.frozen])
        if count == 0:
            return
        merged = overlay.frozen[:count]
        target, record = await self._blocking.job(
            partial(merge, self.local, self.record, merged, overlay.layers)
        )
        # It is in the record now, above what it was made of: so rows may name it. From here on
        # whatever is looked up is found in it, and nothing new speaks of the others but what is
        # made of an inode that was known before.
        self._record = record
        overlay.frozen.insert(0, target)
        self._durability.add(target, None, is_settled=True)
        gone = {layer.number for layer in merged}
        for file_ids in iter_file_ids(target):
            for file_id in file_ids:
                self._rebase_inode(file_id, target, gone)
            await trio.lowlevel.checkpoint()
        for _ in rebase_rows(self.live, finder(target), gone):
            await trio.lowlevel.checkpoint()
        overlay.frozen[:] = [layer for layer in overlay.frozen if layer.number not in gone]
        await self._durability.sync_layer(self.live)
        kept = tuple(place for place in self.record.layers if place.number not in gone)
        record = replace(self.record, layers=kept)
        await self._blocking.job(partial(self.local.save, record))
        self._record = record
        await self.retired.retire(merged)
        log.info("layers.flattened", extra={"merged": len(merged), "layers": len(kept)})

    def _rebase_inode(self, file_id: FileId, target: Layer, gone: set[int]) -> None:
        inode = self._overlay.inodes.get(file_id)
        # A file without a name keeps what it has: no row says what that is.
        if inode is not None and inode.nlink and is_in(inode.content, gone):
            made = self._content_in(target, file_id)
            inode.content = rebased_content(inode.content, made, gone, moves_base=False)

    def _content_in(self, layer: Layer, file_id: FileId) -> BodyContent:
        row = finder(layer)(file_id)
        assert row is not None
        return content_from_desc(row.content, file_id, self._overlay.layers)

    # -- going over to another state -------------------------------------------------------

    def find_open(self, number: int) -> Layer | None:
        """Return a layer that is open in this process, also when only an open file reads it: no
        layer may be opened twice.
        """
        return self._overlay.layers.get(number) or self.retired.find(number)

    def names_of_open(self) -> set[str]:
        """Return the names of all layers that are open for the chain; no record need name them."""
        layers = (*self._overlay.layers.values(), *self.retired.all())
        return {layer.directory.name for layer in layers} | self.spares.names()

    def go_over(self, record: LocalRecord, upper: Upper, apply: Callable[[], T]) -> T:
        """Have the mount stand on other frozen layers, with a new live one; not interrupted, this
        is one instant. What it stood on until then is let go of by retired.retire_left().

        Args:
            record: As it is on disk already.
            upper: What was made for this.
            apply: Changes the overlay, and puts all layers there.
        """
        assert self._file_ids is not None
        before = self._overlay.layers
        self._record = record
        self._file_ids.move_to(upper.live)
        answer = apply()
        if self._services.live is not None:  # else nothing may be changed any more
            self._services.live = upper.live
        for layer in reversed(self._overlay.frozen):
            if layer.number not in before:
                self._durability.add(layer, None, is_settled=layer.number in upper.settled)
        self._durability.add(upper.live, upper.journal)
        now = self._overlay.layers
        self.retired.take_back(set(now))
        self.retired.leave([layer for number, layer in before.items() if number not in now])
        if len(self._overlay.frozen) > _DEEP:
            self._deepened.set()
        return answer

    # -- the end ---------------------------------------------------------------------------

    def forget_at_close(self) -> None:
        """Have close() delete the session from this machine: all of it is in the store."""
        self._forgets = True

    def keep_at_close(self) -> None:
        """Have close() keep the session here after all."""
        self._forgets = False

    async def close(self) -> None:
        """Make everything durable and let go of it; nothing may be served any more."""
        if self._local is None:
            return
        await self._blocking.job(self.spares.drop)
        if self._forgets:
            for layer in (*self._overlay.layers.values(), *self.retired.all()):
                layer.close()
            await self._blocking.job(partial(self._local.forget, self.record))
            self._local.close()
            return
        await self._durability.sync()
        await self.retired.close()
        live = self.live
        for layer in self._overlay.layers.values():
            await self._blocking.sync(partial(mark_clean if layer is live else settle, layer))
            await self._durability.remove(layer)
            layer.close()
        self._local.close()
