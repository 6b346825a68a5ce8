"""Going back: a mount that is in use shows an earlier state, and what it showed is kept.

See docs/design/0007-restoring.md. The caller holds `Mounted.committing` all the time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from workspacefs.errors import RefusedError
from workspacefs.ids import FileId
from workspacefs.layers.journal import settle
from workspacefs.layers.layer import Layer
from workspacefs.layers.writers import rows_under_other_ids
from workspacefs.objects.entry import Entry
from workspacefs.workspace.changes import PathChange
from workspacefs.workspace.difference import Difference, State, find_difference, list_changes
from workspacefs.workspace.difftext import iter_patch
from workspacefs.workspace.layer_pool import LayerPlace
from workspacefs.workspace.local_record import LocalCheckpoint, LocalRecord, MergeState
from workspacefs.workspace.pending import Pending
from workspacefs_daemon.chain import Upper
from workspacefs_daemon.layer_steps import has_changes, places_of
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.restore_targets import EmptyLayer, Target, Targets, Wanted
from workspacefs_daemon.vfs.residency import NotResident
from workspacefs_daemon.vfs.switching import Notices, held_files, rows_of_fresh, switch

log = logging.getLogger(__name__)

TellKernel = Callable[[Notices], None]

_FEW_ROWS: Final = 500
"""As many changes, made while the difference was found, are looked at with nobody served."""
_ROUNDS_MAX: Final = 5


class Overtaken(Exception):  # a signal, not an error
    """Something was changed meanwhile, so nothing has happened; do it again with what is now."""


class Safety(NamedTuple):
    """What the checkpoint of the state until then is called."""

    name: str
    """Free."""
    message: str


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


class Restoring:
    """Restores of one mount."""

    def __init__(self, mounted: Mounted, tell_kernel: TellKernel) -> None:
        """Restore `mounted`; `tell_kernel` has the kernel forget what it was told, and blocks."""
        self._mounted = mounted
        self._tell_kernel = tell_kernel
        self._targets = Targets(mounted)

    async def go_to(
        self,
        wanted: Wanted,
        safety: Safety,
        *,
        merge: MergeState | None = None,
        made_beneath: Layer | None = None,
        before_telling: Callable[[], None] = lambda: None,
    ) -> Restored:
        """Show another state from now on, also to whoever has seen the one until then. It survives
        power loss on return, and so does the state until then, as a checkpoint, with as much in it
        as was synced.

        Args:
            wanted: A checkpoint over the same base, or the root of any tree; or one that was made
                of what the mount shows.
            safety: What to call the checkpoint.
            merge: What is merged in the wanted state, for the session's next commit.
            made_beneath: The live layer when the wanted state was made of all beneath it. None:
                what the mount shows until then need not be in it.
            before_telling: Called when the mount has gone over, before the kernel hears of it.

        Raises:
            Overtaken: Something was changed since the wanted state was made.
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
        pool, before = chain.local.pool, chain.record
        target, made = Target(), list[EmptyLayer]()
        try:
            with ExitStack() as held:
                await blocking.job(partial(held.enter_context, pool.holding()))
                await blocking.job(partial(self._targets.open, wanted, target))
                difference = await self._find_difference(target)
                made.append(await blocking.job(self._targets.begin_layer))
                # No await from here on: nobody is served until the mount has gone over.
                if made_beneath is not None and (
                    made_beneath is not chain.live or chain.has_live_changes()
                ):
                    raise Overtaken
                restored = self._go_over(target, made, difference, safety, merge)
                before_telling()
        except BaseException:
            for one in made:
                one.close()
            target.close()
            unused = [one.place for one in made] + places_of(target.opened)
            await blocking.job(partial(pool.release, unused))
            raise
        # First of all that may fail: until then programs see what the kernel remembers.
        await blocking.job(partial(self._tell_kernel, restored.notices))
        await chain.release_checkpoints(before)
        await chain.retired.retire_left()
        log.info(
            "session.restored",
            extra={
                "session": mounted.name,
                "safety": safety.name,
                "files": len(restored.difference.places),
                "layers": len(overlay.frozen),
            },
        )
        return restored

    async def changes_since(self, wanted: LocalCheckpoint | Entry) -> tuple[list[PathChange], str]:
        """Return what has changed since another state, and the same as a patch."""
        mounted, target = self._mounted, Target()
        pool = mounted.chain.local.pool
        try:
            with ExitStack() as held:
                await mounted.blocking.job(partial(held.enter_context, pool.holding()))
                await mounted.blocking.job(partial(self._targets.open, wanted, target))
                layers = [mounted.chain.live, *mounted.overlay.frozen]
                held.enter_context(mounted.viewed(layers))  # so that none is closed meanwhile
                numbered = {layer.number: layer for layer in (*layers, *target.layers)}
                common = {one.number for one in layers} & {one.number for one in target.layers}
                before = held.enter_context(self._state(target.layers, numbered, common))
                after = held.enter_context(self._state(layers, numbered, common))
                return await mounted.blocking.job(partial(_changes, before, after))
        finally:
            target.close()
            await mounted.blocking.job(partial(pool.release, places_of(target.opened)))

    async def _find_difference(self, target: Target) -> Difference:
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

    def _go_over(
        self,
        target: Target,
        made: list[EmptyLayer],
        difference: Difference,
        safety: Safety,
        merge: MergeState | None,
    ) -> Restored:
        mounted = self._mounted
        chain, overlay = mounted.chain, mounted.overlay
        if has_changes(chain.live):
            difference.add(self._compare_live(target))
        live = made[0]
        if mounted.fs.namespace.top_id in difference.gone:
            raise RefusedError(
                f"what was to be restored has no directory {mounted.spec.subpath}, which is all "
                "that this mount shows; mount the session without --subpath for that",
                kind="restore.subpath",
            )
        fresh = {file_id: self._fresh_id() for file_id, _ in held_files(overlay, difference)}
        frozen = list(target.layers)
        if fresh:
            top = self._targets.begin_layer()
            made.append(top)
            top.layer.drop_ballast()
            writers = rows_under_other_ids([layer.rows for layer in target.layers], fresh)
            top.layer.rows.commit([*rows_of_fresh(difference, fresh), *writers])
            settle(top.layer)
            frozen.insert(0, top.layer)
            target.settled.add(top.layer.number)
        record, checkpoint = self._record(frozen, live.place, safety, merge)
        file_ids = mounted.file_ids
        assert file_ids is not None
        file_ids.write_mark(live.layer)  # again as it goes over; but now a full disk does no harm
        chain.local.save(record)
        notices = self._show(record, target, live, frozen, difference, fresh)
        if fresh:
            top.journal.close()
        return Restored(checkpoint, notices, difference, target.layers, frozen, len(fresh))

    def _show(
        self,
        record: LocalRecord,
        target: Target,
        live: EmptyLayer,
        frozen: Sequence[Layer],
        difference: Difference,
        fresh: Mapping[FileId, FileId],
    ) -> Notices:
        chain, overlay = self._mounted.chain, self._mounted.overlay
        numbered = {layer.number: layer for layer in (*frozen, *self._all_open())}
        try:
            with self._state(frozen, numbered, ()) as state:
                root = state.all.root_file()
            return chain.go_over(
                record,
                Upper(target.settled, live.layer, live.journal),
                lambda: switch(overlay, difference, frozen, live.layer, root, fresh),
            )
        except BaseException:
            # On disk the session has gone over, in memory perhaps half of it. What begins anew
            # shows it whole; to go on could show anything.
            log.exception("restore.half_way")
            logging.shutdown()
            os._exit(1)

    def _compare_live(self, target: Target) -> Difference:
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

    def _record(
        self,
        frozen: Sequence[Layer],
        live: LayerPlace,
        safety: Safety,
        merge: MergeState | None,
    ) -> tuple[LocalRecord, LocalCheckpoint]:
        mounted = self._mounted
        chain, file_ids = mounted.chain, mounted.file_ids
        assert file_ids is not None
        record = chain.record
        is_changed = has_changes(chain.live)
        checkpoint = LocalCheckpoint(
            name=safety.name,
            message=safety.message,
            created_ns=mounted.workspace.clock.now_ns(),
            base=record.base,
            layers=record.layers if is_changed else record.layers[:-1],
            is_automatic=True,
            merge=record.merge,
        )
        places = (*places_of(list(reversed(frozen))), live)
        record = replace(
            record.with_checkpoint(checkpoint),
            merge=merge,
            layers=places,
            sealing=None,
            sealed_layers=(),
            given_ids=file_ids.mark,  # the layers beneath may say less
        )
        return record, checkpoint


def _changes(before: State, after: State) -> tuple[list[PathChange], str]:
    changes, content = list_changes(before, after)
    return changes, "".join(iter_patch(changes, content))
