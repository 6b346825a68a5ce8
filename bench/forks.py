"""Forks of sessions that have uncommitted work: how long they take, and what they need."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from bench.failures import expect
from bench.histories import size_word
from bench.large_files import StampedBlocks
from bench.machine import remove_tree
from bench.measure import Work
from bench.processes import pss_bytes, run_tool
from bench.sessions import SessionWorkload, wait_until_quiet, workspacefs_of
from bench.small_files import content, contents, make_paths, write_files
from bench.systems import WorkspaceFs
from bench.workload import ONLY_WORKSPACEFS, Scale, Stage, Unit
from workspacefs.client.locate import session_of
from workspacefs.client.mounting import mount_session

_SAMPLE_EVERY: Final = 53
_ENOUGH_S: Final = 60.0
_FORK_MAX_BYTES: Final = 5 << 20  # 4 MiB of it are ballast
_CHANGE: Final = "change"
_DIRTY: Final = "dirty"


class _Forks(SessionWorkload):
    """Base of forks of a session with a number of small files that are not committed.

    Before each, one more file is written: so each has a layer to freeze.
    """

    def __init__(
        self,
        name: str,
        title: str,
        files: int,
        *,
        repeats: int,
        systems: tuple[str, ...] = ONLY_WORKSPACEFS,
    ) -> None:
        super().__init__(f"session.{name}", title, repeats=repeats, systems=systems)
        self.files = files
        self._names: list[str] = []

    def prepare(self, stage: Stage) -> None:
        if isinstance(stage.system, WorkspaceFs):
            self.begin(stage)
        else:
            remove_tree(stage.root)
            stage.root.mkdir()
        self.fill(stage)

    def fill(self, stage: Stage) -> None:
        """Write what is not committed."""
        paths = make_paths(stage.root / _DIRTY, self.files)
        write_files(paths, contents(0, self.files))

    def before(self, stage: Stage, repetition: int) -> None:
        (stage.root / _CHANGE).write_bytes(content(1, repetition))

    def fork_name(self, repetition: int) -> str:
        """Return the name of the session that a repetition makes."""
        return f"{self.name}.fork{repetition}"

    def place(self, stage: Stage, repetition: int) -> Path:
        """Return where that is mounted."""
        return stage.system.home / "variants" / self.fork_name(repetition)

    def check(self, stage: Stage, place: Path, repetition: int) -> None:
        """Raise WrongResultError unless a fork shows what the parent does."""
        expect(f"names in {place.name}", sorted(os.listdir(place)), sorted((_CHANGE, _DIRTY)))
        expect("the last change", (place / _CHANGE).read_bytes(), content(1, repetition))
        self.check_dirty(place / _DIRTY)

    def check_dirty(self, top: Path) -> None:
        """Raise WrongResultError unless all uncommitted files are there; contents by sample."""
        paths = [os.path.join(parent, name) for parent, _, names in os.walk(top) for name in names]
        expect(f"files of {top.parent.name}", len(paths), self.files)
        for path in sorted(paths)[::_SAMPLE_EVERY]:
            number = int(Path(path).stem)
            expect(f"content of {path}", Path(path).read_bytes(), content(0, number))

    def check_apart(self, stage: Stage, place: Path, repetition: int) -> None:
        """Raise WrongResultError if what is written in a fork shows in the parent."""
        (place / _CHANGE).write_bytes(b"of the fork")
        wanted = content(1, repetition)
        expect("the parent's own file", (stage.root / _CHANGE).read_bytes(), wanted)


class Fork(_Forks):
    """One fork, from the request until the first listing of its mount is answered.

    Without the start of the command; or with it. Beside it, on a local disk: `cp -a`.
    """

    unit = Unit.MILLISECONDS
    shows_percentiles = True
    enough_s = _ENOUGH_S

    def __init__(self, scale: Scale, files: int, *, is_command: bool = False) -> None:
        word = "cli" if is_command else size_word(files)
        what = "the command" if is_command else "without the command's start (ext4: cp -a)"
        super().__init__(
            f"fork.{word}",
            f"fork to first ls, {files:,} dirty files, {what}",
            files,
            repeats=scale.forks,
            systems=ONLY_WORKSPACEFS if is_command else (*ONLY_WORKSPACEFS, "ext4"),
        )
        self._is_command = is_command

    def prepare(self, stage: Stage) -> None:
        super().prepare(stage)
        (stage.system.home / "variants").mkdir(exist_ok=True)

    def run(self, stage: Stage, repetition: int) -> Work:
        place = self.place(stage, repetition)
        if not isinstance(stage.system, WorkspaceFs):
            run_tool(["cp", "-a", stage.root, place])
        elif self._is_command:
            name = self.fork_name(repetition)
            stage.system.command("fork", str(stage.root), str(place), "--session", name)
        else:
            fork(stage.system, self.fork_name(repetition), place)
        self._names = os.listdir(place)
        return Work()

    def verify(self, stage: Stage, repetition: int) -> None:
        expect("names in the fork", sorted(self._names), sorted((_CHANGE, _DIRTY)))
        place = self.place(stage, repetition)
        self.check(stage, place, repetition)
        self.check_apart(stage, place, repetition)

    def after(self, stage: Stage, repetition: int) -> None:
        place = self.place(stage, repetition)
        if isinstance(stage.system, WorkspaceFs):
            delete_fork(stage.system, self.fork_name(repetition), place)
        else:
            remove_tree(place)


class ForkLarge(Fork):
    """The same of a session with a few large files."""

    def __init__(self, scale: Scale) -> None:
        super().__init__(scale, scale.import_files)
        size = f"{scale.import_files} dirty files of {scale.import_blocks} MiB"
        self.name = "session.fork.1g"
        self.title = f"fork to first ls, {size}, without the command's start (ext4: cp -a)"
        self._blocks = scale.import_blocks
        self._data: StampedBlocks | None = None

    def fill(self, stage: Stage) -> None:
        self._data = self._data or StampedBlocks(stage.fixtures.blocks())
        (stage.root / _DIRTY).mkdir()
        for number in range(self.files):
            path = stage.root / _DIRTY / f"{number}.bin"
            self._data.write(path, self._blocks, is_synced=False)

    def check_dirty(self, top: Path) -> None:
        assert self._data is not None
        wanted = sorted(f"{number}.bin" for number in range(self.files))
        expect(f"files of {top.parent.name}", sorted(os.listdir(top)), wanted)
        for name in wanted:
            self._data.check(top / name, self._blocks)


class ForkMany(_Forks):
    """Many forks of one moment with one command, until all of them have answered a listing."""

    shows_stored = True

    def __init__(self, scale: Scale) -> None:
        self._count = scale.forks_at_once
        super().__init__(
            "fork.100",
            f"{self._count} forks at once (the command), {scale.dirty_files[1]:,} dirty files; "
            "stored: what all forks take before they write",
            scale.dirty_files[1],
            repeats=scale.cold_repeats,
        )
        self._used_before_bytes = 0
        self._taken_bytes = 0

    def before(self, stage: Stage, repetition: int) -> None:
        super().before(stage, repetition)
        os.sync()
        self._used_before_bytes = stage.system.stored_bytes()

    def run(self, stage: Stage, repetition: int) -> Work:
        self.fork_all(stage, repetition)
        self._names = [
            name for place in self._places(stage, repetition) for name in os.listdir(place)
        ]
        return Work(self._count)

    def verify(self, stage: Stage, repetition: int) -> None:
        os.sync()
        self._taken_bytes = stage.system.stored_bytes() - self._used_before_bytes
        is_little = self._taken_bytes <= self._count * _FORK_MAX_BYTES
        expect(f"{self._taken_bytes:,} bytes for {self._count} forks are little", is_little, True)
        expect("names in all forks", sorted(self._names), sorted((_CHANGE, _DIRTY) * self._count))
        expect("sessions", len(workspacefs_of(stage).pids()), self._count + 1)
        for place in self._places(stage, repetition):
            self.check(stage, place, repetition)

    def stored_bytes(self, stage: Stage) -> int:
        return self._taken_bytes

    def after(self, stage: Stage, repetition: int) -> None:
        system = workspacefs_of(stage)
        for number, place in enumerate(self._places(stage, repetition), 1):
            delete_fork(system, f"{self.fork_name(repetition)}-{number}", place)

    def fork_all(self, stage: Stage, repetition: int) -> None:
        """Make and mount them."""
        workspacefs_of(stage).command(
            "fork", str(stage.root), str(self.place(stage, repetition)),
            "--count", str(self._count), "--session", self.fork_name(repetition),
        )  # fmt: skip

    def _places(self, stage: Stage, repetition: int) -> list[Path]:
        top = self.place(stage, repetition)
        return [top / str(number) for number in range(1, self._count + 1)]


class IdleForks(ForkMany):
    """Memory of many forks that were listed, and left alone."""

    unit = Unit.MB
    shows_stored = False

    def __init__(self, scale: Scale) -> None:
        super().__init__(scale)
        self.name = "session.idle.100"
        self.title = f"memory (PSS) of the process of one of {self._count} idle forks, on average"
        self.repeats = 1
        self._pids: list[int] = []

    def before(self, stage: Stage, repetition: int) -> None:
        system = workspacefs_of(stage)
        parents = system.pids()
        super().before(stage, repetition)
        super().run(stage, repetition)
        self._pids = [pid for pid in system.pids() if pid not in parents]
        wait_until_quiet(self._pids)

    def run(self, stage: Stage, repetition: int) -> Work:
        return Work(size_bytes=sum(map(pss_bytes, self._pids)) // len(self._pids))


def fork(system: WorkspaceFs, name: str, place: Path) -> None:
    """Fork the mounted session and mount the fork, as the command does, without its start."""
    address = session_of(str(system.mountpoint), system.state)
    with address.connect() as session:
        answer = session.call("fork", {"names": [name], "at": None, "ephemeral": False})
    mount = answer["mount"]
    assert isinstance(mount, dict)
    spec = {
        **mount,
        "store_url": address.store_url,
        "mountpoint": str(place),
        "state_dir": system.state.root,
        "session_name": name,
    }
    mount_session(spec, system.state, os.environ, makes_directory=True)


def delete_fork(system: WorkspaceFs, name: str, place: Path) -> None:
    """Unmount a fork and delete it with its work."""
    system.command("umount", str(place))
    system.command("session", "delete", system.url, name, "--force")
