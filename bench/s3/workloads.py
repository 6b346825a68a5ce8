"""What is done with a far store, and in which groups."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

from bench.failures import TimeUpError, expect
from bench.large_files import StampedBlocks
from bench.machine import drop_page_cache
from bench.measure import Work
from bench.s3.network import Network
from bench.s3.systems import S3System
from bench.workload import Scale, Stage, Unit, Workload

ALL_S3: Final = ("ext4", "workspacefs", "juicefs", "rclone", "s3fs")
MOUNTED_S3: Final = ALL_S3[1:]


class S3Workload(Workload):
    """Base of all: timed over the slow link, prepared and checked over the calm one.

    A repetition that is given up counts as a result, "more than"; there is no further one then, nor
    when those so far took long.
    """

    watches_memory: ClassVar[bool] = True
    shows_traffic: ClassVar[bool] = True
    enough_s: ClassVar[float] = 60.0

    def __init__(
        self,
        name: str,
        title: str,
        network: Network,
        *,
        repeats: int,
        systems: tuple[str, ...],
        delay_ms: float | None = None,
        aim_ms: float | None = None,
    ) -> None:
        delay = network.delay_ms if delay_ms is None else delay_ms
        suffix = "" if delay_ms is None else f".{delay:g}ms"
        super().__init__(
            f"s3.{name}{suffix}",
            f"{title}, {delay:g} ms",
            repeats=repeats,
            systems=systems,
            aim_ms=aim_ms,
        )
        self.network = network
        self.delay_ms = delay

    def system(self, stage: Stage) -> S3System:
        """Return the system as what it is."""
        assert isinstance(stage.system, S3System)
        return stage.system

    def prepare(self, stage: Stage) -> None:
        system = self.system(stage)
        system.calm()
        system.ensure_unmounted()

    def go_far(self, stage: Stage) -> None:
        """End `before`: what follows is timed."""
        self.system(stage).slow_down(self.delay_ms)

    def check(self, stage: Stage, repetition: int) -> None:
        """Look whether it was done; over the calm link."""
        return

    def verify(self, stage: Stage, repetition: int) -> None:
        self.system(stage).calm()
        self.check(stage, repetition)

    def after(self, stage: Stage, repetition: int) -> None:
        self.system(stage).calm()
        self.system(stage).ensure_unmounted()

    def budget(self) -> Deadline:
        """Begin the time in which a repetition has to end."""
        return Deadline(self.name, self.network.row_budget_s)


class Deadline:
    """When a repetition is given up."""

    def __init__(self, what: str, limit_s: float) -> None:
        self._what = what
        self._limit_s = limit_s
        self._end_s = time.monotonic() + limit_s

    def left_s(self) -> float:
        """Return how much time is left.

        Raises:
            TimeUpError: None.
        """
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeUpError(self._what, self._limit_s)
        return left_s


class ReadFar(S3Workload):
    """Read one large file from end to end, in pieces of 1 MiB; nothing of it is local."""

    unit = Unit.MB_PER_S

    def __init__(self, scale: Scale, network: Network) -> None:
        super().__init__(
            "large.read",
            f"mount, then read a file of {scale.large_blocks} MiB, nothing local",
            network,
            repeats=scale.cold_repeats,
            systems=ALL_S3,
        )
        self._data: StampedBlocks | None = None

    def prepare(self, stage: Stage) -> None:
        super().prepare(stage)
        if "large" not in stage.left:
            self._data = StampedBlocks(stage.fixtures.blocks())
            source = stage.fixtures.directory("large", lambda top: self._write(stage, top))
            self.system(stage).put_directory(source)
            stage.left["large"] = True

    def before(self, stage: Stage, repetition: int) -> None:
        go_to_new_machine(stage)
        self.go_far(stage)

    def run(self, stage: Stage, repetition: int) -> Work:
        deadline = self.budget()
        stage.system.mount()
        buffers = [bytearray(1 << 20)]
        descriptor = os.open(stage.root / "large", os.O_RDONLY)
        total = 0
        try:
            while read := os.readv(descriptor, buffers):
                total += read
                deadline.left_s()
        finally:
            os.close(descriptor)
        expect("bytes read", total, stage.scale.large_blocks << 20)
        return Work(stage.scale.large_blocks, total)

    def check(self, stage: Stage, repetition: int) -> None:
        assert self._data is not None
        self._data.check(stage.root / "large", stage.scale.large_blocks)

    def _write(self, stage: Stage, top: Path) -> None:
        assert self._data is not None
        self._data.write(top / "large", stage.scale.large_blocks, is_synced=False)


class ImportFar(S3Workload):
    """Bring a local tree of many files to the store, with each system's own tool for that."""

    unit = Unit.MB_PER_S
    shows_stored = True

    def __init__(self, scale: Scale, network: Network) -> None:
        super().__init__(
            "import",
            f"import of {scale.tree_files:,} files",
            network,
            repeats=1,
            systems=ALL_S3,
        )

    def prepare(self, stage: Stage) -> None:
        super().prepare(stage)
        warm_page_cache(stage.fixtures.unpacked_tree())
        self.system(stage).prepare_import()

    def before(self, stage: Stage, repetition: int) -> None:
        self.go_far(stage)

    def run(self, stage: Stage, repetition: int) -> Work:
        source = stage.fixtures.unpacked_tree()
        self.system(stage).import_directory(source, self.network.row_budget_s)
        tree = stage.fixtures.tree()
        return Work(tree.files, tree.size_bytes)

    def check(self, stage: Stage, repetition: int) -> None:
        go_to_new_machine(stage)
        stage.system.mount()
        stage.fixtures.tree().check(stage.root)


def go_to_new_machine(stage: Stage) -> None:
    """Unmount, and leave nothing local behind that can be removed."""
    system = stage.system
    assert isinstance(system, S3System)
    system.calm()
    system.ensure_unmounted()
    system.empty_caches()
    drop_page_cache()


def warm_page_cache(top: Path) -> None:
    """Read everything below a local directory once."""
    for path in iter_files(top):
        path.read_bytes()


def iter_files(top: Path) -> Iterator[Path]:
    """Yield all regular files below a directory."""
    for directory, _, names in os.walk(top):
        for name in names:
            path = Path(directory, name)
            if not path.is_symlink():
                yield path
