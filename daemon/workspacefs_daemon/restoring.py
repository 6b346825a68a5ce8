"""Going back: a mount that is in use shows an earlier state, and what it showed is kept.

See docs/design/0007-restoring.md. The caller holds `Mounted.committing` all the time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Final

from workspacefs.errors import IntegrityError, RefusedError
from workspacefs.ids import FileId
from workspacefs.layers.journal import Journal, settle
from workspacefs.layers.layer import Layer
from workspacefs.objects.entry import Entry
from workspacefs.objects.refs import Ref
from workspacefs.workspace.changes import PathChange
from workspacefs.workspace.difference import Difference, State, find_difference, list_changes
from workspacefs.workspace.difftext import iter_patch
from workspacefs.workspace.layer_pool import LayerPlace
from workspacefs.workspace.local import LocalCheckpoint, LocalRecord
from workspacefs.workspace.pending import Pending
from workspacefs.workspace.saving import store_work
from workspacefs.workspace.seal import SealedContents
from workspacefs.workspace.tree_rows import rows_between
from workspacefs_daemon.chain import Upper
from workspacefs_daemon.layer_steps import has_changes, places_of
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.publishing import own_provenance
from workspacefs_daemon.recovery import open_frozen_layer, open_layer
from workspacefs_daemon.vfs.residency import NotResident
from workspacefs_daemon.vfs.switching import Notices, held_files, rows_of_fresh, switch

log = logging.getLogger(__name__)

_BATCH_ROWS: Final = 2000
_FEW_ROWS: Final = 500
"""As many changes, made while the difference was found, are looked at with nobody served."""
_ROUNDS_MAX: Final = 5
_AUTOMATIC_MAX: Final = 16
"""So many steps back can be undone."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What was done."""

    safety: LocalCheckpoint
    """What the mount showed until then."""
    notices: Notices
    """What the kernel has to be told."""
    difference: Difference
    wanted: list[Layer]
    """Of the state that was gone back to, the newest first."""
    frozen: list[Layer]
    """What the mount stands on now, the newest first."""
    kept_open: int
    """Files that are open as they were before, and that have other content now."""


@dataclass(slots=True)
class _Target:
    """Layers of the state that is gone back to, the newest first."""

    layers: list[Layer] = field(default_factory=list)
    opened: list[Layer] = field(default_factory=list)
    """Those of them that were opened for this."""
    settled: set[int] = field(default_factory=set)
    """Numbers of those that stand on any boot."""


@dataclass(frozen=True, slots=True)
class _Fresh:
    """Layers with nothing in them."""

    place: LayerPlace
    layer: Layer
    journal: Journal

    def close(self) -> None:
        self.journal.close()
        self.layer.close()


