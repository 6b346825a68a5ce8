"""Clocks that tests turn by hand."""

from __future__ import annotations

from workspacefs.backend.retry import RetryPolicy


class TurnedClock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        """Return its time."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Turn it on."""
        self.slept.append(seconds)
        self.now_s += seconds

    def policy(
        self,
        *,
        share: float = 1.0,
        deadline_s: float = 60.0,
        base_s: float = 0.1,
        cap_s: float = 5.0,
        attempts: int | None = None,
    ) -> RetryPolicy:
        """Return limits that are counted by this clock."""
        return RetryPolicy(
            deadline_s,
            base_s,
            cap_s,
            attempts,
            sleep=self.sleep,
            monotonic=self.monotonic,
            random=lambda: share,
        )
