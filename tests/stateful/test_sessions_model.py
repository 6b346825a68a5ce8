"""Several sessions of one workspace, each beside a plain directory that has what it should have.

File operations, forks, checkpoints, restores, commits, kills, pauses and mounts elsewhere come in
any order. WORKSPACEFS_TEST_EFFORT=full runs many more.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tests.harness import Machine, Mount, tree_of
from tests.s3_machine import S3Machine, s3_machine
from tests.servers import Server
from tests.stateful.program import Program
from tests.stateful.test_mount_model import Tree, assert_same, without_times

IS_FULL = os.environ.get("WORKSPACEFS_TEST_EFFORT") == "full"
SESSIONS_MAX = 4
PICK = st.integers(0, 1000)


@dataclass
class Moment:
    """What a session should show when it is back at some state."""

    plain: Path
    tree: Tree
    """As the mount showed it, times included."""


@dataclass
class Twin:
    """A session, and the plain directory with what should be in it."""

    mount: Mount
    program: Program
    committed: Path | None = None
    checkpoints: dict[str, Moment] = field(default_factory=dict)
    before_restores: list[Moment] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Of the session."""
        return str(self.mount.document["session"])

    @property
    def plain(self) -> Path:
        """The directory."""
        return self.program.roots[1]

    def compare(self) -> None:
        """Require the same on both sides."""
        found, expected = tree_of(self.mount.path), tree_of(self.plain)
        assert_same(without_times(found), without_times(expected))


