"""How long things take: a histogram of fixed buckets, cheap enough for every request."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BUCKETS_S: Final[tuple[float, ...]] = tuple(0.001 * 2.0**power for power in range(17))
"""Upper bounds, 1 ms to 65.5 s; one more bucket has what took longer."""


class LatencyHistogram:
    """Counts durations. Not thread-safe."""

    __slots__ = ("buckets", "sum_s")

    def __init__(self) -> None:
        self.sum_s = 0.0
        self.buckets = [0] * (len(BUCKETS_S) + 1)

    def add(self, seconds: float) -> None:
        """Count one."""
        self.sum_s += seconds
        self.buckets[bisect_left(BUCKETS_S, seconds)] += 1

    def document(self) -> dict[str, object]:
        """Return everything, for JSON: sum_s, buckets, and p50_s, p90_s, p99_s (None: no data)."""
        return {
            "sum_s": round(self.sum_s, 6),
            "buckets": list(self.buckets),
            "p50_s": self._quantile_s(0.50),
            "p90_s": self._quantile_s(0.90),
            "p99_s": self._quantile_s(0.99),
        }

    def _quantile_s(self, quantile: float) -> float | None:
        """Return an estimate: linear within the bucket that it falls into."""
        total = sum(self.buckets)
        if not total:
            return None
        rank, below = quantile * total, 0
        lower = 0.0
        for number, count in enumerate(self.buckets):
            if below + count >= rank:
                if number == len(BUCKETS_S):
                    break
                within = (rank - below) / count if count else 0.0
                return round(lower + (BUCKETS_S[number] - lower) * within, 6)
            below += count
            lower = BUCKETS_S[min(number, len(BUCKETS_S) - 1)]
        return BUCKETS_S[-1]
