"""Making layers survive power loss: on fsync, and every few seconds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import trio

from workspacefs.errors import NoSpaceError, WorkspaceError
from workspacefs.layers.journal import Journal, PendingSync, settle
from workspacefs.layers.layer import Layer
from workspacefs_daemon.background.hops import Blocking

log = logging.getLogger(__name__)

SYNC_PERIOD_S: Final = 5.0
"""Longest time that finished work stays at the mercy of a power cut without any fsync."""


class Durability:
    """Syncs the layers of a session. Callers at the same time share one sync."""

    def __init__(self, blocking: Blocking) -> None:
        self._blocking = blocking
        self._journals: dict[Layer, Journal | None] = {}
        """The eldest first. None: frozen by another process; it has to be settled."""
        self._settled: set[Layer] = set()
        self._running = trio.Lock()
        self._begun = 0
        self._done = 0

    def add(self, layer: Layer, journal: Journal | None, *, is_settled: bool = False) -> None:
        """Sync this layer too from now on; the eldest is added first, the live one last. Without a
        journal it is a frozen one: see `settle`.
        """
        self._journals[layer] = journal
        if is_settled:
            self._settled.add(layer)

    async def remove(self, layer: Layer) -> None:
        """Sync this layer no more: what it held is in the store. It may be closed after that."""
        async with self._running:  # a sync on its thread still uses both
            journal = self._journals.pop(layer)
            self._settled.discard(layer)
            if journal is not None:
                journal.close()

    async def sync(self) -> None:
        """Make everything that was done before this call survive power loss.

        Raises:
            NoSpaceError: The disk is full; nothing is lost, and the next sync tries again.
        """
        wanted = self._begun + 1
        self._blocking.on_suspend()  # the lock may be a wait, and a long one
        async with self._running:
            if self._done >= wanted:
                return  # one that began after our call has ended
            self._begun += 1
            this = self._begun
            await self._sync(list(self._journals))
            self._done = this

    async def sync_layer(self, layer: Layer) -> None:
        """Make what was done in one layer survive power loss, whatever becomes of the others.

        Raises:
            NoSpaceError: The disk is full; nothing is lost, and the next sync tries again.
        """
        async with self._running:
            await self._sync([layer])

    async def _sync(self, layers: Sequence[Layer]) -> None:
        # No await until all are taken: what is taken is one instant.
        pendings = [
            (layer, journal, journal.prepare())
            for layer in layers
            if (journal := self._journals[layer]) is not None
            and (layer.is_dirty or not journal.is_complete)
        ]
        # The eldest first: rows of a layer speak of those beneath, and power may fail between.
        # Those without a journal lie beneath all that have one.
        try:
            for layer in layers:
                if self._journals[layer] is None and layer not in self._settled:
                    await self._blocking.sync(partial(settle, layer))
                    self._settled.add(layer)
        except BaseException:
            for _, journal, pending in pendings:
                journal.restore(pending)
            raise
        for at, (layer, journal, pending) in enumerate(pendings):
            try:
                await self._blocking.sync(partial(_write, layer, journal, pending))
            except BaseException:
                for _, other, left in pendings[at:]:
                    other.restore(left)
                raise

    def _live(self) -> list[Layer]:
        return [layer for layer, journal in self._journals.items() if journal is not None][-1:]

    def _is_behind(self) -> bool:
        return any(
            layer.is_dirty if journal is not None else layer not in self._settled
            for layer, journal in self._journals.items()
        )

    async def run(self, beside: Callable[[], None] | None = None) -> None:
        """Sync every SYNC_PERIOD_S while there is something to sync; runs until cancelled.

        Args:
            beside: Called as often.
        """
        while True:
            await trio.sleep(SYNC_PERIOD_S)
            if beside is not None:
                beside()
            try:
                if self._is_behind():
                    await self.sync()
                for layer in self._live():
                    layer.ensure_ballast()
            except NoSpaceError:
                log.warning("durability.disk_full")
            except WorkspaceError as exc:
                # Every fsync says so too; to end here would take the files away as well.
                log.error("durability.failed", extra={"kind": exc.kind, "reason": str(exc)})  # noqa: TRY400


def _write(layer: Layer, journal: Journal, pending: PendingSync) -> None:
    journal.write(pending)
    # Here too, as it takes a second for the files of a large directory that was removed.
    layer.bury(pending.doomed)
