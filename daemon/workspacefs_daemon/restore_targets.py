"""What a restore goes back to, as layers over the base of a mount."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final, TypeAlias

from workspacefs.errors import IntegrityError
from workspacefs.layers.journal import Journal, settle
from workspacefs.layers.layer import Layer
from workspacefs.objects.entry import Entry
from workspacefs.objects.refs import Ref
from workspacefs.packs.reader import ObjectStore
from workspacefs.workspace.layer_pool import LayerPlace
from workspacefs.workspace.local_record import LocalCheckpoint
from workspacefs.workspace.pending import Pending
from workspacefs.workspace.saving import store_work
from workspacefs.workspace.seal import SealedContents
from workspacefs.workspace.tree_rows import rows_between, rows_over
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.publishing import own_provenance
from workspacefs_daemon.recovery import open_frozen_layer, open_layer

_BATCH_ROWS: Final = 2000


@dataclass(frozen=True, slots=True)
class OnTop:
    """A tree that was made of what the frozen layers show. Only what differs is touched: else every
    file that is open and not committed would be another one.
    """

    now: Entry
    """Root of what they show."""
    root: Entry


Wanted: TypeAlias = LocalCheckpoint | Entry | OnTop


@dataclass(slots=True)
class Target:
    """Layers of the state that is gone back to, the newest first."""

    layers: list[Layer] = field(default_factory=list)
    opened: list[Layer] = field(default_factory=list)
    """Those of them that were opened for this."""
    settled: set[int] = field(default_factory=set)
    """Numbers of those that stand on any boot."""

    def close(self) -> None:
        """Close what was opened for this."""
        for layer in self.opened:
            layer.close()


@dataclass(frozen=True, slots=True)
class EmptyLayer:
    """A layer with nothing in it."""

    place: LayerPlace
    layer: Layer
    journal: Journal

    def close(self) -> None:
        """Let go of it."""
        self.journal.close()
        self.layer.close()


class Targets:
    """Finds or makes the layers, for one mount."""

    def __init__(self, mounted: Mounted) -> None:
        self._mounted = mounted

    def open(self, wanted: Wanted, target: Target) -> None:
        """Open the layers of a checkpoint, or make one for a tree, over the mount's base; blocking.
        The caller keeps the pool from losing layers, and closes `target` also if this fails.

        Raises:
            IntegrityError: A layer or an object is missing or damaged.
            UnavailableError: The store does not answer.
            NoSpaceError: The disk is full.
        """
        if isinstance(wanted, LocalCheckpoint):
            for place in reversed(wanted.layers):
                target.layers.append(self._open_place(place, target))
        elif isinstance(wanted, OnTop):
            frozen = list(self._mounted.overlay.frozen)
            with ExitStack() as stack:
                snapshots = [stack.enter_context(layer.snapshot()) for layer in frozen]
                numbered = {layer.number: layer for layer in frozen}
                pending = Pending(self._mounted.base_root, snapshots, numbered, self._source)
                self._fill(rows_over(pending, wanted.now, wanted.root), target)
            target.layers += frozen
        else:
            self._fill(rows_between(self._mounted.base_root, wanted, self._source), target)

    @property
    def _source(self) -> ObjectStore:
        return self._mounted.workspace.store

    def _open_place(self, place: LayerPlace, target: Target) -> Layer:
        chain = self._mounted.chain
        known = chain.find_open(place.number)
        if known is not None:
            return known
        directory = chain.local.layer_directory(place)
        if not (directory / "boot").exists():
            raise IntegrityError(
                f"layer {directory} of the checkpoint is missing; nothing was restored",
                kind="layer.missing",
            )
        layer = open_frozen_layer(directory, place.number)
        target.opened.append(layer)
        return layer

    def _fill(self, rows: Iterator[tuple[bytes, bytes]], target: Target) -> None:
        made = self.begin_layer()
        target.layers.append(made.layer)
        target.opened.append(made.layer)
        target.settled.add(made.layer.number)
        made.journal.close()
        made.layer.drop_ballast()
        while batch := list(islice(rows, _BATCH_ROWS)):
            made.layer.rows.commit(batch)
        settle(made.layer)

    def begin_layer(self) -> EmptyLayer:
        """Make an empty layer; blocking. It survives power loss, and no record names it yet."""
        local, spares = self._mounted.chain.local, self._mounted.chain.spares
        place = spares.take(local)
        layer, journal = open_layer(local.layer_directory(place), place.number)
        return EmptyLayer(place, layer, journal)

    async def store(self, checkpoint: LocalCheckpoint, base_root: Entry) -> Entry:
        """Store a checkpoint, and return the root of its tree. No ref names it.

        Args:
            checkpoint: Any of the session's.
            base_root: Of the commit that it lies over.
        """
        mounted = self._mounted
        with mounted.viewed():  # so that none is closed meanwhile
            return await mounted.blocking.job(partial(self._store, checkpoint, base_root))

    def _store(self, checkpoint: LocalCheckpoint, base_root: Entry) -> Entry:
        mounted, target = self._mounted, Target()
        session, source = mounted.session, mounted.workspace.store
        assert session is not None
        try:
            self.open(checkpoint, target)
            numbered = {layer.number: layer for layer in target.layers}
            with ExitStack() as stack:
                snapshots = [stack.enter_context(one.snapshot()) for one in target.layers]
                work = store_work(
                    mounted.workspace,
                    session,
                    Pending(base_root, snapshots, numbered, source),
                    saver=mounted.chain.record.saver,
                    provenance=own_provenance(mounted),
                    contents=SealedContents(),
                    find_stored=mounted.find_stored,
                ).work
        finally:
            target.close()
        if work is None:
            return base_root
        return source.load_commit(Ref(work.commit_id, work.locator)).root
