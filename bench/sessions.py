"""Checkpoints, restores, deep chains, autosave and memory of sessions; forks are in forks.py."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from bench.failures import expect
from bench.histories import size_word
from bench.machine import drop_page_cache, remove_tree
from bench.measure import Work
from bench.processes import cpu_seconds, pss_bytes
from bench.small_files import (
    FILE_BYTES,
    check_files,
    content,
    contents,
    make_paths,
    read_files,
    write_files,
)
from bench.systems import WorkspaceFs, wait_for
from bench.workload import ONLY_WORKSPACEFS, Scale, Stage, Unit, Workload
from workspacefs.client.locate import session_of

_QUIET_TIMEOUT_S: Final = 120.0
_QUIET_S: Final = 6.0  # a session looks after its layers 5 s after its mount
_QUIET_CPU_S: Final = 0.01
_SAVE_TIMEOUT_S: Final = 120.0


class SessionWorkload(Workload):
    """Base of workloads that each work in a session of their own, called as they are."""

    def begin(self, stage: Stage, *words: str, name: str = "") -> WorkspaceFs:
        """Mount the session; whatever was mounted before is not any more.

        Args:
            stage: Whose system it is.
            words: More words of the mount command.
            name: Of the session (default: that of the workload).
        """
        system = workspacefs_of(stage)
        system.unmount_all()
        system.begin_session(name or self.name)
        system.command(
            "mount", system.url, str(system.mountpoint), "--session", system.session, *words
        )
        return system


class Checkpoint(SessionWorkload):
    """A checkpoint over the control socket, after files have changed since the last one."""

    unit = Unit.MILLISECONDS
    shows_percentiles = True

    def __init__(self, scale: Scale) -> None:
        self._files = scale.restored_files[-1]
        super().__init__(
            "session.checkpoint",
            f"checkpoint of {self._files:,} changed files, without the command's start",
            repeats=scale.forks,
            systems=ONLY_WORKSPACEFS,
        )
        self._paths: list[str] = []
        self._made: list[str] = []

    def prepare(self, stage: Stage) -> None:
        self.begin(stage)
        self._paths = make_paths(stage.root / "files", self._files)

    def before(self, stage: Stage, repetition: int) -> None:
        overwrite(self._paths, repetition)

    def run(self, stage: Stage, repetition: int) -> Work:
        answer = make_checkpoint(workspacefs_of(stage))
        self._made.append(str(answer["checkpoint"]))
        return Work()

    def verify(self, stage: Stage, repetition: int) -> None:
        rows = call(workspacefs_of(stage), "checkpoint", {"action": "list", "name": ""})
        listed = rows["checkpoints"]
        assert isinstance(listed, list)
        expect("checkpoints", [row["checkpoint"] for row in listed], self._made)
        # The one before shows what it did, too.
        for salt, name in list(enumerate(self._made))[-2:]:
            top = stage.root / ".workspacefs" / "checkpoints" / name
            inside = [str(top / Path(path).relative_to(stage.root)) for path in self._paths]
            check_files(top / "files", inside, contents(salt, self._files))


class Restore(SessionWorkload):
    """Back to a checkpoint, with a number of files changed since.

    Timed is either what the session says of when the mount showed it, or the whole command, which
    ends when every path was looked at.
    """

    unit = Unit.MILLISECONDS
    shows_percentiles = True

    def __init__(self, scale: Scale, changed: int, *, is_command: bool) -> None:
        what = "the command, all of it looked at" if is_command else "until the mount shows it"
        super().__init__(
            f"session.restore.{size_word(changed)}" + (".command" if is_command else ""),
            f"restore after {changed:,} of {scale.small_files:,} files changed, {what}",
            repeats=scale.forks,
            systems=ONLY_WORKSPACEFS,
        )
        self._changed = changed
        self._is_command = is_command
        self._checkpoint = ""
        self._paths: list[str] = []
        self._answer: Mapping[str, object] = {}

    def prepare(self, stage: Stage) -> None:
        system = self.begin(stage)
        self._paths = make_paths(stage.root / self.name, stage.scale.small_files)
        write_files(self._paths, contents(0, len(self._paths)))
        system.settle()
        self._checkpoint = str(make_checkpoint(system)["checkpoint"])

    def before(self, stage: Stage, repetition: int) -> None:
        overwrite(self._changed_paths(), repetition + 1)

    def run(self, stage: Stage, repetition: int) -> Work:
        system = workspacefs_of(stage)
        if self._is_command:
            self._answer = system.ask("restore", str(stage.root), self._checkpoint)
            return Work()
        self._answer = call(system, "restore", {"target": self._checkpoint})
        duration_ms = self._answer["duration_ms"]
        assert isinstance(duration_ms, float)
        return Work(told_s=duration_ms / 1000)

    def verify(self, stage: Stage, repetition: int) -> None:
        receipt = self._answer["receipt"]
        assert isinstance(receipt, dict)
        expect("files that were restored", receipt["files"], self._changed)
        for path in self._changed_paths():
            number = int(Path(path).stem)
            expect(f"content of {path}", Path(path).read_bytes(), content(0, number))
        check_files(stage.root / self.name, self._paths, contents(0, len(self._paths)))

    def after(self, stage: Stage, repetition: int) -> None:
        args = {"action": "delete", "name": self._answer["safety"]}
        call(workspacefs_of(stage), "checkpoint", args)

    def _changed_paths(self) -> list[str]:
        return self._paths[:: len(self._paths) // self._changed][: self._changed]


class ReadThrough(SessionWorkload):
    """Open, read, close every file once, cold, through a chain of frozen layers.

    Each layer has its share of the files of every directory.
    """

    unit = Unit.MICROSECONDS_PER_OP

    def __init__(self, scale: Scale, layers: int) -> None:
        super().__init__(
            f"session.depth.{layers}",
            f"open + read 2 KB + close, kernel caches empty, frozen layers: {layers}",
            repeats=scale.cold_repeats,
            systems=ONLY_WORKSPACEFS,
        )
        self._layers = layers
        self._paths: list[str] = []
        self._read = 0

    def prepare(self, stage: Stage) -> None:
        system = self.begin(stage)
        self._paths = make_paths(stage.root / self.name, stage.scale.small_files)
        data = contents(0, len(self._paths))
        for layer in range(self._layers):
            write_files(self._paths[layer :: self._layers], data[layer :: self._layers])
            make_checkpoint(system)

    def before(self, stage: Stage, repetition: int) -> None:
        drop_page_cache()

    def run(self, stage: Stage, repetition: int) -> Work:
        self._read = read_files(self._paths)
        return Work(len(self._paths), self._read)

    def verify(self, stage: Stage, repetition: int) -> None:
        expect("bytes read", self._read, FILE_BYTES * len(self._paths))
        check_files(stage.root / self.name, self._paths, contents(0, len(self._paths)))
        layers = call(workspacefs_of(stage), "info")["layers"]
        assert isinstance(layers, list)
        expect("layers, the live one included", len(layers), self._layers + 1)


class Autosave(SessionWorkload):
    """Create, write 2 KiB, close, while the session is saved to its store or not."""

    unit = Unit.MICROSECONDS_PER_OP

    def __init__(self, scale: Scale, *, is_on: bool) -> None:
        super().__init__(
            f"session.autosave.{'on' if is_on else 'off'}",
            f"create + write 2 KB + close, {'autosave every second' if is_on else 'no autosave'}",
            repeats=scale.repeats,
            systems=ONLY_WORKSPACEFS,
        )
        self._is_on = is_on
        self._paths: list[str] = []
        self._contents: list[bytes] = []

    def prepare(self, stage: Stage) -> None:
        self.begin(stage, "--autosave", "1s" if self._is_on else "off")

    def before(self, stage: Stage, repetition: int) -> None:
        self._paths = make_paths(stage.root / self._top(repetition), stage.scale.small_files)
        self._contents = contents(repetition, len(self._paths))

    def run(self, stage: Stage, repetition: int) -> Work:
        write_files(self._paths, self._contents)
        return Work(len(self._paths), FILE_BYTES * len(self._paths))

    def verify(self, stage: Stage, repetition: int) -> None:
        system = workspacefs_of(stage)
        check_files(stage.root / self._top(repetition), self._paths, self._contents)
        if self._is_on:
            wait_for(lambda: _is_stored(system), _SAVE_TIMEOUT_S, "the session is never saved")
        else:
            expect("all is stored without autosave", _is_stored(system), False)

    def after(self, stage: Stage, repetition: int) -> None:
        remove_tree(stage.root / self._top(repetition))
        stage.system.settle()

    def _top(self, repetition: int) -> str:
        return f"{self.name}.{repetition}"


class Idle(SessionWorkload):
    """Memory of the process of a session that was mounted, listed, and left alone."""

    unit = Unit.MB

    def __init__(self, scale: Scale) -> None:
        super().__init__(
            "session.idle",
            "memory (PSS) of the process of one idle session",
            repeats=scale.cold_repeats,
            systems=ONLY_WORKSPACEFS,
        )
        self._pids: list[int] = []

    def before(self, stage: Stage, repetition: int) -> None:
        system = self.begin(stage, name=f"{self.name}.{repetition}")
        os.listdir(stage.root)
        wait_until_quiet(system.pids())

    def run(self, stage: Stage, repetition: int) -> Work:
        self._pids = workspacefs_of(stage).pids()
        return Work(size_bytes=sum(map(pss_bytes, self._pids)))

    def verify(self, stage: Stage, repetition: int) -> None:
        expect("processes of sessions", len(self._pids), 1)
        expect("the process still serves", stage.system.is_mounted(), True)


def workspacefs_of(stage: Stage) -> WorkspaceFs:
    """Return the system of a stage, which is ours."""
    assert isinstance(stage.system, WorkspaceFs)
    return stage.system


def call(
    system: WorkspaceFs, op: str, args: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Ask the mounted session over its socket, as a command does, without the command's start."""
    with session_of(str(system.mountpoint), system.state).connect() as session:
        return session.call(op, args)


def make_checkpoint(system: WorkspaceFs) -> dict[str, object]:
    """Make a checkpoint under a name that is drawn."""
    args = {"action": "create", "name": "", "message": "", "durable": False}
    return call(system, "checkpoint", args)


def overwrite(paths: Iterable[str], salt: int) -> None:
    """Write files anew; each gets what it has in `contents` of this salt."""
    for path in paths:
        Path(path).write_bytes(content(salt, int(Path(path).stem)))


def wait_until_quiet(pids: list[int]) -> None:
    """Return when processes have had nothing to do for a while.

    Raises:
        BenchError: They never have.
    """

    def is_quiet() -> bool:
        before = sum(map(cpu_seconds, pids))
        time.sleep(_QUIET_S)
        return sum(map(cpu_seconds, pids)) - before <= _QUIET_CPU_S * len(pids)

    wait_for(is_quiet, _QUIET_TIMEOUT_S, "idle sessions are not idle")


def _is_stored(system: WorkspaceFs) -> bool:
    return call(system, "status", {"under": ""})["is_stored"] is True
