"""The verbs of versioning_adapter.py do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Machine

ADAPTER = Path(__file__).parents[1] / "versioning_adapter.py"


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state whose mounts are taken away at the end."""
    (tmp_path / "a").mkdir()
    made = Machine(tmp_path / "a")
    try:
        yield tmp_path / "a"
    finally:
        for name in sorted(os.listdir(tmp_path / "a" / "ws")):
            made.keep(tmp_path / "a" / "ws" / name)
        made.close()


def do(*words: str | Path, code: int = 0) -> str:
    """Run a verb; return what it printed."""
    done = subprocess.run(
        [sys.executable, ADAPTER, *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout.strip()


def test_a_story(state: Path) -> None:
    """Two sessions, of which one lands and the other is in conflict; history; kill; deletion."""
    do("init", state)
    one, two = Path(do("fork", state, "one")), Path(do("fork", state, "two"))
    (one / "f").write_text("one\n")
    (two / "f").write_text("two\n")
    first = do("commit", one, "first")
    assert do("commit", one, "again") == first
    do("commit", two, "second")
    do("merge", state, "one", "main")

    assert do("merge", state, "two", "main", code=1) == "f"

    assert do("head", state, "main") == first
    (one / "f").unlink()
    do("commit", one, "gone")
    do("checkout", state, first, state / "out")
    do("checkout", state, first, state / "out")
    assert os.listdir(state / "out") == ["f"]
    (two / "g").write_text("not committed")
    do("remount", two)
    assert (two / "g").read_text() == "not committed"
    three = Path(do("fork", state, "three", "two"))
    assert (three / "g").read_text() == "not committed"
    do("drop", state, "one")
    do("gc", state)
    do("fsck", state)
    assert not one.exists()
    do("nothing", code=64)
