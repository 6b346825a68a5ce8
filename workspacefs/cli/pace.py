"""How long to wait between two looks at a store."""

from __future__ import annotations

from typing import Final

SHORTEST_S: Final = 0.5
LONGEST_S: Final = 5.0
_GROWTH: Final = 1.5


class Pace:
    """Short waits while things happen, longer ones when nothing does.

    Args:
        interval_s: Always wait so long, seconds; None: between 0.5 and 5.
    """

    def __init__(self, interval_s: float | None) -> None:
        self._interval_s = interval_s
        self._wait_s = SHORTEST_S

    def next_wait_s(self, *, is_quiet: bool) -> float:
        """Return how long to wait now, seconds; `is_quiet`: nothing had happened."""
        if self._interval_s is not None:
            return self._interval_s
        self._wait_s = min(LONGEST_S, self._wait_s * _GROWTH) if is_quiet else SHORTEST_S
        return self._wait_s
