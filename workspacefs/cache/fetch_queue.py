"""Ranges that are to be fetched, and in what order: demand before prefetch, else first come.

Not thread-safe: the fetcher's lock is held around each use.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import threading
from dataclasses import dataclass, field

from workspacefs.cache.block_file import BLOCK_BYTES
from workspacefs.errors import KeyAbsentError, WorkspaceError


class Priority(enum.IntEnum):
    """Who goes first."""

    DEMAND = 0
    """A program waits for it."""
    AHEAD = 1
    """It lies behind what a program reads."""
    PREFETCH = 2
    """Somebody thinks that it will be wanted."""


@dataclass(slots=True, eq=False)
class _Place:
    """A place in the queue. A fetch that gets a better one leaves the old one empty."""

    fetch: Fetch | None


@dataclass(slots=True, eq=False)
class Fetch:
    """A range of a value, queued or under way."""

    key: str
    first: int
    end: int
    priority: Priority
    mark: int | None
    changed: threading.Condition
    pieces: list[bytes] = field(default_factory=list)
    received_bytes: int = 0
    place: _Place | None = None
    """Where it waits; None: it was begun."""
    is_kept: bool = True
    """False: bytes of it turned out to be wrong, so no more of it goes to disk."""
    writing: threading.Lock = field(default_factory=threading.Lock)
    """Held while a piece is written to disk, and `is_kept` looked at for it."""
    is_done: bool = False
    error: WorkspaceError | KeyAbsentError | None = None

    def has(self, end_offset: int) -> bool:
        """Tell whether all bytes up to `end_offset` have come, or no more will."""
        start = self.first * BLOCK_BYTES
        return self.is_done or start + self.received_bytes >= min(
            end_offset, self.end * BLOCK_BYTES
        )


@dataclass(slots=True)
class FetchCounts:
    """What the fetcher did so far."""

    hits: int = 0
    misses: int = 0
    joined: int = 0
    """Misses of these that found their range under way for someone else."""
    ranges: int = 0
    demand_bytes: int = 0
    ahead_bytes: int = 0
    """Fetched without being asked for; counted when they come."""
    dropped: int = 0
    """Ranges ahead that were given up because the queue was full."""


class FetchQueue:
    """Ranges that nobody has begun to fetch."""

    def __init__(self) -> None:
        self._places: list[tuple[int, int, _Place]] = []
        self._fetches = 0
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return self._fetches

    def place(self, fetch: Fetch) -> None:
        """Queue a fetch by its priority; one that is queued leaves its old place."""
        if fetch.place is None:
            self._fetches += 1
        else:
            fetch.place.fetch = None
        fetch.place = _Place(fetch)
        heapq.heappush(self._places, (fetch.priority, next(self._numbers), fetch.place))

    def next(self, *, only_demand: bool) -> Fetch | None:
        """Take out the fetch whose turn it is, or None."""
        while self._places:
            priority, _, place = self._places[0]
            fetch = place.fetch
            if fetch is not None and only_demand and priority != Priority.DEMAND:
                return None
            heapq.heappop(self._places)
            if fetch is not None:
                fetch.place = None
                self._fetches -= 1
                return fetch
        return None
