"""One timed stretch: wall time, and what the daemon that served it spent meanwhile."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from bench.failures import TimeUpError
from bench.processes import PeakPss, cpu_seconds, peak_rss_bytes, reset_peak_rss
from bench.s3.traffic import Traffic
from bench.systems import System


@dataclass(frozen=True, slots=True)
class Work:
    """What one run did, to express its time per piece."""

    ops: int = 1
    size_bytes: int = 0
    told_s: float | None = None
    """What the system says that it took, where that is what is wanted: it counts as the time."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One repetition of one workload on one system."""

    wall_s: float
    work: Work
    daemon_cpu_s: float
    daemon_peak_rss_bytes: int
    messages: dict[str, int] | None
    """Requests of the kernel that the daemon answered, by kind; None when it does not count."""
    inodes: int | None
    """Inodes that the kernel holds at the end; None when the daemon does not know."""
    driver_cpu_s: float
    """User and system time of this process and the tools that it ran."""
    traffic: Traffic | None = None
    """What went over the link to a far store."""
    peak_pss_bytes: int | None = None
    """Largest memory of all processes of the system together, if it was watched."""
    is_given_up: bool = False
    """Whether it did not end in time; the wall time is then how long was waited."""


def measure(system: System, run: Callable[[], Work], *, watches_memory: bool = False) -> Sample:
    """Time `run`; the collector of this process sleeps meanwhile.

    Pids are taken afterwards as well: a run that mounts has no daemon before.
    """
    before = {pid: cpu_seconds(pid) for pid in system.pids()}
    for pid in before:
        reset_peak_rss(pid)
    messages_before = (system.messages() or {}) if before else {}
    mark = system.traffic_mark()
    watch = PeakPss(system.pids) if watches_memory else None
    work, is_given_up = Work(), False
    gc.collect()
    gc.disable()
    try:
        with watch or nullcontext():
            driver_before = _driver_cpu_s()
            begin = time.perf_counter()
            try:
                work = run()
            except TimeUpError:
                is_given_up = True
            wall_s = time.perf_counter() - begin
            driver_cpu_s = _driver_cpu_s() - driver_before
    finally:
        gc.enable()
    traffic = system.traffic_since(mark)
    after = system.pids()
    messages = None if is_given_up else system.messages()
    return Sample(
        wall_s if work.told_s is None else work.told_s,
        work,
        sum(cpu_seconds(pid) - before.get(pid, 0.0) for pid in after),
        sum(peak_rss_bytes(pid) for pid in after),
        None if messages is None else _difference(messages, messages_before),
        None if is_given_up else system.inodes(),
        driver_cpu_s,
        traffic,
        None if watch is None else watch.size_bytes,
        is_given_up,
    )


def _difference(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    rows = {kind: count - before.get(kind, 0) for kind, count in after.items()}
    return {kind: count for kind, count in rows.items() if count}


def _driver_cpu_s() -> float:
    return sum(os.times()[:4])


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]
