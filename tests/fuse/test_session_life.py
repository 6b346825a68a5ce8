"""What becomes of a session by itself: pausing when idle or when its time is over."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.harness import Machine, Mount, tree_of
from workspacefs.errors import ExitCode


def is_gone(mount: Mount) -> bool:
    """Tell whether a session's process has ended, and nothing is mounted there."""
    stat = Path(f"/proc/{mount.pid}/stat")
    is_dead = not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
    return is_dead and not os.path.ismount(mount.path)


def work(mount: Mount) -> None:
    """Commit something, and leave something uncommitted."""
    (mount.path / "d").mkdir()
    (mount.path / "d/a").write_text("a" * 1000)
    mount.commit("base")
    (mount.path / "d/b").write_bytes(os.urandom(300_000))
    (mount.path / "d/a").rename(mount.path / "moved")


def row_of(machine: Machine, session: str = "s") -> dict[str, object]:
    """Return what the store says of a session."""
    return machine.json("session", "show", machine.store, session)


# -- idle ---------------------------------------------------------------------------------------


def test_idle_session_pauses_and_is_resumed_elsewhere(machine: Machine, other: Machine) -> None:
    """Nothing of it is left, all of it is in the store, and its policy goes along."""
    mount = machine.mount(idle_pause="1s")
    work(mount)
    before, status = tree_of(mount.path), mount.status()

    machine.wait_until(lambda: is_gone(mount))

    assert not machine.has_sessions()
    assert row_of(machine)["lease"] is None
    resumed = other.resume("s", "--idle-pause", "off")
    assert tree_of(resumed.path) == before
    assert resumed.status() == status
    assert row_of(other)["policy"]["idle_pause_s"] is None  # type: ignore[index]


def test_housekeeping_is_no_use(machine: Machine) -> None:
    """Autosave, df, status and stat of what is known do not keep a session from pausing."""
    mount = machine.mount(idle_pause="2s", autosave="1s")
    work(mount)
    before = tree_of(mount.path)

    def look() -> bool:
        if os.path.ismount(mount.path):
            machine.start("status", mount.path)
            subprocess.run(["df", mount.path], capture_output=True, check=False)
        return is_gone(mount)

    machine.wait_until(look)
    assert tree_of(machine.resume("s", "--idle-pause", "off").path) == before


def test_session_in_use_is_not_idle(machine: Machine) -> None:
    """A program that has its working directory there keeps it, and one line in the log says so."""
    mount = machine.mount(idle_pause="1s")
    work(mount)
    before = tree_of(mount.path)
    program = subprocess.Popen(["sleep", "60"], cwd=mount.path / "d")
    try:
        machine.wait_until(lambda: machine.json("status", mount.path)["pause_put_off"])
        assert "sleep" in str(machine.json("status", mount.path)["pause_put_off"])
        assert tree_of(mount.path) == before
    finally:
        program.kill()
        program.wait()

    machine.wait_until(lambda: is_gone(mount))
    log = (machine.state_dir / "log/workspacefsd.jsonl").read_text()
    assert log.count("session.pause_put_off") <= 2  # again only after a time without
    assert '"level": "error"' not in log
    assert tree_of(machine.resume("s", "--idle-pause", "off").path) == before


def test_checkpoints_keep_a_session_mounted(machine: Machine) -> None:
    """They are on this machine alone: to pause would lose them."""
    mount = machine.mount(idle_pause="1s")
    work(mount)
    machine.run("checkpoint", mount.path, "--name", "one")

    machine.wait_until(lambda: machine.json("status", mount.path)["pause_put_off"])

    assert "checkpoints" in str(machine.json("status", mount.path)["pause_put_off"])
    assert os.path.ismount(mount.path)
    machine.run("checkpoint", "delete", "one", "--path", mount.path)
    machine.wait_until(lambda: is_gone(mount))


# -- time to live -------------------------------------------------------------------------------


