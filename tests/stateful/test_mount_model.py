"""A mount beside a plain directory: the same program must leave the same, whatever comes between.

WORKSPACEFS_TEST_SEED chooses the programs, WORKSPACEFS_TEST_PROGRAMS how many; a failure names its
seed and the operations that led to it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from tests.harness import Machine, Mount, tree_of
from tests.kernel_caches import drop_caches
from tests.stateful.program import Program, brief

SEED = int(os.environ.get("WORKSPACEFS_TEST_SEED", "1"))
PROGRAMS = int(os.environ.get("WORKSPACEFS_TEST_PROGRAMS", "12"))
STEPS = int(os.environ.get("WORKSPACEFS_TEST_STEPS", "60"))
PARTS = int(os.environ.get("WORKSPACEFS_TEST_PARTS", "9"))
MTIME = 4
"""Place of the modification time in what tree_of() returns."""

Tree = dict[str, tuple[object, ...]]


class Story:
    """One program with everything that may come between its operations."""

    def __init__(self, seed: int, machine: Machine) -> None:
        self.rng = random.Random(seed)
        self.machine = machine
        self.mount: Mount = machine.mount()
        self.plain = machine.directory / "plain"
        self.plain.mkdir()
        os.chmod(self.mount.path, 0o755)
        self.program = Program(seed, self.mount.path, self.plain)
        self.exports = 0

    def run(self) -> None:
        """Run the whole program."""
        for part in range(PARTS):
            for _ in range(self.rng.randrange(STEPS)):
                self.program.step()
            between: Callable[[], None] = self.rng.choice(
                (self.commit, self.commit, self.kill, self.remount, self.drop_caches, self.land)
            )
            self.program.log.append(f"-- {between.__name__} ({part})")
            between()
            self.compare()
        self.commit()
        self.remount()
        self.compare()
        assert self.mount.status() == {}

    def compare(self) -> None:
        """Require the same tree on both sides."""
        assert_same(without_times(tree_of(self.mount.path)), without_times(tree_of(self.plain)))

    def commit(self) -> None:
        """Commit; the files stay, and nothing is left to commit."""
        before = tree_of(self.mount.path)
        self.mount.commit("work")
        assert_same(tree_of(self.mount.path), before)
        assert self.mount.status() == {}

    def kill(self) -> None:
        """kill -9 and mount again; nothing is lost, times included."""
        self.program.handles.close_all()
        before = tree_of(self.mount.path)
        self.mount.kill()
        self.mount = self.mount.again()
        assert_same(tree_of(self.mount.path), before)

    def remount(self) -> None:
        """Unmount and mount again."""
        self.program.handles.close_all()
        before = tree_of(self.mount.path)
        self.mount.umount()
        self.mount = self.mount.again()
        assert_same(tree_of(self.mount.path), before)

    def drop_caches(self) -> None:
        """Have the kernel forget what it can."""
        before = tree_of(self.mount.path)
        for what in ("2", "3"):
            if not drop_caches(what):
                return
        assert_same(tree_of(self.mount.path), before)

    def land(self) -> None:
        """Commit onto main and compare with what an export of it has."""
        self.mount.commit("work", "--into", "main")
        self.exports += 1
        out = self.machine.directory / f"out{self.exports}"
        answer = self.machine.start("export", f"{self.machine.store}@main", out)
        if answer.returncode:
            assert b"no branch" in answer.stderr or b"main" in answer.stderr, answer.stderr
            return
        expected = without_times(tree_of(self.mount.path))
        found = without_times(tree_of(out))
        kinds = {path for path, facts in expected.items() if _is_special(facts)}
        setid = 0o6000
        assert_same(_plain(found, setid, kinds), _plain(expected, setid, kinds))


def without_times(tree: Tree) -> Tree:
    """Leave out modification times, which two directories never share."""
    return {path: (*facts[:MTIME], *facts[MTIME + 1 :]) for path, facts in tree.items()}


def _plain(tree: Tree, bits: int, leave_out: set[str]) -> Tree:
    """Leave out what an export leaves out."""
    kept: Tree = {}
    for path, facts in tree.items():
        if path not in leave_out:
            kept[path] = (int(str(facts[0])) & ~bits, facts[3], facts[5])
    return kept


def _is_special(facts: tuple[object, ...]) -> bool:
    return int(str(facts[0])) & 0o170000 in (0o010000, 0o140000)


def assert_same(found: Tree, expected: Tree) -> None:
    """Compare trees; a failure says which paths differ, and in what."""
    different = [
        (path, _short(found.get(path)), _short(expected.get(path)))
        for path in sorted(found.keys() | expected.keys())
        if found.get(path) != expected.get(path)
    ]
    assert not different, different[:5]


def _short(facts: tuple[object, ...] | None) -> str:
    return repr(facts and [brief(fact) for fact in facts])


@pytest.mark.parametrize("number", range(PROGRAMS))
def test_mount_is_like_a_plain_directory(machine: Machine, number: int) -> None:
    """Random programs with commits, kills, mounts and cold caches in between."""
    seed = SEED * 1000 + number
    story = Story(seed, machine)
    try:
        story.run()
    except (AssertionError, OSError) as exc:
        lines = "\n".join(story.program.log[-60:])
        raise AssertionError(f"seed {seed}: {exc}\n{lines}\n{machine.log_tail()}") from exc
    finally:
        story.program.handles.close_all()
