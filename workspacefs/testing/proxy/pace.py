"""A rate that several connections share."""

from __future__ import annotations

import threading
import time
from typing import Final

_BURST_S: Final = 0.005
_PIECE_S: Final = 0.005
_LARGEST_PIECE_BYTES: Final = 64 * 1024


class Pace:
    """Lets so many bytes a second pass, of all who ask together; None: no limit."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self.bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    def piece_bytes(self, largest: int) -> int:
        """Return how much to ask for at a time, so that nobody waits long for a turn."""
        rate = self.bytes_per_s
        if rate is None:
            return largest
        return max(1, min(largest, _LARGEST_PIECE_BYTES, int(rate * _PIECE_S)))

    def wait(self, size_bytes: int) -> None:
        """Return when these bytes would have passed. Any thread may call it."""
        rate = self.bytes_per_s
        if rate is None:
            return
        with self._lock:
            # What a sleep overshoots is made up for, but an idle time gives no credit beyond that.
            now_s = time.monotonic()
            begin_s = max(self._free_at_s, now_s - _BURST_S)
            self._free_at_s = begin_s + size_bytes / rate
            wait_s = self._free_at_s - now_s
        if wait_s > 0:
            time.sleep(wait_s)
