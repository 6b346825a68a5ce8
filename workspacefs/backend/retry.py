"""How long and how often something is tried again: a deadline, and waits with full jitter.

This module must not know what is tried.
Source: "Exponential Backoff And Jitter", AWS Architecture Blog (full jitter).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits for trying one operation again.

    Attributes:
        deadline_s: No try begins later than this after the first one began. A try that is under
            way then may still take as long as its own time-outs let it.
        base_s: The first wait is random, at most this; the most doubles with each wait.
        cap_s: Longest wait.
        attempts: Most tries, the first one included; None: only the deadline counts.
        sleep: Waits so many seconds.
        monotonic: A clock that never goes back, s.
        random: Answers evenly distributed numbers from 0 to 1.
    """

    deadline_s: float = 60.0
    base_s: float = 0.1
    cap_s: float = 5.0
    attempts: int | None = None
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    random: Callable[[], float] = random.random

    def begin(self) -> Retries:
        """Return the count of a first try that begins now."""
        return Retries(self)


class Retries:
    """The tries of one operation so far. Belongs to one thread."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._began = policy.monotonic()
        self.retries = 0
        """Waits so far, each followed by another try."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first try began."""
        return self._policy.monotonic() - self._began

    def restart(self) -> None:
        """Count anew: the operation got ahead."""
        self._began = self._policy.monotonic()
        self.retries = 0

    def wait(self, *, at_least_s: float = 0.0) -> bool:
        """Wait before another try; False: enough, without having waited.

        Args:
            at_least_s: What the other side asked for; no more than the longest wait is granted.
        """
        policy = self._policy
        if policy.attempts is not None and self.retries + 1 >= policy.attempts:
            return False
        most_s = min(policy.cap_s, policy.base_s * 2.0 ** min(self.retries, 32))
        delay_s = max(most_s * policy.random(), min(at_least_s, policy.cap_s))
        if self.elapsed_s + delay_s > policy.deadline_s:
            return False
        policy.sleep(delay_s)
        self.retries += 1
        return True
