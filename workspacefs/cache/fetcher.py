"""Getting what is missing: one queue, demand before prefetch, one download for all who wait.

A value is fetched in ranges of whole blocks, at most REQUEST_BLOCKS each, by a few threads. Who
waits for a range goes on as soon as its own bytes have come, not when the range is complete.

All of it is guarded by one lock, which is why it is one module, and a long one; what is on disk is
asked of values.py, what is queued of fetch_queue.py, how far to go of read_ahead.py.

Memory: at most `threads` ranges are under way, each held until it is done (64 MiB in all), plus
what is handed to those who asked.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from workspacefs.backend.contract import STORE_DENIED, RangeSource
from workspacefs.cache.block_file import BLOCK_BYTES, BlockFile, block_span
from workspacefs.cache.directory import CacheDirectory
from workspacefs.cache.evictor import Evictor
from workspacefs.cache.fetch_queue import Fetch, FetchCounts, FetchQueue, Priority
from workspacefs.cache.read_ahead import ReadAhead, Window, request_end, requests_of, without
from workspacefs.cache.values import CachedValues
from workspacefs.errors import IntegrityError, KeyAbsentError, UnavailableError, WorkspaceError

log = logging.getLogger(__name__)

THREADS: Final = 16
_PREFETCH_THREADS: Final = 12
_QUEUE_MAX: Final = 4096
_PAUSES_S: Final = (0.0, 0.05, 0.2, 0.5, 1.0)
"""Before a range is asked for again; the source has retried by itself."""
_PAUSE_S: Final = 1.0
"""Longest time that a prefetch under way holds still for demand."""


class Fetcher:
    """Reads values through the cache. Thread-safe; must not be used across a fork."""

    def __init__(
        self,
        source: RangeSource,
        directory: CacheDirectory,
        *,
        threads: int = THREADS,
        evictor: Evictor | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._source = source
        self._values = CachedValues(directory, evictor)
        self._threads_max = threads
        self._prefetch_max = max(1, min(_PREFETCH_THREADS, threads - 1))
        self._monotonic = monotonic
        self._sleep = sleep
        self.counts = FetchCounts()
        self._ahead = ReadAhead()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._quiet = threading.Condition(self._lock)
        self._queue = FetchQueue()
        self._under_way: dict[str, list[Fetch]] = {}
        self._demand_waiting = 0
        self._threads = 0
        self._idle_threads = 0
        self._prefetching = 0
        self._paused = 0
        self._is_closed = False

    # -- asking ------------------------------------------------------------------------------

    def read(
        self,
        key: str,
        offset: int,
        length: int,
        *,
        wait_s: float,
        priority: Priority = Priority.DEMAND,
        reads_ahead: bool = True,
    ) -> bytes:
        """Return exactly a range of a value.

        Raises:
            KeyAbsentError: There is no such value.
            IntegrityError: The value ends before the range does (kind "store.short").
            UnavailableError: The store did not give it within `wait_s`.
        """
        data = b"" if length == 0 else self.find(key, offset, length)
        with self._lock:
            self.counts.hits += data is not None
            self.counts.misses += data is None
        if data is not None:
            return data
        deadline = self._monotonic() + wait_s
        pauses_s = iter(_PAUSES_S)
        while True:
            fetches = self._plan(
                key, *block_span(offset, length), priority, reads_ahead=reads_ahead
            )
            with self._waiting(priority):
                error = self._await(fetches, offset + length, deadline)
            data = self.find(key, offset, length)
            if data is None:
                data = self._assembled(key, fetches, offset, length)
            if data is not None:
                return data
            if error is None and _end_before(fetches, offset + length):
                raise IntegrityError(
                    f"{key} ends before byte {offset + length}, which was expected in it",
                    kind="store.short",
                    key=key,
                )
            may_come = isinstance(error, UnavailableError) and error.kind != STORE_DENIED
            if error is not None and not may_come:
                raise error
            if not fetches and self.holds(key, offset, length):
                # The map tells of bytes that are not there: the file was cut short, or the value
                # ends before them. The store knows.
                self.forget(key, offset, length)
            # Tried again: the store is away, or what was on disk a moment ago was evicted.
            pause_s = next(pauses_s, _PAUSES_S[-1])
            if self._is_closed or self._monotonic() + pause_s >= deadline:
                raise error or _too_late(key)
            self._sleep(pause_s)

    def find(self, key: str, offset: int, length: int) -> bytes | None:
        """Return a range that is on disk, or None; asks nobody, but reads ahead at a mark."""
        found = self._values.read(key, offset, length)
        if found is None:
            return None
        if found.marked_block is not None:
            self.mark_met(key, found.marked_block)
        return found.data

    def prefetch(
        self, key: str, offset: int, length: int, *, priority: Priority = Priority.PREFETCH
    ) -> None:
        """Have a range fetched some time; says nothing of what became of it."""
        if not self._values.is_disk_bad:
            self._plan(key, *block_span(offset, length), priority)

    def mark_met(self, key: str, block: int) -> None:
        """Read on: somebody has read up to a marked block."""
        with self._lock:
            window = self._ahead.mark_met(key, block)
            self._values.clear_mark(key, block)
            if window is not None and not self._values.is_disk_bad:
                self._enqueue_window(key, window, Priority.AHEAD)

    def insert(self, key: str, data: bytes | memoryview) -> None:
        """Keep a whole value that was just stored; failing to is no error."""
        self._values.insert(key, data)

    def forget(self, key: str, offset: int, length: int) -> None:
        """A range on disk is wrong: the next read fetches it."""
        first, end = block_span(offset, length)
        with self._lock:
            self._values.forget(key, first, end)
            # Still coming, and what came of it may be what is wrong: nobody joins it.
            wrong = [
                fetch
                for fetch in self._under_way.get(key, ())
                if fetch.first < end
                and first < fetch.end
                and offset < fetch.first * BLOCK_BYTES + fetch.received_bytes
            ]
            for fetch in wrong:
                fetch.is_kept = False
        for fetch in wrong:
            with fetch.writing:
                pass  # it writes no more: nothing of it comes over what is fetched anew
            with self._lock:
                self._no_more_under_way(fetch)

    def holds(self, key: str, offset: int, length: int) -> bool:
        """Tell whether a range is on disk."""
        return self._values.holds(key, offset, length)

    def total_bytes(self, key: str) -> int:
        """Return the length of a value of which something is here; 0: not known."""
        return self._values.total_bytes(key)

    def remove(self, key: str) -> None:
        """Let go of a value that is no more."""
        self._values.remove(key)

    @property
    def uncached(self) -> int:
        """Times that something could not be kept on disk."""
        return self._values.uncached

    def queue_document(self) -> dict[str, int]:
        """Return how much is waiting and under way."""
        with self._lock:
            running = sum(
                fetch.place is None for some in self._under_way.values() for fetch in some
            )
            return {
                "queued": len(self._queue),
                "under_way": running,
                "waiting": self._demand_waiting,
                "paused": self._paused,
            }

    def close(self) -> None:
        """Let the threads end; who waits gets an error."""
        with self._lock:
            self._is_closed = True
            self._work.notify_all()
            self._quiet.notify_all()
            for some in self._under_way.values():
                for fetch in some:
                    fetch.changed.notify_all()

    # -- planning ----------------------------------------------------------------------------

    def _plan(
        self, key: str, first: int, end: int, priority: Priority, *, reads_ahead: bool = False
    ) -> list[Fetch]:
        """Return the fetches that bring what is missing; begin those that are new."""
        with self._lock:
            needed = [
                fetch
                for fetch in self._under_way.get(key, ())
                if fetch.is_kept and fetch.first < end and first < fetch.end
            ]
            for fetch in needed:
                self._promote(fetch, priority)
            # Looked at under the lock: what is no more under way is on disk.
            runs = self._runs(key, first, end)
            if not runs:
                self.counts.joined += bool(needed) and priority is Priority.DEMAND
                return needed
            if not reads_ahead or priority is not Priority.DEMAND or self._values.is_disk_bad:
                return needed + self._enqueue(key, runs, priority, None)
            window = self._ahead.miss(key, runs[0][0], runs[-1][1])
            stop = max(end, self._clipped(key, end, window.end))
            around = self._runs(key, min(first, window.first), stop)
            mark = window.place_mark(around, first, end)
            requests = [request for run in around for request in requests_of(run)]
            wanted = [one for one in requests if one[0] < end and first < one[1]]
            others = [one for one in requests if not (one[0] < end and first < one[1])]
            made = self._enqueue(key, wanted, priority, mark)
            self._enqueue(key, others, Priority.AHEAD, mark)
            return needed + made

    def _enqueue_window(self, key: str, window: Window, priority: Priority) -> None:
        runs = self._runs(key, window.first, self._clipped(key, window.first, window.end))
        edge = window.first if window.stream.is_forward else window.end
        mark = window.place_mark(runs, edge, edge)
        self._enqueue(key, runs, priority, mark)

    def _enqueue(
        self, key: str, runs: list[tuple[int, int]], priority: Priority, mark: int | None
    ) -> list[Fetch]:
        made: list[Fetch] = []
        for first, end in (request for run in runs for request in requests_of(run)):
            if priority is not Priority.DEMAND and len(self._queue) >= _QUEUE_MAX:
                self.counts.dropped += 1
                break
            fetch = Fetch(key, first, end, priority, mark, threading.Condition(self._lock))
            self._under_way.setdefault(key, []).append(fetch)
            self._queue.place(fetch)
            self._work.notify()
            made.append(fetch)
        while self._threads < self._threads_max and self._idle_threads < len(self._queue):
            try:
                threading.Thread(target=self._run, name="fetch", daemon=True).start()
            except RuntimeError:
                log.warning("fetch.no_thread", extra={"threads": self._threads})
                break
            self._threads += 1
            self._idle_threads += 1
        return made

    def _runs(self, key: str, first: int, end: int) -> list[tuple[int, int]]:
        """Return the runs of blocks that are neither on disk nor under way."""
        if first >= end:
            return []
        runs = self._values.missing_runs(key, first, end)
        for fetch in self._under_way.get(key, ()):
            runs = [part for run in runs for part in without(run, (fetch.first, fetch.end))]
        return runs

    def _promote(self, fetch: Fetch, priority: Priority) -> None:
        if priority < fetch.priority:
            fetch.priority = priority
            if fetch.place is not None:
                self._queue.place(fetch)
                self._work.notify()
            elif priority is Priority.DEMAND:
                self._quiet.notify_all()

    def _clipped(self, key: str, needed_end: int, end: int) -> int:
        """Return where a window ends: with the value, or while nobody knows, with the request."""
        total_bytes = self._values.total_bytes(key)
        if total_bytes:
            return min(end, block_span(0, total_bytes)[1])
        return min(end, request_end(max(needed_end - 1, 0)))

    # -- waiting -----------------------------------------------------------------------------

    @contextmanager
    def _waiting(self, priority: Priority) -> Iterator[None]:
        if priority is not Priority.DEMAND:
            yield
            return
        with self._lock:
            self._demand_waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._demand_waiting -= 1
                if self._demand_waiting == 0:
                    self._quiet.notify_all()

    def _await(
        self, fetches: list[Fetch], end_offset: int, deadline: float
    ) -> WorkspaceError | KeyAbsentError | None:
        with self._lock:
            for fetch in fetches:
                while not fetch.has(end_offset):
                    left_s = deadline - self._monotonic()
                    if left_s <= 0 or self._is_closed:
                        return _too_late(fetch.key)
                    fetch.changed.wait(left_s)
                if fetch.error is not None:
                    return fetch.error
        return None

    # -- fetching ----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._lock:
                while (fetch := self._next()) is None:
                    if self._is_closed:
                        return
                    self._work.wait()
                self._idle_threads -= 1
                is_prefetch = fetch.priority is not Priority.DEMAND
                self._prefetching += is_prefetch
            try:
                self._fetch(fetch)
            except (WorkspaceError, KeyAbsentError) as exc:
                fetch.error = exc
            except BaseException as exc:
                log.exception("fetch.bug")
                fetch.error = UnavailableError(f"{fetch.key} was not fetched: {exc}")
            with self._lock:
                self._idle_threads += 1
                self._prefetching -= is_prefetch
                fetch.is_done = True
                self._no_more_under_way(fetch)
                fetch.changed.notify_all()
                if self._queue:
                    self._work.notify()
                del fetch  # its pieces, which nobody may want any more

    def _next(self) -> Fetch | None:
        if self._is_closed:
            return None
        return self._queue.next(only_demand=self._prefetching >= self._prefetch_max)

    def _no_more_under_way(self, fetch: Fetch) -> None:
        some = self._under_way.get(fetch.key, [])
        if fetch in some:
            some.remove(fetch)
            if not some:
                del self._under_way[fetch.key]

    def _fetch(self, fetch: Fetch) -> None:
        start = fetch.first * BLOCK_BYTES
        answer = self._source.open_range(
            fetch.key, offset=start, length=fetch.end * BLOCK_BYTES - start
        )
        file = self._values.open(fetch.key, answer.total_bytes)
        expected = max(0, min(fetch.end * BLOCK_BYTES, answer.total_bytes) - start)
        present = fetch.first
        with self._lock:
            self.counts.ranges += 1
        try:
            for piece in answer.pieces:
                if file is not None and not self._written(fetch, file, piece):
                    file = None  # a full disk: it is handed out from memory all the same
                received = fetch.received_bytes + len(piece)
                is_last = received >= expected
                complete = fetch.end if is_last else (start + received) // BLOCK_BYTES
                with self._lock:
                    if self._is_closed:
                        raise _too_late(fetch.key)
                    # Under the lock: a block that is forgotten now must not be there in a moment.
                    if file is not None and fetch.is_kept and complete > present:
                        if not self._values.set_present(file, present, complete, fetch.mark):
                            file = None
                        present = complete
                    fetch.pieces.append(piece)
                    fetch.received_bytes = received
                    fetch.changed.notify_all()
                    if fetch.priority is Priority.DEMAND:
                        self.counts.demand_bytes += len(piece)
                    else:
                        self.counts.ahead_bytes += len(piece)
                        if self._demand_waiting:
                            self._paused += 1
                            self._quiet.wait(_PAUSE_S)
                            self._paused -= 1
        finally:
            answer.pieces.close()
            self._values.filled(fetch.received_bytes)

    def _written(self, fetch: Fetch, file: BlockFile, piece: bytes) -> bool:
        with fetch.writing:
            if not fetch.is_kept:
                return False
            return self._values.write(file, fetch.first * BLOCK_BYTES + fetch.received_bytes, piece)

    def _assembled(self, key: str, fetches: list[Fetch], offset: int, length: int) -> bytes | None:
        """Return a range out of what came and what was there, for when the disk could not take it.

        None: something is missing.
        """
        end = offset + length
        parts = []
        for fetch in sorted(fetches, key=lambda one: one.first):
            start = fetch.first * BLOCK_BYTES
            if offset < min(start, end):
                there = self.find(key, offset, min(start, end) - offset)
                if there is None:
                    return None
                parts.append(there)
                offset += len(there)
            if start <= offset < min(start + fetch.received_bytes, end):
                came = b"".join(fetch.pieces)[offset - start : end - start]
                parts.append(came)
                offset += len(came)
        if offset < end:
            there = self.find(key, offset, end - offset)
            if there is None:
                return None
            parts.append(there)
        return b"".join(parts)


def _end_before(fetches: list[Fetch], end_offset: int) -> bool:
    """Tell whether a range that came whole is too short, so that the value must be."""
    return any(
        fetch.is_done
        and fetch.error is None
        and fetch.first * BLOCK_BYTES + fetch.received_bytes
        < min(end_offset, fetch.end * BLOCK_BYTES)
        for fetch in fetches
    )


def _too_late(key: str) -> UnavailableError:
    return UnavailableError(
        f"the store has not sent {key} in time; what was asked for is not on this machine yet",
        kind="store.timeout",
        key=key,
    )
