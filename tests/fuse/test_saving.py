"""Work that is not committed, stored and brought back on another machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

import pytest

from tests.harness import PATIENCE_S, Machine, Mount, inodes_of, kill, tree_of
from workspacefs.errors import ExitCode


def work(mount: Mount) -> None:
    """Commit a base, then change all kinds of things and commit nothing."""
    root = mount.path
    for name in ("d/kept", "d/changed", "d/removed", "d/renamed", "gone/a", "gone/b", "far/x/y"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"base of {name}\n" * 50)
    (root / "large").write_bytes(os.urandom(2_000_000))
    os.link(root / "d/kept", root / "second")
    mount.commit("base", "--into", "main")
    (root / "d/changed").write_text("changed\n")
    (root / "d/removed").unlink()
    shutil.rmtree(root / "gone")
    (root / "d/renamed").rename(root / "far/moved")
    (root / "far").rename(root / "near")
    (root / "new/deep").mkdir(parents=True)
    (root / "new/deep/file").write_text("new\n" * 100)
    (root / "new/empty").touch()
    (root / "link").symlink_to("new/deep")
    os.setxattr(root / "d/kept", "user.note", b"kept")
    os.chmod(root / "d", 0o750)
    with (root / "large").open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"middle")
    with (root / "sparse").open("wb") as file:
        file.truncate(5_000_000)
        file.seek(3_000_000)
        file.write(b"island")


def saved_of(machine: Machine, session: str = "s") -> object:
    """Return what the store has of uncommitted work of a session."""
    return machine.json("session", "show", machine.store, session)["saved"]


def wait_for_save(machine: Machine, before: object = None) -> object:
    """Return what was saved, once that is something else than before."""
    deadline = time.monotonic() + PATIENCE_S
    while (now := saved_of(machine)) == before:
        assert time.monotonic() < deadline, machine.log_tail()
    return now


def test_paused_session_goes_on_elsewhere(machine: Machine, other: Machine) -> None:
    """Every byte, name, mode, link, time and number; the same changes to commit; and nothing of it
    is left on the first machine.
    """
    mount = machine.mount()
    work(mount)
    before, numbers, status = tree_of(mount.path), inodes_of(mount.path), mount.status()

    answer = machine.json("pause", mount.path)

    assert answer["saved"] is not None
    assert not os.path.ismount(mount.path)
    assert list((machine.state_dir / "layers").glob("*/*/data.mdb")) == []
    assert list((machine.state_dir / "sessions").glob("*/*/session.json")) == []
    resumed = other.resume()
    assert resumed.document["has_changes"] is True
    assert other.json("status", resumed.path)["is_stored"] is True
    assert tree_of(resumed.path) == before
    assert inodes_of(resumed.path) == numbers
    assert resumed.status() == status
    resumed.commit("all of it", "--into", "main")
    assert tree_of(resumed.path) == before
    assert saved_of(other) is None


def test_paused_again_and_again(machine: Machine, other: Machine) -> None:
    """Back and forth, with more work each time."""
    mount = machine.mount()
    work(mount)
    for number in range(3):
        (mount.path / f"more{number}").write_text(str(number))
        (mount.path / "new/deep/file").write_text(f"round {number}")
        before, status = tree_of(mount.path), mount.status()
        mount.machine.run("pause", mount.path)
        mount = (other if number % 2 == 0 else machine).resume()
        assert tree_of(mount.path) == before
        assert mount.status() == status


def test_pause_without_changes_keeps_nothing(machine: Machine, other: Machine) -> None:
    """A session whose work is all committed is just unmounted and deleted here."""
    mount = machine.mount()
    work(mount)
    mount.commit("all")
    before = tree_of(mount.path)

    answer = machine.json("pause", mount.path)

    assert answer["saved"] is None
    assert tree_of(other.resume().path) == before


def test_pause_is_refused_while_programs_use_the_mount(machine: Machine) -> None:
    """Nothing is lost or half done: the mount goes on as it was."""
    mount = machine.mount()
    work(mount)
    program = subprocess.Popen(["sleep", "60"], cwd=mount.path / "new")
    try:
        before = tree_of(mount.path)

        machine.run("pause", mount.path, code=ExitCode.EXISTS_OR_BUSY)

        assert tree_of(mount.path) == before
        (mount.path / "goes-on").write_text("yes")
    finally:
        program.kill()
        program.wait()
    machine.run("pause", mount.path)
    assert (machine.resume().path / "goes-on").read_text() == "yes"


def test_killed_machine_loses_what_came_after_the_last_save(
    machine: Machine, other: Machine
) -> None:
    """All processes die, the disk is gone; what was autosaved is there elsewhere."""
    mount = machine.mount(autosave="1s")
    work(mount)
    before, status = tree_of(mount.path), mount.status()
    mount.wait_until_stored()

    kill(mount.pid)
    kill(machine.supervisor_pid())
    subprocess.run(["umount", "-l", mount.path], check=True)
    shutil.rmtree(machine.state_dir)

    resumed = other.resume("s", "--steal")
    assert tree_of(resumed.path) == before
    assert resumed.status() == status


def test_commit_after_autosave_is_whole(machine: Machine, other: Machine) -> None:
    """What was saved is forgotten once it is committed."""
    mount = machine.mount(autosave="1s")
    work(mount)
    wait_for_save(machine)
    (mount.path / "later").write_text("later")
    before = tree_of(mount.path)

    mount.commit("all", "--into", "main")

    assert saved_of(machine) is None
    assert tree_of(mount.path) == before
    assert tree_of(other.mount("view", session="v").path) == before


def test_mounted_session_is_refused_elsewhere(machine: Machine, other: Machine) -> None:
    """The message says who has it; after umount anyone may have it."""
    mount = machine.mount()
    work(mount)

    refused = other.start("mount", other.store, other.directory / "m", "--session", "s", "--mkdir")

    assert refused.returncode == ExitCode.EXISTS_OR_BUSY
    assert os.uname().nodename.encode() in refused.stderr
    assert b"--steal" in refused.stderr
    mount.commit("all")
    before = tree_of(mount.path)
    mount.umount()
    assert tree_of(other.resume().path) == before


def test_killed_session_is_mounted_again_without_stealing(machine: Machine) -> None:
    """The machine itself has the lease still."""
    mount = machine.mount()
    work(mount)
    before = tree_of(mount.path)
    mount.kill()

    assert tree_of(mount.again().path) == before


def test_robbed_mount_keeps_its_files(machine: Machine, other: Machine) -> None:
    """It was thought dead and is not: it can store nothing, shows what it has, and goes on as a
    fork.
    """
    mount = machine.mount(autosave="1s")
    work(mount)
    mount.wait_until_stored()
    resumed = other.resume("s", "--steal")
    (resumed.path / "theirs").write_text("t")
    theirs = tree_of(resumed.path)

    (mount.path / "ours").write_text("o")
    machine.wait_until(lambda: machine.json("status", mount.path)["is_lost"])
    ours = tree_of(mount.path)

    with pytest.raises(OSError, match="Read-only"):
        (mount.path / "more").write_text("m")
    machine.run("commit", mount.path, "-m", "ours", code=ExitCode.MOVED)
    fork = machine.fork(mount, "fork", session="mine")
    assert tree_of(fork.path) == ours
    assert (fork.path / "ours").read_text() == "o"
    fork.commit("ours")
    resumed.commit("theirs", "--into", "main")
    assert tree_of(resumed.path) == theirs


def test_robbed_session_is_refused_when_mounted_again(machine: Machine, other: Machine) -> None:
    """The other has gone on from what was stored: what is here does not build on that, and stays
    on disk.
    """
    mount = machine.mount(autosave="1s")
    work(mount)
    mount.wait_until_stored()
    mount.kill()
    resumed = other.resume("s", "--steal", "--autosave", "1s")
    (resumed.path / "theirs").write_text("t")
    resumed.wait_until_stored()
    before = tree_of(resumed.path)

    for flags, code in (((), ExitCode.REFUSED), (("--steal",), ExitCode.REFUSED)):
        words = ("mount", machine.store, mount.path, "--session", "s", *flags)
        refused = machine.start(*words)
        assert refused.returncode == code, refused.stderr
        assert b"another place" in refused.stderr

    assert list((machine.state_dir / "layers").glob("*/*/data.mdb"))
    assert tree_of(resumed.path) == before


@pytest.mark.parametrize("end", ["umount", "kill"])
def test_resumed_session_can_be_mounted_again_before_it_was_saved(
    machine: Machine, other: Machine, end: str
) -> None:
    """What the store has is still the first machine's; the second one's work builds on that."""
    mount = machine.mount()
    work(mount)
    machine.run("pause", mount.path)
    resumed = other.resume()
    (resumed.path / "more").write_text("more\n")
    before = tree_of(resumed.path)

    resumed.umount() if end == "umount" else resumed.kill()
    again = other.resume()

    assert tree_of(again.path) == before
    other.run("pause", again.path)
    assert tree_of(machine.resume().path) == before
