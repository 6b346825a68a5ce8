"""A merge into a mounted session that is cut off at any moment has been done, or not."""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

import pytest

from tests.effort import IS_FULL
from tests.harness import Machine, Mount, kill, tree_of

ROUNDS = 40 if IS_FULL else 8
FILES = 60


def lines(number: int, *changed: tuple[int, str]) -> str:
    """Return the text of a file."""
    text = [f"line {at} of {number}\n" for at in range(20)]
    for at, word in changed:
        text[at] = f"{word}\n"
    return "".join(text)


def text_of(path: Path, number: int) -> str:
    """Return what a file of the mount has."""
    return (path / f"d{number % 5}/f{number}").read_text()


@pytest.mark.parametrize("is_dirty", [False, True])
def test_killed_while_merging(machine: Machine, is_dirty: bool) -> None:
    """kill -9 of the session's process at random moments of `update`: afterwards the mount shows
    all of the merge or nothing of it, own changes always; and in the end all is there, once.
    """
    rng = random.Random(11 + is_dirty)
    mine = machine.mount("mine", session="mine")
    for number in range(FILES):
        path = mine.path / f"d{number % 5}/f{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(lines(number))
    mine.commit("base", "--into", "main")
    there = machine.mount("there", session="there")
    seen = {"before": 0, "after": 0}
    for turn in range(ROUNDS):
        own, other = f"own {turn}", f"other {turn}"
        for number in range(FILES):
            (there.path / f"d{number % 5}/f{number}").write_text(lines(number, (3, other)))
        (there.path / f"new {turn}").write_text(other)
        there.commit(other, "--into", "main")
        for number in range(0, FILES, 7):
            before = text_of(mine.path, number).splitlines(keepends=True)
            before[15] = f"{own}\n"
            (mine.path / f"d{number % 5}/f{number}").write_text("".join(before))
        if not is_dirty:
            mine.commit(own)
        before_merge = tree_of(mine.path)
        with subprocess.Popen(
            machine.command("update", mine.path), env=machine.environ(),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as update:  # fmt: skip
            time.sleep(rng.uniform(0.1, 0.5))
            kill(mine.pid)
            update.wait()
        mine = mine.again()
        if (mine.path / f"new {turn}").exists():
            seen["after"] += 1
            check(mine, own, other)
        else:
            seen["before"] += 1
            assert tree_of(mine.path) == before_merge
            machine.json("update", mine.path)
            check(mine, own, other)
        if is_dirty:
            mine.commit(own)
    landed = machine.json("merge", "--into", "main", mine.path)
    assert landed["conflicts"] == []
    fresh = machine.mount("fresh", session="fresh")
    assert contents(fresh.path) == contents(mine.path)
    assert seen["before"] + seen["after"] == ROUNDS


def check(mine: Mount, own: str, other: str) -> None:
    """Raise unless both sides' lines are in all files."""
    for number in range(FILES):
        text = text_of(mine.path, number).splitlines()
        assert text[3] == other
        if number % 7 == 0:
            assert text[15] == own


def contents(root: Path) -> dict[str, bytes]:
    """Return all files of a tree."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