class Restoring:
    """Restores of one mount."""

    def __init__(self, mounted: Mounted) -> None:
        self._mounted = mounted

    async def go_to(
        self, wanted: LocalCheckpoint | Entry, *, safety_name: str, safety_message: str
    ) -> Restored:
        """Show another state from now on; it survives power loss on return, and so does the state
        until then, as a checkpoint, with as much in it as was synced.

        Args:
            wanted: A checkpoint over the same base, or the root of any tree.
            safety_name: Of the checkpoint, free.
            safety_message: Its message.

        Raises:
            IntegrityError: A layer or an object of the wanted state is missing or damaged.
            RefusedError: It does not have the directory that is mounted.
            NoSpaceError: The disk is full.
            UnavailableError: The store does not answer.
            In all cases: nothing has changed.
        """
        mounted = self._mounted
        blocking, chain, overlay = mounted.blocking, mounted.chain, mounted.overlay
        await chain.bound_depth(spare=_ROUNDS_MAX)
        await chain.let_go()
        pool = chain.local.pool
        target, made = _Target(), list[_Fresh]()
        unused: list[LayerPlace] = []
        try:
            with ExitStack() as held:
                await blocking.job(partial(held.enter_context, pool.holding()))
                await blocking.job(partial(self._open, wanted, target))
                difference = await self._find_difference(target)
                made.append(await blocking.job(self._begin_layer))
                unused += self._old_safeties()
                # No await from here on: nobody is served until the mount has gone over.
                restored = self._go_over(target, made, difference, safety_name, safety_message)
        except BaseException:
            for one in made:
                one.close()
            for layer in target.opened:
                layer.close()
            raise
        finally:
            # Those that the record names stay.
            unused += [one.place for one in made] + places_of(target.opened)
            await blocking.job(partial(pool.release, unused))
        await chain.retire_left()
        log.info(
            "session.restored",
            extra={
                "session": mounted.name,
                "safety": safety_name,
                "files": len(restored.difference.places),
                "layers": len(overlay.frozen),
            },
        )
        return restored

    async def changes_since(self, wanted: LocalCheckpoint | Entry) -> tuple[list[PathChange], str]:
        """Return what has changed since another state, and the same as a patch."""
        mounted, target = self._mounted, _Target()
        pool = mounted.chain.local.pool
        try:
            with ExitStack() as held:
                await mounted.blocking.job(partial(held.enter_context, pool.holding()))
                await mounted.blocking.job(partial(self._open, wanted, target))
                layers = [mounted.chain.live, *mounted.overlay.frozen]
                held.enter_context(mounted.viewed(layers))  # so that none is closed meanwhile
                numbered = {layer.number: layer for layer in (*layers, *target.layers)}
                common = {one.number for one in layers} & {one.number for one in target.layers}
                before = held.enter_context(self._state(target.layers, numbered, common))
                after = held.enter_context(self._state(layers, numbered, common))
                return await mounted.blocking.job(partial(_changes, before, after))
        finally:
            for layer in target.opened:
                layer.close()
            await mounted.blocking.job(partial(pool.release, places_of(target.opened)))

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
        mounted, target = self._mounted, _Target()
        session, source = mounted.session, mounted.workspace.store
        assert session is not None
        try:
            self._open(checkpoint, target)
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
            for layer in target.opened:
                layer.close()
        if work is None:
            return base_root
        return source.load_commit(Ref(work.commit_id, work.locator)).root

    # -- before ----------------------------------------------------------------------------

    def _open(self, wanted: LocalCheckpoint | Entry, target: _Target) -> None:
        if isinstance(wanted, LocalCheckpoint):
            for place in reversed(wanted.layers):
                target.layers.append(self._open_place(place, target))
        else:
            self._fill(wanted, target)

    def _open_place(self, place: LayerPlace, target: _Target) -> Layer:
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

    def _fill(self, root: Entry, target: _Target) -> None:
        mounted = self._mounted
        made = self._begin_layer()
        target.layers.append(made.layer)
        target.opened.append(made.layer)
        target.settled.add(made.layer.number)
        made.journal.close()
        made.layer.drop_ballast()
        rows = rows_between(mounted.base_root, root, mounted.workspace.store)
        while batch := list(islice(rows, _BATCH_ROWS)):
            made.layer.rows.commit(batch)
        settle(made.layer)

    def _begin_layer(self) -> _Fresh:
        local = self._mounted.chain.local
        place = local.pool.new_place(local.owner)
        layer, journal = open_layer(local.layer_directory(place), place.number)
        return _Fresh(place, layer, journal)

    async def _find_difference(self, target: _Target) -> Difference:
        """Return what differs from the frozen layers; only a few changes lie above them."""
        mounted = self._mounted
        for _ in range(_ROUNDS_MAX):
            if mounted.chain.has_live_changes():
                await mounted.chain.freeze()
            frozen = list(mounted.overlay.frozen)
            with mounted.viewed(frozen):  # so that none is closed meanwhile
                difference = await mounted.blocking.job(
                    partial(self._compare, frozen, target.layers)
                )
            if mounted.chain.live.rows.count() < _FEW_ROWS:
                break
        return difference

    def _compare(self, old: Sequence[Layer], new: Sequence[Layer]) -> Difference:
        numbered = {layer.number: layer for layer in (*old, *new, *self._all_open())}
        common = {layer.number for layer in old} & {layer.number for layer in new}
        with (
            self._state(old, numbered, common) as before,
            self._state(new, numbered, common) as after,
        ):
            return find_difference(before, after)

    def _all_open(self) -> Collection[Layer]:
        return self._mounted.overlay.layers.values()

    @contextmanager
    def _state(
        self, layers: Sequence[Layer], numbered: dict[int, Layer], common: Collection[int]
    ) -> Iterator[State]:
        mounted = self._mounted
        root, source = mounted.base_root, mounted.workspace.store
        snapshots = [layer.snapshot() for layer in layers]
        own = [
            snapshot
            for layer, snapshot in zip(layers, snapshots, strict=True)
            if layer.number not in common
        ]
        try:
            yield State(
                Pending(root, snapshots, numbered, source), Pending(root, own, numbered, source)
            )
        finally:
            for snapshot in snapshots:
                snapshot.close()

    # -- the switch ------------------------------------------------------------------------

    def _go_over(
        self,
        target: _Target,
        made: list[_Fresh],
        difference: Difference,
        safety_name: str,
        safety_message: str,
    ) -> Restored:
        mounted = self._mounted
        chain, overlay = mounted.chain, mounted.overlay
        if has_changes(chain.live):
            difference.add(self._compare_live(target))
        (live,) = made
        if mounted.fs.namespace.top_id in difference.gone:
            raise RefusedError(
                f"what was to be restored has no directory {mounted.spec.subpath}, which is all "
                "that this mount shows; mount the session without --subpath for that",
                kind="restore.subpath",
            )
        fresh = {file_id: self._fresh_id() for file_id, _ in held_files(overlay, difference)}
        frozen = list(target.layers)
        if fresh:
            top = self._begin_layer()
            made.append(top)
            top.layer.drop_ballast()
            top.layer.rows.commit(rows_of_fresh(difference, fresh))
            settle(top.layer)
            frozen.insert(0, top.layer)
            target.settled.add(top.layer.number)
        record, safety = self._record(frozen, live.place, safety_name, safety_message)
        chain.local.save(record)
        numbered = {layer.number: layer for layer in (*frozen, *self._all_open())}
        with self._state(frozen, numbered, ()) as state:
            root = state.all.root_file()
        notices = chain.go_over(
            record,
            Upper(target.settled, live.layer, live.journal),
            lambda: switch(overlay, difference, frozen, live.layer, root, fresh),
        )
        if fresh:
            top.journal.close()
        return Restored(safety, notices, difference, target.layers, frozen, len(fresh))

    def _compare_live(self, target: _Target) -> Difference:
        chain, overlay = self._mounted.chain, self._mounted.overlay
        old = [chain.live, *overlay.frozen]
        numbered = {layer.number: layer for layer in (*old, *target.layers)}
        beneath = {layer.number for layer in (*overlay.frozen, *target.layers)}
        with (
            self._state(old, numbered, beneath) as before,
            self._state(target.layers, numbered, beneath) as after,
        ):
            return find_difference(before, after)

    def _fresh_id(self) -> FileId:
        file_ids = self._mounted.file_ids
        assert file_ids is not None
        while True:
            try:
                return file_ids.next_id()
            except NotResident as missing:
                missing.load()

    def _old_safeties(self) -> list[LayerPlace]:
        checkpoints = self._mounted.chain.record.checkpoints
        kept = _without_old(checkpoints)
        return [place for one in checkpoints if one not in kept for place in one.layers]

    def _record(
        self, frozen: Sequence[Layer], live: LayerPlace, name: str, message: str
    ) -> tuple[LocalRecord, LocalCheckpoint]:
        mounted = self._mounted
        chain, file_ids = mounted.chain, mounted.file_ids
        assert file_ids is not None
        record = chain.record
        is_changed = has_changes(chain.live)
        safety = LocalCheckpoint(
            name=name,
            message=message,
            created_ns=mounted.workspace.clock.now_ns(),
            base=record.base,
            layers=record.layers if is_changed else record.layers[:-1],
            is_automatic=True,
        )
        places = (*places_of(list(reversed(frozen))), live)
        return (
            replace(
                record,
                layers=places,
                checkpoints=(*_without_old(record.checkpoints), safety),
                given_ids=file_ids.mark,  # the new live layer does not say it yet
            ),
            safety,
        )


def _changes(before: State, after: State) -> tuple[list[PathChange], str]:
    changes, content = list_changes(before, after)
    return changes, "".join(iter_patch(changes, content))


def _without_old(checkpoints: Sequence[LocalCheckpoint]) -> list[LocalCheckpoint]:
    """Leave out automatic checkpoints that are not among the latest: they take space."""
    automatic = [one for one in checkpoints if one.is_automatic]
    old = automatic[: max(0, len(automatic) + 1 - _AUTOMATIC_MAX)]
    return [one for one in checkpoints if one not in old]
