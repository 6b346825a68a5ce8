"""Archiving sessions, and what their policies ask for while nobody has them mounted."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import Machine, Mount, kill, tree_of
from workspacefs.errors import ExitCode
from workspacefs.statedir import StateDir
from workspacefs.workspace.archiving import tidy_sessions
from workspacefs.workspace.workspace import Workspace

DAY_NS = 86400 * 10**9


class LateClock:
    """A clock that is some days ahead."""

    def __init__(self, days: float) -> None:
        self._ahead_ns = int(days * DAY_NS)

    def now_ns(self) -> int:
        return time.time_ns() + self._ahead_ns


def tidy(machine: Machine, days: float) -> dict[str, tuple[str, bool, str | None]]:
    """Tidy as a machine would some days later; return what was asked for, by session."""
    workspace = Workspace.open(str(machine.store), clock=LateClock(days))

    def put_away(name: str) -> None:
        machine.run("session", "archive", machine.store, name)

    return {
        one.session: (one.step, one.is_done, one.reason)
        for one in tidy_sessions(
            workspace, StateDir(str(machine.state_dir)), sorted(rows_of(machine)),
            tidied_by="me", put_away=put_away,
        )
    }  # fmt: skip


def rows_of(machine: Machine) -> dict[str, dict[str, object]]:
    """Return what is said of each session, by name."""
    rows = machine.json("session", "list", machine.store, "--all")["sessions"]
    assert isinstance(rows, list)
    return {str(row["session"]): row for row in rows}


def work(mount: Mount) -> None:
    """Commit something, and leave something uncommitted."""
    (mount.path / "a").write_text("a" * 1000)
    mount.commit("base")
    (mount.path / "b").write_bytes(secrets.token_bytes(300_000))
    (mount.path / "a").rename(mount.path / "moved")


def mounted(mount: Mount) -> None:
    """Leave a mount as it is."""


@pytest.mark.parametrize("end", [mounted, Mount.umount, Mount.kill])
def test_archived_session_is_whole_and_takes_no_space(
    machine: Machine, other: Machine, end: Callable[[Mount], None]
) -> None:
    """Whether it was mounted, unmounted with work on the disk, or killed."""
    mount = machine.mount()
    work(mount)
    before, status = tree_of(mount.path), mount.status()
    end(mount)

    answer = machine.json("session", "archive", machine.store, "s")
    again = machine.json("session", "archive", machine.store, "s")

    assert answer["saved"] is not None
    assert again == answer
    assert not machine.has_sessions()
    assert machine.json("session", "list", machine.store)["sessions"] == []
    assert rows_of(machine)["s"]["state"] == "archived"
    resumed = other.resume()
    assert tree_of(resumed.path) == before
    assert resumed.status() == status
    assert rows_of(other)["s"]["state"] == "open"


def test_archiving_is_refused_while_it_is_in_use(machine: Machine, other: Machine) -> None:
    """By a program, on another machine, or because work is on another machine's disk."""
    mount = machine.mount()
    work(mount)
    before = tree_of(mount.path)
    archive = ("session", "archive", machine.store, "s")
    program = subprocess.Popen(["sleep", "60"], cwd=mount.path)
    try:
        machine.run(*archive, code=ExitCode.EXISTS_OR_BUSY)
    finally:
        program.kill()
        program.wait()
    other.run(*archive, code=ExitCode.EXISTS_OR_BUSY)
    assert tree_of(mount.path) == before
    (mount.path / "more").write_text("more than was stored by the first try")
    before = tree_of(mount.path)
    mount.umount()

    refused = other.start(*archive)

    assert refused.returncode == ExitCode.EXISTS_OR_BUSY
    assert os.uname().nodename.encode() in refused.stderr
    assert tree_of(mount.again().path) == before


