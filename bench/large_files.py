"""One large file, written and read from end to end."""

from __future__ import annotations

import os
from pathlib import Path

from bench.failures import expect
from bench.measure import Work
from bench.trees import Blocks
from bench.workload import Scale, Stage, Unit, Workload

_DISTINCT = 32
_HEAD_BYTES = 8


class StampedBlocks:
    """Blocks that cost the driver nothing: a few of them, stamped with their number in place."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = [bytearray(blocks.block(number)) for number in range(_DISTINCT)]

    def block(self, number: int) -> bytearray:
        """Return block `number`; valid until the call for another one."""
        block = self._blocks[number % _DISTINCT]
        block[:_HEAD_BYTES] = number.to_bytes(_HEAD_BYTES, "big")
        return block

    def write(self, path: Path, blocks: int, *, is_synced: bool) -> None:
        """Write a file of this many blocks."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for number in range(blocks):
            written = os.write(descriptor, self.block(number))
            assert written == Blocks.SIZE_BYTES, "a short write"
        if is_synced:
            os.fsync(descriptor)
        os.close(descriptor)

    def check(self, path: Path, blocks: int) -> None:
        """Raise WrongResultError unless the file holds exactly these blocks."""
        expect("size of the file", path.stat().st_size, blocks * Blocks.SIZE_BYTES)
        with open(path, "rb", buffering=0) as file:
            for number in range(blocks):
                is_same = file.read(Blocks.SIZE_BYTES) == self.block(number)
                expect(f"block {number} is as written", is_same, True)


class WriteLarge(Workload):
    """Write a large file in pieces of 1 MiB."""

    unit = Unit.MB_PER_S

    def __init__(self, scale: Scale, *, is_synced: bool) -> None:
        super().__init__(
            "large.write.fsync" if is_synced else "large.write",
            f"write {scale.large_blocks} MiB" + (" + fsync" if is_synced else ""),
            repeats=scale.cold_repeats,
        )
        self._is_synced = is_synced
        self._data: StampedBlocks | None = None

    def before(self, stage: Stage, repetition: int) -> None:
        self._data = self._data or StampedBlocks(stage.fixtures.blocks())
        stage.root.joinpath("large").unlink(missing_ok=True)

    def run(self, stage: Stage, repetition: int) -> Work:
        assert self._data is not None
        blocks = stage.scale.large_blocks
        self._data.write(stage.root / "large", blocks, is_synced=self._is_synced)
        return Work(blocks, blocks * Blocks.SIZE_BYTES)

    def verify(self, stage: Stage, repetition: int) -> None:
        assert self._data is not None
        self._data.check(stage.root / "large", stage.scale.large_blocks)


class ReadLarge(Workload):
    """Read a large file in pieces of 1 MiB."""

    unit = Unit.MB_PER_S

    def __init__(self, scale: Scale, *, is_cold: bool) -> None:
        suffix = "cold" if is_cold else "warm"
        super().__init__(
            f"large.read.{suffix}",
            f"read {scale.large_blocks} MiB, {suffix}",
            repeats=scale.cold_repeats,
        )
        self._is_cold = is_cold
        self._data: StampedBlocks | None = None

    def prepare(self, stage: Stage) -> None:
        self._data = self._data or StampedBlocks(stage.fixtures.blocks())
        path = stage.root / "large"
        if not path.exists():
            self._data.write(path, stage.scale.large_blocks, is_synced=False)
        if self._is_cold:
            stage.system.settle()

    def before(self, stage: Stage, repetition: int) -> None:
        if self._is_cold:
            stage.system.go_cold()
        else:
            self.run(stage, repetition)

    def run(self, stage: Stage, repetition: int) -> Work:
        buffers = [bytearray(Blocks.SIZE_BYTES)]
        descriptor = os.open(stage.root / "large", os.O_RDONLY)
        total = 0
        while read := os.readv(descriptor, buffers):
            total += read
        os.close(descriptor)
        expect("bytes read", total, stage.scale.large_blocks * Blocks.SIZE_BYTES)
        return Work(stage.scale.large_blocks, total)

    def verify(self, stage: Stage, repetition: int) -> None:
        assert self._data is not None
        self._data.check(stage.root / "large", stage.scale.large_blocks)
