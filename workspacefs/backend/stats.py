"""What a store was asked and how it answered: counts for people, and whether it answers now.

This module must not know any store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from workspacefs.latency import BUCKETS_S, LatencyHistogram

OPERATIONS: Final = ("get", "put", "put_if", "list", "head", "delete", "multipart")
_AWAY_AFTER: Final = 2


class _Counts:
    """Counts of one operation; the lock of RequestStats guards them."""

    __slots__ = ("bytes_in", "bytes_out", "errors", "latency", "requests", "retries")

    def __init__(self) -> None:
        self.requests = 0
        self.errors = 0
        self.retries = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.latency = LatencyHistogram()

    def document(self) -> dict[str, object]:
        return {
            "requests": self.requests,
            "errors": self.errors,
            "retries": self.retries,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "latency": self.latency.document(),
        }


class RequestStats:
    """Counts of the requests of one process to a store. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {operation: _Counts() for operation in OPERATIONS}

    def count(
        self,
        operation: str,
        *,
        seconds: float,
        is_error: bool = False,
        bytes_in: int = 0,
        bytes_out: int = 0,
    ) -> None:
        """Count one request that has ended.

        Args:
            operation: One of OPERATIONS.
            seconds: From its begin to its answer's first byte, or to its failure.
            is_error: It failed; "absent" and "changed since" are answers, not errors.
            bytes_in: Bytes of values received; those that come later: `count_bytes_in`.
            bytes_out: Bytes of values sent.
        """
        with self._lock:
            counts = self._counts[operation]
            counts.requests += 1
            counts.errors += is_error
            counts.bytes_in += bytes_in
            counts.bytes_out += bytes_out
            counts.latency.add(seconds)

    def count_retry(self, operation: str) -> None:
        """Count that a request will be sent again."""
        with self._lock:
            self._counts[operation].retries += 1

    def count_bytes_in(self, operation: str, size_bytes: int) -> None:
        """Count bytes of values that came after the request was counted."""
        with self._lock:
            self._counts[operation].bytes_in += size_bytes

    def document(self) -> dict[str, object]:
        """Return everything, for JSON: one member an operation, and the bounds of the buckets."""
        with self._lock:
            operations: Mapping[str, object] = {
                operation: counts.document() for operation, counts in self._counts.items()
            }
        return {"bucket_bounds_s": list(BUCKETS_S), "operations": operations}


class StoreHealth:
    """Whether a store answers: "away" after two failures in a row. Thread-safe.

    Args:
        monotonic: A clock that never goes back, s.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._failures = 0
        self._since: float | None = None
        self._reason: str | None = None

    @property
    def is_away(self) -> bool:
        """True: it has not answered the last two or more requests."""
        return self._failures >= _AWAY_AFTER

    def note_ok(self) -> None:
        """Take note that the store answered, whatever it said."""
        if not self._failures:
            return  # the usual case, without the lock: a failure noted meanwhile stays noted
        with self._lock:
            self._failures = 0
            self._since = None
            self._reason = None

    def note_failure(self, reason: str) -> None:
        """Take note that a request was not answered, or with a failure of the store's own.

        Args:
            reason: Why, for people; without ids or secrets.
        """
        with self._lock:
            if not self._failures:
                self._since = self._monotonic()
            self._failures += 1
            self._reason = reason

    def document(self) -> dict[str, object]:
        """Return the state, for JSON.

        Members: state ("ok", "away"), since_s (seconds since the first of the failures, or None),
        reason, retries (failures in a row).
        """
        with self._lock:
            away = self._failures >= _AWAY_AFTER
            since_s = None
            if away and self._since is not None:
                since_s = round(self._monotonic() - self._since, 3)
            return {
                "state": "away" if away else "ok",
                "since_s": since_s,
                "reason": self._reason,
                "retries": self._failures,
            }