def test_checkpoints_keep_a_session_from_being_archived(machine: Machine) -> None:
    """Until they are given up."""
    mount = machine.mount()
    work(mount)
    machine.run("checkpoint", mount.path)
    archive = ("session", "archive", machine.store, "s")
    machine.run(*archive, code=ExitCode.REFUSED)
    mount.umount()
    machine.run(*archive, code=ExitCode.REFUSED)
    assert machine.json("checkpoint", "list", mount.again().path)["checkpoints"]
    mount.umount()

    machine.run(*archive, "--drop-checkpoints")

    assert not machine.has_sessions()


def test_time_archives_and_deletes(machine: Machine, other: Machine) -> None:
    """On any machine; with the work stored, and not before the time has come."""
    mount = machine.mount()
    work(mount)
    before = tree_of(mount.path)
    machine.run(
        "session", "set", machine.store, "s", "--archive-after", "7d", "--delete-after", "30d"
    )
    assert tidy(machine, days=400) == {}  # mounted
    mount.umount()

    assert tidy(machine, days=6) == {}
    (step, is_done, reason) = tidy(other, days=8)["s"]
    assert (step, is_done) == ("archive", False)
    assert "disk of" in str(reason)
    assert tidy(machine, days=8) == {"s": ("archive", True, None)}

    assert not machine.has_sessions()
    assert tree_of(other.resume().path) == before
    other.run("session", "archive", other.store, "s")
    assert tidy(machine, days=29) == {}
    assert tidy(machine, days=31) == {"s": ("delete", True, None)}
    assert rows_of(other) == {}


def test_work_on_a_disk_alone_is_not_deleted_by_time(machine: Machine, other: Machine) -> None:
    """Neither on that machine nor from another one."""
    mount = machine.mount()
    work(mount)
    before = tree_of(mount.path)
    machine.run("session", "set", machine.store, "s", "--delete-after", "1d")
    mount.umount()

    other.run("session", "delete", other.store, "s", code=ExitCode.REFUSED)
    for place in (machine, other):
        ((step, is_done, reason),) = tidy(place, days=2).values()
        assert (step, is_done) == ("delete", False)
        assert reason

    mount = mount.again()
    assert tree_of(mount.path) == before
    mount.commit("all")
    mount.umount()
    assert tidy(machine, days=2) == {"s": ("delete", True, None)}
    assert not machine.has_sessions()


def test_copy_of_what_was_archived_elsewhere_goes(machine: Machine, other: Machine) -> None:
    """All of it was in the store already."""
    mount = machine.mount()
    work(mount)
    mount.commit("all")
    mount.umount()
    other.run("session", "archive", other.store, "s")
    assert machine.has_sessions()

    machine.run("session", "tidy", machine.store)

    assert not machine.has_sessions()
    assert rows_of(machine)["s"]["state"] == "archived"


def test_tidy_says_what_it_does(machine: Machine) -> None:
    """And with --dry-run what it would do."""
    mount = machine.mount("gone", session="gone", ephemeral=True)
    work(mount)
    kill(mount.pid)
    tidying = ("session", "tidy", machine.store)
    row = {"session": "gone", "step": "delete", "reason": None}

    assert machine.json(*tidying, "--dry-run")["sessions"] == [{**row, "done": False}]
    assert machine.json(*tidying)["sessions"] == [{**row, "done": True}]
    assert machine.json(*tidying)["sessions"] == []
    assert not machine.has_sessions()


def test_killed_while_it_is_put_away(machine: Machine, other: Machine) -> None:
    """Whatever was done by then: it is here with all of its work, or in the store."""
    mount = machine.mount()
    work(mount)
    before = tree_of(mount.path)
    mount.umount()
    words = ["session", "archive", str(machine.store), "s"]
    command = [sys.executable, "-m", "workspacefs.cli", *words]
    supervisor = machine.supervisor_pid()
    for _ in range(3):
        asker = subprocess.Popen(command, env=machine.environ(), stderr=subprocess.PIPE)
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children")
        while asker.poll() is None:
            for pid in children.read_text().split():
                kill(int(pid))
        assert asker.wait() in (ExitCode.OK, ExitCode.UNAVAILABLE)
        assert asker.stderr is not None
        asker.stderr.close()

    resumed = (other if not machine.has_sessions() else machine).resume()
    assert tree_of(resumed.path) == before
