"""Many small files, one system call after the other from one process: microseconds each.

The loops are the same for every system and do nothing but the calls; the interpreter adds about
0.3 µs to each.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from bench.failures import expect
from bench.measure import Work
from bench.processes import run_tool
from bench.workload import Scale, Stage, Unit, Workload

FILE_BYTES: Final = 2048
_PER_DIR: Final = 1000
_SAMPLE_EVERY: Final = 53


class _SmallFiles(Workload):
    """Base of all that work on small files."""

    unit = Unit.MICROSECONDS_PER_OP

    def ensure_files(self, stage: Stage) -> list[str]:
        """Return the paths of files that are there; make them if no workload has."""
        if "small" not in stage.left:
            paths = make_paths(stage.root / "small", stage.scale.small_files)
            write_files(paths, contents(0, len(paths)))
            stage.left["small"] = paths
        found = stage.left["small"]
        assert isinstance(found, list)
        return found


class CreateFiles(_SmallFiles):
    """Create, write 2 KiB, close; each repetition in new directories."""

    def __init__(self, scale: Scale) -> None:
        super().__init__(
            "create",
            "create + write 2 KB + close",
            repeats=scale.repeats,
            aim_ext4=2.0,
            aim_juicefs=4.0,
        )
        self._paths: list[str] = []
        self._contents: list[bytes] = []

    def before(self, stage: Stage, repetition: int) -> None:
        self._paths = make_paths(stage.root / f"create-{repetition}", stage.scale.small_files)
        self._contents = contents(repetition, len(self._paths))

    def run(self, stage: Stage, repetition: int) -> Work:
        write_files(self._paths, self._contents)
        return Work(len(self._paths), FILE_BYTES * len(self._paths))

    def verify(self, stage: Stage, repetition: int) -> None:
        check_files(stage.root / f"create-{repetition}", self._paths, self._contents)


class StatFiles(_SmallFiles):
    """stat() of every file, all of them known to the kernel."""

    def __init__(self, scale: Scale) -> None:
        super().__init__("stat.warm", "stat, warm", repeats=scale.repeats)
        self._paths: list[str] = []
        self._last: os.stat_result | None = None

    def before(self, stage: Stage, repetition: int) -> None:
        self._paths = self.ensure_files(stage)
        stat_files(self._paths)

    def run(self, stage: Stage, repetition: int) -> Work:
        self._last = stat_files(self._paths)
        return Work(len(self._paths))

    def verify(self, stage: Stage, repetition: int) -> None:
        assert self._last is not None
        expect("size of the last file", self._last.st_size, FILE_BYTES)


class StatAbsent(_SmallFiles):
    """access() of names that are not there, asked for once before."""

    def __init__(self, scale: Scale) -> None:
        super().__init__("stat.absent", "look-up of absent names, warm", repeats=scale.repeats)
        self._paths: list[str] = []
        self._found = 0

    def before(self, stage: Stage, repetition: int) -> None:
        self._paths = [f"{path}.absent" for path in self.ensure_files(stage)]
        count_present(self._paths)

    def run(self, stage: Stage, repetition: int) -> Work:
        self._found = count_present(self._paths)
        return Work(len(self._paths))

    def verify(self, stage: Stage, repetition: int) -> None:
        expect("files that should not be there", self._found, 0)


class ReadFiles(_SmallFiles):
    """Open, read, close every file."""

    def __init__(self, scale: Scale, *, is_cold: bool) -> None:
        suffix = "cold" if is_cold else "warm"
        super().__init__(
            f"read.{suffix}",
            f"open + read 2 KB + close, {suffix}",
            repeats=scale.cold_repeats if is_cold else scale.repeats,
        )
        self._is_cold = is_cold
        self._paths: list[str] = []
        self._read = 0

    def prepare(self, stage: Stage) -> None:
        self.ensure_files(stage)
        if self._is_cold:
            stage.system.settle()

    def before(self, stage: Stage, repetition: int) -> None:
        self._paths = self.ensure_files(stage)
        if self._is_cold:
            stage.system.go_cold()
        else:
            read_files(self._paths)

    def run(self, stage: Stage, repetition: int) -> Work:
        self._read = read_files(self._paths)
        return Work(len(self._paths), self._read)

    def verify(self, stage: Stage, repetition: int) -> None:
        expect("bytes read", self._read, FILE_BYTES * len(self._paths))
        check_files(stage.root / "small", self._paths, contents(0, len(self._paths)))


class ListCrowded(Workload):
    """`ls -l` of one directory with very many files."""

    unit = Unit.MILLISECONDS

    def __init__(self, scale: Scale, *, is_cold: bool) -> None:
        suffix = "cold" if is_cold else "warm"
        super().__init__(
            f"list.{suffix}",
            f"ls -l of {scale.crowded_files:,} files in one directory, {suffix}",
            repeats=scale.cold_repeats if is_cold else scale.repeats,
        )
        self._is_cold = is_cold
        self._lines = 0

    def prepare(self, stage: Stage) -> None:
        if "crowded" not in stage.left:
            directory = stage.root / "crowded"
            directory.mkdir()
            paths = [f"{directory}/file_{n:06d}.txt" for n in range(stage.scale.crowded_files)]
            write_files(paths, [b"x"] * len(paths))
            stage.left["crowded"] = directory
        if self._is_cold:
            stage.system.settle()

    def before(self, stage: Stage, repetition: int) -> None:
        if self._is_cold:
            stage.system.go_cold()
        else:
            self.run(stage, repetition)

    def run(self, stage: Stage, repetition: int) -> Work:
        self._lines = run_tool(["ls", "-l", stage.root / "crowded"]).count(b"file_")
        return Work(1)

    def verify(self, stage: Stage, repetition: int) -> None:
        expect("files listed", self._lines, stage.scale.crowded_files)


def make_paths(top: Path, files: int) -> list[str]:
    """Return paths of files to be, a thousand a directory; the directories are made."""
    paths = []
    for first in range(0, files, _PER_DIR):
        directory = top / f"{first // _PER_DIR:03d}"
        directory.mkdir(parents=True)
        paths += [f"{directory}/{n:05d}.txt" for n in range(first, min(first + _PER_DIR, files))]
    return paths


def contents(salt: int, files: int) -> list[bytes]:
    """Return what the files hold, each something else."""
    return [content(salt, number) for number in range(files)]


def content(salt: int, number: int) -> bytes:
    """Return what one of them holds."""
    return (f"{salt}.{number} " * FILE_BYTES).encode()[:FILE_BYTES]


def write_files(paths: list[str], data: list[bytes]) -> None:
    """Create each file, write it, close it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    for path, content in zip(paths, data, strict=True):
        descriptor = os.open(path, flags, 0o644)
        os.write(descriptor, content)
        os.close(descriptor)


def read_files(paths: list[str]) -> int:
    """Read each file; return the bytes read."""
    total = 0
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        total += len(os.read(descriptor, FILE_BYTES * 2))
        os.close(descriptor)
    return total


def stat_files(paths: list[str]) -> os.stat_result | None:
    """Look at each file; return what the last one is."""
    found = None
    for path in paths:
        found = os.stat(path)
    return found


def count_present(paths: list[str]) -> int:
    """Return how many of the files there are."""
    return sum(map(os.access, paths, [os.F_OK] * len(paths)))


def check_files(top: Path, paths: list[str], data: list[bytes]) -> None:
    """Raise WrongResultError unless exactly these files are there; contents by sample."""
    found = sum(len(files) for _, _, files in os.walk(top))
    expect(f"files below {top.name}", found, len(paths))
    for index in range(0, len(paths), _SAMPLE_EVERY):
        expect(f"content of {paths[index]}", Path(paths[index]).read_bytes(), data[index])
