"""The clock that objects are handed, so that tests can turn it by hand.

Wall time is for people and provenance; nothing is decided by comparing clocks of two machines.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time, ns since the epoch."""

    def now_ns(self) -> int:
        """Return wall time, ns since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ns(self) -> int:
        """Return wall time, ns since 1970-01-01 UTC."""
        return time.time_ns()
