"""A store in memory that says it is far away, and notes what is asked of it, when and by whom.

Nothing is timed. That requests are under way at the same time is proven by having them wait for
each other: with `together`, none of them is answered before all have come.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from workspacefs.backend.contract import KeyInfo, Version
from workspacefs.backend.memory import MemoryBackend

T = TypeVar("T")

_PATIENCE_S = 20.0
"""After that, requests that should have come together have not."""


@dataclass(slots=True)
class Request:
    """One request; `began` and `ended` are places in the one order of all beginnings and ends."""

    verb: str
    key: str
    thread: int
    began: int
    ended: int = -1
    length: int = 0
    """Bytes asked for, of a read of a range; bytes sent, of a put."""

    @property
    def kind(self) -> str:
        """Verb and first part of the key, such as "put packs"."""
        return f"{self.verb} {self.key.partition('/')[0]}"


class RecordingBackend:
    """Passes everything on to a memory backend."""

    def __init__(self, *, is_local: bool = False) -> None:
        self.inner = MemoryBackend(secrets.token_hex(8))
        self.url = self.inner.url
        self.is_local = is_local
        self.requests: list[Request] = []
        self.most_at_once = 0
        self._lock = threading.Lock()
        self._ticks = 0
        self._under_way = 0
        self._meetings: dict[str, deque[threading.Barrier]] = {}

    @contextmanager
    def together(self, *rounds: Sequence[str]) -> Iterator[None]:
        """Have the next requests of these kinds meet: those of a round are answered when all of
        them have come. On leaving, all rounds must have taken place.
        """
        for kinds in rounds:
            barrier = threading.Barrier(len(kinds), timeout=_PATIENCE_S)
            for kind in kinds:
                self._meetings.setdefault(kind, deque()).append(barrier)
        try:
            yield
            missed = [kind for kind, barriers in self._meetings.items() if barriers]
            assert not missed, f"not asked for often enough: {missed}"
        finally:
            self._meetings.clear()

    @contextmanager
    def recorded(self) -> Iterator[list[Request]]:
        """Give the requests made within the block, in the order of their beginnings."""
        first = len(self.requests)
        made: list[Request] = []
        yield made
        made += self.requests[first:]

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Answer a read. See Backend.get."""
        return self._do(
            "get", key, lambda: self.inner.get(key, offset=offset, length=length), length or 0
        )

    def get_versioned(self, key: str) -> tuple[bytes, Version]:
        """Answer a read. See Backend.get_versioned."""
        return self._do("get", key, lambda: self.inner.get_versioned(key))

    def size_bytes(self, key: str) -> int:
        """Return the length of a value. See Backend.size_bytes."""
        return self._do("head", key, lambda: self.inner.size_bytes(key))

    def put(self, key: str, parts: Sequence[bytes | memoryview]) -> None:
        """Store under a key never used. See Backend.put."""
        self._do("put", key, lambda: self.inner.put(key, parts), sum(map(len, parts)))

    def put_if_absent(self, key: str, data: bytes) -> Version | None:
        """Store unless a value is there. See Backend.put_if_absent."""
        return self._do("swap", key, lambda: self.inner.put_if_absent(key, data))

    def put_if_version(self, key: str, data: bytes, version: Version) -> Version | None:
        """Replace just the value of that token. See Backend.put_if_version."""
        return self._do("swap", key, lambda: self.inner.put_if_version(key, data, version))

    def iter_keys(self, prefix: str, *, start_after: str = "") -> Iterator[KeyInfo]:
        """Yield keys in ascending order. See Backend.iter_keys."""
        return iter(
            self._do(
                "list", prefix, lambda: list(self.inner.iter_keys(prefix, start_after=start_after))
            )
        )

    def delete(self, key: str) -> None:
        """Remove a value if it is there. See Backend.delete."""
        self._do("delete", key, lambda: self.inner.delete(key))

    def delete_if_version(self, key: str, version: Version) -> bool:
        """Remove just the value of that token. See Backend.delete_if_version."""
        return self._do("delete", key, lambda: self.inner.delete_if_version(key, version))

    def free_bytes(self) -> tuple[int, int] | None:
        """Return None: nothing is known of the disk."""
        return None

    def forget_local(self, key: str, *, offset: int, length: int) -> None:
        """Do nothing: there are no copies."""

    def is_near(self, key: str, *, offset: int, length: int) -> bool:
        """Tell what is_local tells."""
        return self.is_local

    def find_near(self, key: str, *, offset: int, length: int) -> bytes | None:
        """Return None: nothing is on this machine, unless all is."""
        return self.inner.find_near(key, offset=offset, length=length) if self.is_local else None

    def _do(self, verb: str, key: str, call: Callable[[], T], length: int = 0) -> T:
        with self._lock:
            request = Request(verb, key, threading.get_ident(), self._tick(), length=length)
            self.requests.append(request)
            self._under_way += 1
            self.most_at_once = max(self.most_at_once, self._under_way)
            barriers = self._meetings.get(request.kind)
            meeting = barriers.popleft() if barriers else None
        try:
            if meeting is not None:
                meeting.wait()
            return call()
        finally:
            with self._lock:
                request.ended = self._tick()
                self._under_way -= 1

    def _tick(self) -> int:
        self._ticks += 1
        return self._ticks


def kinds_of(requests: Sequence[Request]) -> list[str]:
    """Return the kinds of requests, sorted: their order within a round is anybody's."""
    return sorted(request.kind for request in requests)


def is_after(later: Request, earlier: Sequence[Request]) -> bool:
    """Tell whether a request began when all of `earlier` had ended."""
    return all(later.began > request.ended >= 0 for request in earlier)
