"""A cache of bounded memory that several threads may use."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Keeps the values used last, up to `limit_bytes` of what they are said to cost."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, key: K) -> V | None:
        """Return the value of `key`, or None."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
        return found[0]

    def add(self, key: K, value: V, cost_bytes: int) -> None:
        """Keep a value, unless it alone exceeds the limit; evicts those used longest ago."""
        if cost_bytes > self._limit_bytes:
            return
        with self._lock:
            before = self._values.pop(key, None)
            if before is not None:
                self._held_bytes -= before[1]
            self._values[key] = (value, cost_bytes)
            self._held_bytes += cost_bytes
            while self._held_bytes > self._limit_bytes:
                _, (_, cost) = self._values.popitem(last=False)
                self._held_bytes -= cost

    def drop(self, key: K) -> None:
        """Forget a value."""
        with self._lock:
            found = self._values.pop(key, None)
            if found is not None:
                self._held_bytes -= found[1]

    def clear(self) -> None:
        """Forget all values."""
        with self._lock:
            self._values.clear()
            self._held_bytes = 0