class Sessions(RuleBasedStateMachine):
    """Rules over sessions of one workspace; `machines` are two that reach the same store."""

    def __init__(self, machines: list[Machine]) -> None:
        super().__init__()
        self.machines = machines
        self.numbers = itertools.count()
        self.log: list[str] = []
        self.twins: list[Twin] = []
        name = f"s{os.getpid()}-{id(self):x}"
        self.home = machines[0].directory / name
        self.home.mkdir()
        mount = machines[0].mount(f"{name}/m", session=name)
        os.chmod(mount.path, 0o755)
        plain = self.home / "plain"
        plain.mkdir()
        self.twins.append(Twin(mount, Program(0, mount.path, plain)))

    def fresh(self, what: str) -> Path:
        """Return a path that nothing is at."""
        return self.home / f"{what}{next(self.numbers)}"

    def pick(self, number: int) -> Twin:
        """Return one of the sessions."""
        return self.twins[number % len(self.twins)]

    def moment(self, twin: Twin) -> Moment:
        """Keep what a session shows now."""
        return Moment(self.copy(twin.plain), tree_of(twin.mount.path))

    def copy(self, plain: Path) -> Path:
        """Copy a plain directory, with all that it has."""
        made = self.fresh("copy")
        subprocess.run(["cp", "-a", plain, made], check=True)
        return made

    def replace(self, twin: Twin, wanted: Path | None) -> None:
        """Have a plain directory be as another one; None: empty."""
        shutil.rmtree(twin.plain)
        if wanted is None:
            twin.plain.mkdir(mode=0o755)
        else:
            subprocess.run(["cp", "-a", wanted, twin.plain], check=True)

    def note(self, what: str, twin: Twin) -> None:
        """Remember what is done, for a failure."""
        self.log.append(f"{what} {twin.name}")

    @rule(number=PICK, seed=PICK, steps=st.integers(1, 40))
    def operate(self, number: int, seed: int, steps: int) -> None:
        """Do file operations."""
        twin = self.pick(number)
        self.note(f"operate {seed} {steps}", twin)
        twin.program.random.seed(seed)
        for _ in range(steps):
            twin.program.step()

    @precondition(lambda self: len(self.twins) < SESSIONS_MAX)
    @rule(number=PICK)
    def fork(self, number: int) -> None:
        """Fork a session in the middle of its work."""
        twin = self.pick(number)
        self.note("fork", twin)
        self.begin_fork(twin, self.copy(twin.plain), committed=twin.committed)

    @precondition(lambda self: len(self.twins) < SESSIONS_MAX)
    @rule(number=PICK, which=PICK)
    def fork_of_checkpoint(self, number: int, which: int) -> None:
        """Fork a session where it was at a checkpoint."""
        twin = self.pick(number)
        if not twin.checkpoints:
            return
        name, moment = sorted(twin.checkpoints.items())[which % len(twin.checkpoints)]
        self.note(f"fork at {name}", twin)
        self.begin_fork(twin, self.copy(moment.plain), "--at", name)

    def begin_fork(
        self, twin: Twin, plain: Path, *words: str, committed: Path | None = None
    ) -> None:
        """Fork, and compare at once."""
        place = self.fresh("fork")
        machine = twin.mount.machine
        (document,) = machine.json("fork", twin.mount.path, place, *words)["sessions"]  # type: ignore[misc]
        machine.keep(place)
        mount = Mount(machine, place, document)
        made = Twin(mount, Program(0, mount.path, plain), committed)
        made.compare()
        twin.compare()
        if words:
            mount.commit("so that HEAD is known")
            made.committed = self.copy(plain)
        self.twins.append(made)

    @rule(number=PICK)
    def checkpoint(self, number: int) -> None:
        """Name a moment."""
        twin = self.pick(number)
        name = f"cp{next(self.numbers)}"
        self.note(f"checkpoint {name}", twin)
        twin.mount.machine.run("checkpoint", twin.mount.path, "--name", name)
        twin.checkpoints[name] = self.moment(twin)

    @rule(number=PICK, which=PICK)
    def restore(self, number: int, which: int) -> None:
        """Go back to a checkpoint, in the mount."""
        twin = self.pick(number)
        if not twin.checkpoints:
            return
        name, moment = sorted(twin.checkpoints.items())[which % len(twin.checkpoints)]
        self.note(f"restore {name}", twin)
        self.go_to(twin, moment.plain, "restore", name)
        assert_same(tree_of(twin.mount.path), moment.tree)

    @rule(number=PICK)
    def restore_head(self, number: int) -> None:
        """Take back all that is not committed."""
        twin = self.pick(number)
        self.note("restore HEAD", twin)
        self.go_to(twin, twin.committed, "restore", "HEAD")
        assert twin.mount.status() == {}

    @rule(number=PICK, steps=st.integers(1, 3))
    def undo(self, number: int, steps: int) -> None:
        """Take restores back."""
        twin = self.pick(number)
        if len(twin.before_restores) < steps:
            return
        moment = twin.before_restores[-steps]
        self.note(f"undo {steps}", twin)
        self.go_to(twin, moment.plain, "undo", str(steps))
        assert_same(tree_of(twin.mount.path), moment.tree)

    def go_to(self, twin: Twin, plain: Path | None, command: str, word: str) -> None:
        """Restore or undo."""
        twin.program.handles.close_all()
        before = self.moment(twin)
        twin.mount.machine.run(command, twin.mount.path, word)
        twin.before_restores.append(before)
        self.replace(twin, plain)
        twin.compare()

    @rule(number=PICK)
    def commit(self, number: int) -> None:
        """Commit."""
        twin = self.pick(number)
        self.note("commit", twin)
        twin.mount.commit("work")
        twin.committed = self.copy(twin.plain)
        twin.before_restores = []  # a restore before it is no longer undone
        assert twin.mount.status() == {}

    @rule(number=PICK)
    def kill(self, number: int) -> None:
        """kill -9, and mount again."""
        self.end(number, "kill", lambda twin: twin.mount.kill())

    @rule(number=PICK)
    def remount(self, number: int) -> None:
        """Unmount, and mount again."""
        self.end(number, "remount", lambda twin: twin.mount.umount())

    def end(self, number: int, what: str, end: Callable[[Twin], None]) -> None:
        """Have a session's process end, and go on."""
        twin = self.pick(number)
        self.note(what, twin)
        twin.program.handles.close_all()
        before = tree_of(twin.mount.path)
        end(twin)
        self.mount_again(twin, "mount", twin.mount.machine, str(twin.mount.machine.store))
        assert_same(tree_of(twin.mount.path), before)

    @rule(number=PICK, is_moved=st.booleans())
    def pause(self, number: int, is_moved: bool) -> None:
        """Pause, and resume, perhaps on the other machine."""
        twin = self.pick(number)
        self.note(f"pause {is_moved}", twin)
        twin.program.handles.close_all()
        before = tree_of(twin.mount.path)
        machine = twin.mount.machine
        machine.run("pause", twin.mount.path, "--drop-checkpoints")
        if is_moved:
            machine = self.machines[1 - self.machines.index(machine)]
        self.mount_again(twin, "mount", machine, str(machine.store))
        twin.checkpoints, twin.before_restores = {}, []
        assert_same(tree_of(twin.mount.path), before)

    def mount_again(self, twin: Twin, command: str, machine: Machine, store: str) -> None:
        """Mount a session where it was mounted."""
        words = [command, store, str(twin.mount.path), "--session", twin.name, "--autosave", "off"]
        document = machine.json(*words)
        machine.keep(twin.mount.path)
        twin.mount = Mount(machine, twin.mount.path, document)

    @precondition(lambda self: len(self.twins) > 1)
    @rule(number=PICK)
    def delete(self, number: int) -> None:
        """Delete a session; the others stay as they are."""
        twin = self.pick(number)
        self.note("delete", twin)
        twin.program.handles.close_all()
        machine = twin.mount.machine
        twin.mount.umount()
        machine.run("session", "delete", machine.store, twin.name, "--force")
        self.twins.remove(twin)

    def teardown(self) -> None:
        """Every session has what it should have, also when mounted anew."""
        try:
            for number, twin in enumerate(self.twins):
                twin.compare()
                self.remount(number)
                twin.compare()
        finally:
            for twin in self.twins:
                twin.program.handles.close_all()
                twin.mount.machine.start("umount", "--lazy", twin.mount.path)


@pytest.fixture(params=["file", "s3"])
def machines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Machine]]:
    """Two machines that reach the same store."""
    if request.param == "s3":
        server: Server = request.getfixturevalue("seaweedfs")
        with s3_machine(tmp_path, server) as far:
            other: S3Machine = far.beside()
            other._steals = False
            yield [far, other]
        return
    near = Machine(tmp_path)
    near.init()
    second = Machine(tmp_path)
    second.state_dir = tmp_path / "other state"
    try:
        yield [near, second]
    finally:
        near.close()
        second.close()


@pytest.mark.timeout(7200 if IS_FULL else 300)
def test_sessions_are_what_they_should_be(machines: list[Machine]) -> None:
    """Whatever is done to any of them, in whatever order."""
    made: list[Sessions] = []

    def begin() -> Sessions:
        made.append(Sessions(machines))
        return made[-1]

    try:
        run_state_machine_as_test(
            begin,
            settings=settings(
                max_examples=60 if IS_FULL else 2,
                stateful_step_count=40 if IS_FULL else 16,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
                print_blob=True,
                database=None,
                derandomize=not IS_FULL,
            ),
        )
    except BaseException as exc:
        exc.add_note("\n".join(made[-1].log))
        raise
