"""Limits of trying again, and the counts of requests."""

from __future__ import annotations

import json
import threading

import pytest

from tests.clocks import TurnedClock
from workspacefs.backend.stats import OPERATIONS, RequestStats, StoreHealth


def test_waits_double_up_to_the_cap() -> None:
    """The most that a wait may take doubles until it is the cap."""
    clock = TurnedClock()
    tries = clock.policy(base_s=1, cap_s=5, deadline_s=100).begin()

    assert all(tries.wait() for _ in range(5))

    assert clock.slept == [1, 2, 4, 5, 5]
    assert tries.retries == 5


def test_waits_are_random_from_zero_on() -> None:
    """Full jitter: callers that failed together do not come back together."""
    clock = TurnedClock()
    tries = clock.policy(share=0.25, base_s=1, cap_s=5, deadline_s=100).begin()

    tries.wait()
    tries.wait()

    assert clock.slept == [0.25, 0.5]


def test_no_try_begins_after_the_deadline() -> None:
    """A wait that would end after it is not begun."""
    clock = TurnedClock()
    tries = clock.policy(base_s=2, cap_s=2, deadline_s=5).begin()

    assert [tries.wait(), tries.wait(), tries.wait()] == [True, True, False]

    assert clock.slept == [2, 2]


def test_progress_gives_new_time() -> None:
    """After a restart the deadline counts from then, and waits are short again."""
    clock = TurnedClock()
    tries = clock.policy(base_s=2, cap_s=8, deadline_s=5).begin()
    assert tries.wait()
    assert not tries.wait()

    tries.restart()

    assert tries.wait()
    assert clock.slept == [2, 2]


def test_attempts_are_limited() -> None:
    """Three attempts are two waits."""
    clock = TurnedClock()
    tries = clock.policy(deadline_s=100, attempts=3).begin()

    assert [tries.wait(), tries.wait(), tries.wait()] == [True, True, False]


def test_other_side_may_ask_for_longer() -> None:
    """Retry-After counts, as far as the cap."""
    clock = TurnedClock()
    tries = clock.policy(share=0, base_s=1, cap_s=5, deadline_s=100).begin()

    tries.wait(at_least_s=3)
    tries.wait(at_least_s=3600)

    assert clock.slept == [3, 5]


def test_document_of_counts_is_json() -> None:
    """Counts, bytes and quantiles are there for each operation."""
    stats = RequestStats()
    for _ in range(99):
        stats.count("get", seconds=0.03, bytes_in=10)
    stats.count("get", seconds=100.0, is_error=True)
    stats.count_retry("get")
    stats.count_bytes_in("get", 5)

    document = json.loads(json.dumps(stats.document()))

    assert set(document["operations"]) == set(OPERATIONS)
    get = document["operations"]["get"]
    assert (get["requests"], get["errors"], get["retries"]) == (100, 1, 1)
    assert get["bytes_in"] == 995
    assert 0.016 < get["latency"]["p50_s"] <= 0.032
    assert 0.016 < get["latency"]["p99_s"] <= 0.032
    assert sum(get["latency"]["buckets"]) == 100
    assert len(get["latency"]["buckets"]) == len(document["bucket_bounds_s"]) + 1
    assert document["operations"]["put"]["latency"]["p50_s"] is None


def test_counts_of_threads_add_up() -> None:
    """No count is lost."""
    stats = RequestStats()

    def count() -> None:
        for _ in range(1000):
            stats.count("put", seconds=0.001, bytes_out=1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    operations = stats.document()["operations"]
    assert isinstance(operations, dict)
    assert operations["put"]["requests"] == 4000
    assert operations["put"]["bytes_out"] == 4000


@pytest.mark.parametrize("failures", [0, 1, 2, 5])
def test_store_is_away_after_two_failures(failures: int) -> None:
    """One failure is chance; an answer ends it."""
    clock = TurnedClock()
    health = StoreHealth(clock.monotonic)
    for number in range(failures):
        health.note_failure(f"reason {number}")
        clock.now_s += 10

    state = health.document()
    health.note_ok()

    assert state["state"] == ("away" if failures >= 2 else "ok")
    assert state["since_s"] == (10 * failures if failures >= 2 else None)
    assert state["retries"] == failures
    assert health.document() == {"state": "ok", "since_s": None, "reason": None, "retries": 0}
