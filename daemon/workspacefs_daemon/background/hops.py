"""The one door from the event loop to threads: whatever may block for more than 200 µs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import trio

from workspacefs.latency import LatencyHistogram

T = TypeVar("T")

_SYNC_THREADS: Final = 1
_JOB_THREADS: Final = 4
_ERRAND_THREADS: Final = 4


class Blocking:
    """Runs blocking calls on threads, each kind with a limit of its own.

    `on_suspend` is called before every hop: whoever serves requests on this loop lets the next
    reader go on (see bindings/fuse/spin.py).
    """

    def __init__(self, *, load_threads: int = 8) -> None:
        self.on_suspend: Callable[[], None] = _nothing
        self.hops_under_way = 0
        self.load_waits = LatencyHistogram()
        """How long file operations waited for reads from the store or the disk."""
        self._loads = trio.CapacityLimiter(load_threads)
        self._syncs = trio.CapacityLimiter(_SYNC_THREADS)
        self._jobs = trio.CapacityLimiter(_JOB_THREADS)
        self._errands = trio.CapacityLimiter(_ERRAND_THREADS)

    async def load(self, call: Callable[[], T]) -> T:
        """Run a read from the store or the disk that a file operation waits for."""
        began = time.perf_counter()
        try:
            return await self._hop(call, self._loads)
        finally:
            self.load_waits.add(time.perf_counter() - began)

    async def sync(self, call: Callable[[], T]) -> T:
        """Run one step of making layers durable; one at a time."""
        return await self._hop(call, self._syncs)

    async def job(self, call: Callable[[], T]) -> T:
        """Run long work: a status, a commit."""
        return await self._hop(call, self._jobs)

    async def errand(self, call: Callable[[], T]) -> T:
        """Run something that nobody need wait for: cancelled, it is left to itself."""
        return await trio.to_thread.run_sync(call, limiter=self._errands, abandon_on_cancel=True)

    async def _hop(self, call: Callable[[], T], limiter: trio.CapacityLimiter) -> T:
        self.hops_under_way += 1
        self.on_suspend()
        try:
            return await trio.to_thread.run_sync(call, limiter=limiter)
        finally:
            self.hops_under_way -= 1


def _nothing() -> None:
    return None
