"""Clocks that tests turn by hand."""

from __future__ import annotations

from workspacefs.backend.retry import RetryPolicy


class TurnedClock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds

    def policy(self, *, share: float = 1.0, **limits: float) -> RetryPolicy:
        return RetryPolicy(
            sleep=self.sleep, monotonic=self.monotonic, random=lambda: share, **limits
        )