def test_session_whose_time_is_over_loses_nothing_of_who_uses_it(
    machine: Machine, other: Machine
) -> None:
    """A program has a file open and writes on after the mount is out of sight."""
    mount = machine.mount(ttl="2s")
    work(mount)
    with (mount.path / "d/open").open("w") as file:
        file.write("before ")
        file.flush()
        before = tree_of(mount.path)
        machine.wait_until(lambda: not os.path.ismount(mount.path))
        assert Path(f"/proc/{mount.pid}").exists()
        file.write("and after")
        file.flush()
    machine.wait_until(lambda: is_gone(mount))

    assert not machine.has_sessions()
    resumed = other.resume("s", "--ttl", "off")
    assert (resumed.path / "d/open").read_text() == "before and after"
    after = tree_of(resumed.path)
    del before["d/open"], after["d/open"], before["d"], after["d"]
    assert after == before


def test_time_counts_from_the_mount(machine: Machine) -> None:
    """A session that is resumed has all of it again."""
    mount = machine.mount(ttl="2s")
    machine.wait_until(lambda: is_gone(mount))

    again = machine.resume()

    assert os.path.ismount(again.path)
    assert row_of(machine)["policy"]["ttl_s"] == 2  # type: ignore[index]
    machine.wait_until(lambda: is_gone(again))


# -- ephemeral ----------------------------------------------------------------------------------


def names_of(machine: Machine) -> set[str]:
    """Return the names of all sessions that there are."""
    rows = machine.json("session", "list", machine.store, "--all")["sessions"]
    assert isinstance(rows, list)
    return {row["session"] for row in rows}


def test_ephemeral_session_ends_with_its_mount(machine: Machine, other: Machine) -> None:
    """What was landed stays, and nothing else; the usual name of the account is not used up."""
    mount = machine.mount(session=None, ephemeral=True)
    work(mount)
    mount.commit("kept", "--into", "main")
    (mount.path / "not-kept").write_text("x" * 1000)
    machine.run("pause", mount.path, code=ExitCode.REFUSED)

    mount.umount()

    assert names_of(other) == set()
    assert not machine.has_sessions()
    view = machine.mount(session=None)
    assert (view.path / "d/b").exists()
    assert not (view.path / "not-kept").exists()
    assert view.document["session"] != mount.document["session"]


def test_killed_ephemeral_session_is_deleted_by_the_next_mount(machine: Machine) -> None:
    """Of any session of that workspace."""
    mount = machine.mount("gone", session="gone", ephemeral=True)
    living = machine.mount("living", session="living", ephemeral=True)
    work(mount)
    mount.kill()
    machine.mount("kept", session="kept")

    machine.wait_until(lambda: names_of(machine) == {"kept", "living"})

    machine.wait_until(lambda: not list(machine.state_dir.glob("sessions/*/gone/session.json")))
    assert os.path.ismount(living.path)


def test_killed_ephemeral_session_is_not_mounted_again(machine: Machine) -> None:
    """It has ended, as by umount."""
    mount = machine.mount(ephemeral=True)
    work(mount)
    mount.kill()

    refused = machine.start("mount", machine.store, mount.path, "--session", "s")

    assert refused.returncode == ExitCode.REFUSED
    assert b"ephemeral" in refused.stderr
    assert names_of(machine) == set()
    assert not machine.has_sessions()


def test_session_that_is_not_ephemeral_any_more_stays(machine: Machine, other: Machine) -> None:
    """Whoever says so, and whatever comes after."""
    mount = machine.mount(ephemeral=True)
    work(mount)
    before = tree_of(mount.path)
    other.run("session", "set", other.store, "s", "--no-ephemeral")

    mount.umount()

    mount = mount.again()
    assert tree_of(mount.path) == before
    machine.run("session", "set", machine.store, "s", "--ephemeral")
    machine.run("session", "set", machine.store, "s", "--no-ephemeral")
    mount.kill()
    assert tree_of(mount.again().path) == before


