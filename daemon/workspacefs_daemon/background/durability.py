"""Making the live layer survive power loss: on fsync, and every few seconds."""

from __future__ import annotations

import logging
from typing import Final

import trio

from workspacefs.errors import NoSpaceError
from workspacefs.layers.journal import Journal
from workspacefs.layers.layer import Layer
from workspacefs_daemon.background.hops import Blocking

log = logging.getLogger(__name__)

SYNC_PERIOD_S: Final = 5.0
"""Longest time that finished work stays at the mercy of a power cut without any fsync."""


class Durability:
    """Syncs one layer. Concurrent callers share the sync that begins after they asked."""

    def __init__(self, layer: Layer, journal: Journal, blocking: Blocking) -> None:
        self._layer = layer
        self._journal = journal
        self._blocking = blocking
        self._running = trio.Lock()
        self._begun = 0
        self._done = 0

    async def sync(self) -> None:
        """Make everything that was done before this call survive power loss.

        Raises:
            NoSpaceError: The disk is full; nothing is lost, and the next sync tries again.
        """
        wanted = self._begun + 1
        async with self._running:
            if self._done >= wanted:
                return  # one that began after our call has ended
            self._begun += 1
            this = self._begun
            # No await between these two: what is taken is one instant.
            pending = self._journal.prepare()
            try:
                await self._blocking.sync(lambda: self._journal.write(pending))
            except BaseException:
                self._journal.restore(pending)
                raise
            self._layer.bury(pending.doomed)
            self._done = this

    async def run(self) -> None:
        """Sync every SYNC_PERIOD_S while there is something to sync; runs until cancelled."""
        while True:
            await trio.sleep(SYNC_PERIOD_S)
            if not (self._layer.dirty_keys or self._layer.segment_is_dirty or self._layer.doomed):
                continue
            try:
                await self.sync()
                self._layer.ensure_ballast()
            except NoSpaceError:
                log.warning("durability.disk_full", extra={"layer": self._layer.number})
