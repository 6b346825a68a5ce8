"""Runs workloads on systems: one after another, in turns, and cleans up whatever happens."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.failures import BenchError
from bench.measure import Sample, measure
from bench.processes import attempt
from bench.s3.network import Network
from bench.s3.peers import S3_KINDS
from bench.systems import SYSTEMS, System
from bench.workload import Fixtures, Group, Place, Scale, Stage, Workload
from workspacefs.errors import WorkspaceError

FAILURES = (BenchError, WorkspaceError, OSError, AssertionError)
"""What makes one workload on one system no result, and lets the run go on."""


@dataclass(slots=True)
class Result:
    """What one workload on one system came to."""

    workload: Workload
    system: str
    samples: list[Sample] = field(default_factory=list)
    problem: str = ""
    stored_bytes: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether there is no further repetition, whatever the workload wants."""
        took_s = sum(sample.wall_s for sample in self.samples)
        enough_s = self.workload.enough_s
        is_enough = enough_s is not None and bool(self.samples) and took_s >= enough_s
        return bool(self.problem) or self.is_given_up or is_enough

    @property
    def is_given_up(self) -> bool:
        """Whether the last repetition did not end in time."""
        return bool(self.samples) and self.samples[-1].is_given_up


class Runner:
    """Runs groups; results gather in `results`, also when it is interrupted."""

    def __init__(
        self,
        home: Path,
        scale: Scale,
        systems: Sequence[str],
        network: Network,
        *,
        seed: int,
        keeps: bool,
    ) -> None:
        self.results: list[Result] = []
        self._home = home
        self._scale = scale
        self._systems = systems
        self._keeps = keeps
        self._fixtures = Fixtures(home, scale, seed, network)
        self._turn = 0

    def run(self, group: Group, *, done: Callable[[], None]) -> None:
        """Run one group; `done` is called after each workload. All mounts are gone on return."""
        known = SYSTEMS if group.place is Place.DISK else S3_KINDS
        wanted = [
            name
            for name in self._systems
            if name in known and any(found.fits(name) for found in group.workloads)
        ]
        if not wanted:
            return
        say(f"group {group.name}: {', '.join(wanted)}")
        with ExitStack() as cleanups:
            stages = self._open_stages(group, wanted, cleanups)
            for workload in group.workloads:
                self._run_workload(workload, stages, is_mounted=group.is_mounted)
                done()

    def _open_stages(
        self, group: Group, wanted: Sequence[str], cleanups: ExitStack
    ) -> dict[str, Stage]:
        stages: dict[str, Stage] = {}
        agreed: dict[str, object] = {}
        for name in wanted:
            system = self._make(group, name)
            cleanups.callback(self._close, system)
            try:
                system.create()
                if group.is_mounted:
                    system.mount()
            except FAILURES as exc:
                say(f"  {name} is left out of {group.name}: {exc}")
                self.results += [
                    Result(workload, name, problem=f"could not be set up: {exc}")
                    for workload in group.workloads
                    if workload.fits(name)
                ]
                continue
            stages[name] = Stage(system, self._scale, self._fixtures, agreed)
        return stages

    def close(self) -> dict[str, object]:
        """End what all groups shared; return what is to be said of it."""
        return self._fixtures.close()

    def _make(self, group: Group, name: str) -> System:
        home = self._home / group.name / name
        if group.place is Place.DISK:
            return SYSTEMS[name](home)
        return S3_KINDS[name](home, self._fixtures.site)

    def _close(self, system: System) -> None:
        problem = attempt(lambda: system.close(keeps_files=self._keeps))
        if problem is not None:
            say(f"  cleaning up: {problem}")

    def _run_workload(
        self, workload: Workload, stages: dict[str, Stage], *, is_mounted: bool
    ) -> None:
        results = {name: Result(workload, name) for name in stages if workload.fits(name)}
        self.results += results.values()
        for name, result in results.items():
            stage = stages[name]
            self._guard(result, stages, partial(workload.prepare, stage), is_mounted=is_mounted)
        for repetition in range(workload.repeats):
            for name in self._in_turn(list(results)):
                if not results[name].is_over:
                    step = partial(_repeat, results[name], stages[name], repetition)
                    self._guard(results[name], stages, step, is_mounted=is_mounted)
        for result in results.values():
            _say_result(result)

    def _in_turn(self, names: list[str]) -> list[str]:
        """Return the names, beginning with another one each time."""
        self._turn += 1
        first = self._turn % len(names) if names else 0
        return names[first:] + names[:first]

    def _guard(
        self,
        result: Result,
        stages: dict[str, Stage],
        step: Callable[[], object],
        *,
        is_mounted: bool,
    ) -> None:
        try:
            step()
        except FAILURES as exc:
            result.problem = f"{type(exc).__name__}: {exc}"
            say(f"  {result.workload.name} on {result.system} FAILED: {result.problem}")
            if not _recover(stages[result.system], is_mounted=is_mounted):
                del stages[result.system]


def _repeat(result: Result, stage: Stage, repetition: int) -> None:
    workload = result.workload
    workload.before(stage, repetition)
    # What was written before must not be written back on somebody else's time.
    os.sync()
    sample = measure(
        stage.system,
        lambda: workload.run(stage, repetition),
        watches_memory=workload.watches_memory,
    )
    if sample.is_given_up:
        result.samples.append(sample)
        attempt(lambda: workload.after(stage, repetition))
        return
    workload.verify(stage, repetition)
    is_last = repetition == workload.repeats - 1
    if workload.shows_stored and is_last:
        result.stored_bytes = workload.stored_bytes(stage)
    workload.after(stage, repetition)
    result.samples.append(sample)


def _recover(stage: Stage, *, is_mounted: bool) -> bool:
    """Bring a system to the state in which workloads begin; tell whether that worked."""
    system = stage.system
    if attempt(lambda: os.listdir(system.root)) is not None or not is_mounted:
        attempt(system.unmount)
    if not is_mounted:
        return True
    if attempt(lambda: os.listdir(system.root)) is None and system.is_mounted():
        return True
    return attempt(system.mount) is None


def say(text: str) -> None:
    """Show progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _say_result(result: Result) -> None:
    if result.samples and not result.problem:
        walls = sorted(sample.wall_s for sample in result.samples)
        middle = walls[len(walls) // 2]
        more = "more than " if result.is_given_up else ""
        say(
            f"  {result.workload.name:<22} {result.system:<18} "
            f"{more}{middle:10.4f} s  k={len(walls)}"
        )