def test_ephemeral_fork(machine: Machine) -> None:
    """It goes, its parent stays as it is."""
    parent = machine.mount("parent", session="parent", idle_pause="1h")
    work(parent)
    before = tree_of(parent.path)
    place = machine.directory / "fork"
    machine.json("fork", parent.path, place, "--session", "fork", "--ephemeral")
    machine.keep(place)
    assert tree_of(place) == before
    policy = row_of(machine, "fork")["policy"]
    assert policy == {**row_of(machine, "parent")["policy"], "ephemeral": True}  # type: ignore[dict-item]

    machine.run("umount", place)

    assert names_of(machine) == {"parent"}
    assert tree_of(parent.path) == before


def test_ephemeral_session_whose_time_is_over_is_deleted(machine: Machine) -> None:
    """That is how its mount ends, also for programs that use it still."""
    mount = machine.mount(ephemeral=True, ttl="1s")
    with (mount.path / "open").open("w") as file:
        file.write("x")
        machine.wait_until(lambda: not os.path.ismount(mount.path))
        assert names_of(machine) == {"s"}
    machine.wait_until(lambda: is_gone(mount))

    assert names_of(machine) == set()
    assert not machine.has_sessions()


# -- changing a policy --------------------------------------------------------------------------


def test_policy_of_a_mounted_session_is_changed(machine: Machine, other: Machine) -> None:
    """Here it takes effect at once; from elsewhere without disturbing the mount."""
    mount = machine.mount(autosave="1s")
    work(mount)

    other.run("session", "set", other.store, "s", "--archive-after", "7d", "--ttl", "1d")
    (mount.path / "more").write_text("more")
    mount.wait_until_stored()
    other.run("session", "set", other.store, "s", "--delete-after", "90d", "--ttl", "off")
    mount.commit("all", "--into", "main")

    document = machine.json("status", mount.path)
    assert document["is_lost"] is False
    assert document["policy"] == {
        "idle_pause_s": None,
        "ttl_s": None,
        "archive_after_s": 7 * 86400,
        "delete_after_s": 90 * 86400,
        "ephemeral": False,
    }
    assert row_of(machine)["policy"] == document["policy"]
    before = tree_of(mount.path)
    machine.run("session", "set", machine.store, "s", "--idle-pause", "1s")
    machine.wait_until(lambda: is_gone(mount))
    assert tree_of(other.resume("s", "--idle-pause", "off").path) == before


def test_unmount_after_a_policy_change_gives_the_session_back(
    machine: Machine, other: Machine
) -> None:
    """And the store knows whether work was left behind."""
    mount = machine.mount()
    work(mount)
    other.run("session", "set", other.store, "s", "--archive-after", "7d")

    mount.umount()

    row = row_of(other)
    assert row["lease"] is None
    assert row["left"]["host"] == os.uname().nodename  # type: ignore[index]
    mount = mount.again()
    assert row_of(other)["left"] is None
    mount.commit("all")
    mount.umount()
    assert row_of(other)["left"] is None
    assert row_of(other)["policy"]["archive_after_s"] == 7 * 86400  # type: ignore[index]


def test_what_makes_no_sense_is_refused(machine: Machine) -> None:
    """With exit codes that say why; nothing is changed by it."""
    machine.mount().umount()
    for words, code in (
        (("session", "set", machine.store, "s"), ExitCode.USAGE),
        (("session", "set", machine.store, "s", "--ttl", "0s"), ExitCode.USAGE),
        (("session", "set", machine.store, "s", "--ttl", "soon"), ExitCode.USAGE),
        (("session", "set", machine.store, "--ttl", "1h"), ExitCode.USAGE),
        (("session", "list", machine.store, "--ttl", "1h"), ExitCode.USAGE),
        (("session", "set", machine.store, "nobody", "--ttl", "1h"), ExitCode.NOT_FOUND),
    ):
        machine.run(*words, code=code)
    view = ("mount", machine.store, machine.directory / "m", "--read-only", "--ttl", "1h")
    machine.run(*view, code=ExitCode.USAGE)
