"""Commands around a mount, on real mounts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.harness import Machine, Mount
from workspacefs.errors import ExitCode

_DEADLINE_S = 30.0


def _supervisor(machine: Machine) -> dict[str, object]:
    return machine.json("supervisor", "status")


def test_mount_says_where_and_what(machine: Machine, mount: Mount) -> None:
    """The document names the session, its place, its base and its process."""
    document = mount.document

    assert document["mountpoint"] == str(mount.path)
    assert document["session"] == "s"
    assert document["store_url"] == f"file://{machine.store}"
    assert Path(f"/proc/{document['pid']}").exists()


def test_status_groups_and_counts(machine: Machine, mount: Mount) -> None:
    """From the mountpoint, from inside, and below a directory only."""
    (mount.path / "d").mkdir()
    (mount.path / "d" / "x").write_text("x")
    (mount.path / "gone").write_text("x")
    mount.commit()
    (mount.path / "d" / "x").write_text("xyz")
    (mount.path / "gone").unlink()
    (mount.path / "new").write_text("")
    (mount.path / "e").mkdir()

    text = machine.run("status", mount.path)

    assert mount.status() == {
        "d/x": "modified", "gone": "deleted", "new": "added", "e": "added",
    }  # fmt: skip
    assert "  M d/x  (1 B -> 3 B)" in text
    assert "  A e/\n" in text
    assert "4 changes: 2 added, 1 modified, 1 deleted" in text
    below = machine.json("status", mount.path / "d")["changes"]
    assert [row["path"] for row in below] == ["d/x"]  # type: ignore[attr-defined]
    deleted = machine.json("status", mount.path / "gone")["changes"]
    assert [row["path"] for row in deleted] == ["gone"]  # type: ignore[attr-defined]


def test_status_of_many_changes_arrives_whole(machine: Machine, mount: Mount) -> None:
    """More rows than one message holds come in parts; a person is shown the first ones."""
    for number in range(2500):
        (mount.path / f"f{number}").touch()

    assert len(mount.status()) == 2500
    text = machine.run("status", mount.path)
    assert "2,500 added" in text
    assert "… and 2,300 more" in text


def test_diff_is_a_patch(machine: Machine, mount: Mount) -> None:
    """Text on standard output; the same in JSON."""
    (mount.path / "a").write_text("one\n")

    text = machine.run("diff", mount.path)

    assert "+one\n" in text
    assert machine.json("diff", mount.path)["patch"] == text


def test_commit_takes_provenance_from_flags_and_environment(
    machine: Machine, mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flags win over variables; metadata is kept."""
    monkeypatch.setenv("WORKSPACEFS_AGENT", "from-environment")
    monkeypatch.setenv("WORKSPACEFS_MODEL", "model-1")
    (mount.path / "a").write_text("x")

    answer = mount.commit("why", "--agent", "flagged", "--meta", "k=v", "--into", "main")

    assert answer["landed_on"] == "main"
    (commit,) = machine.json("log", machine.store)["commits"]  # type: ignore[misc]
    assert commit["commit"] == answer["commit"]
    assert (commit["agent"], commit["model"]) == ("flagged", "model-1")
    assert (commit["session"], commit["meta"]) == ("s", {"k": "v"})


def test_conflict_gives_exit_code_5(machine: Machine, mount: Mount) -> None:
    """Nothing lands, the commit stays on its session, and each path is named."""
    other = machine.mount("other", session="other")
    (other.path / "f").write_text("theirs")
    other.commit("theirs", "--into", "main")
    (mount.path / "f").write_text("ours")

    done = machine.start("commit", mount.path, "-m", "ours", "--into", "main")

    assert done.returncode == ExitCode.MOVED
    assert "add/add" in done.stdout.decode()
    assert "nothing landed: 1 conflict with main" in done.stderr.decode()
    messages = [row["message"] for row in machine.json("log", machine.store)["commits"]]  # type: ignore[attr-defined]
    assert messages == ["theirs"]
    assert mount.status() == {}


def test_nothing_to_commit_is_said(machine: Machine, mount: Mount) -> None:
    """No commit is made of no change."""
    assert "nothing to commit" in machine.run("commit", mount.path, "-m", "x")


def test_session_comes_back_with_uncommitted_work(machine: Machine, mount: Mount) -> None:
    """Unmounted and mounted again, by name."""
    (mount.path / "a").write_text("x")
    mount.umount()
    assert not (mount.path / "a").exists()

    again = mount.again()

    assert (again.path / "a").read_text() == "x"
    assert again.status() == {"a": "added"}


def test_umount_of_a_used_mount_names_the_user(machine: Machine, mount: Mount) -> None:
    """A program that works there keeps it; --lazy takes it away all the same."""
    user = subprocess.Popen(["sleep", "60"], cwd=mount.path)
    try:
        document = machine.json("umount", mount.path, code=ExitCode.EXISTS_OR_BUSY)
        assert f"sleep (pid {user.pid}: working directory)" in str(document["error"])
        assert mount.status() == {}
        machine.run("umount", "--lazy", mount.path)
    finally:
        user.kill()
        user.wait()
    assert not os.path.ismount(mount.path)


def test_lazily_unmounted_session_is_not_shown_as_mounted(machine: Machine, mount: Mount) -> None:
    """It is in use and nowhere to be seen: all that lists or wants it says so."""
    user = subprocess.Popen(["sleep", "60"], cwd=mount.path)
    try:
        told = machine.start("umount", "--lazy", mount.path).stderr.decode()

        (row,) = machine.json("sessions", "--local")["sessions"]  # type: ignore[misc]
        (stored,) = machine.json("sessions", machine.store)["sessions"]  # type: ignore[misc]
        refused = machine.json(
            *("mount", machine.store, mount.path, "--session", "s"), code=ExitCode.EXISTS_OR_BUSY
        )
    finally:
        user.kill()
        user.wait()

    assert "session s goes on for the programs that use it" in told
    assert row["is_hidden"] is True
    assert stored["mountpoint"] is None
    assert "does not show it any more" in refused["error"]["message"]  # type: ignore[index]


def test_second_mount_says_that_the_usual_session_is_elsewhere(machine: Machine) -> None:
    """Without --session the next of the line is mounted: its user must not miss work silently."""
    first = machine.mount("first", session=None)
    (machine.directory / "second").mkdir()

    done = machine.start("mount", machine.store, machine.directory / "second")
    machine.run("umount", machine.directory / "second")

    assert done.returncode == 0
    assert f"session {first.document['session']} is in use (mounted at {first.path})" in (
        done.stderr.decode()
    )


def test_log_level_of_the_environment_holds_in_sessions(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session logs as its supervisor does."""
    monkeypatch.setenv("WORKSPACEFS_LOG_LEVEL", "error")

    machine.mount()

    assert (machine.state_dir / "log" / "workspacefsd.jsonl").read_text() == ""


def test_umount_from_inside_works(machine: Machine, mount: Mount) -> None:
    """The command itself does not keep the mount busy."""
    command = [sys.executable, "-P", "-m", "workspacefs.cli", "umount", str(mount.path)]

    done = subprocess.run(
        ["sh", "-c", 'cd "$0" && exec "$@"', str(mount.path), *command],
        env=machine.environ(),
        check=False,
    )

    assert done.returncode == 0
    assert not os.path.ismount(mount.path)


def test_dead_mount_is_told_and_cleaned_by_mount(machine: Machine, mount: Mount) -> None:
    """kill -9: status says how to go on, and mount does."""
    (mount.path / "a").write_text("x")
    mount.kill()

    document = machine.json("status", mount.path, code=ExitCode.UNAVAILABLE)
    again = mount.again()

    assert document["error"]["kind"] == "session.dead"  # type: ignore[index]
    assert "--session s" in document["error"]["message"]  # type: ignore[index]
    assert (again.path / "a").read_text() == "x"


def test_dead_mount_is_cleaned_by_umount(machine: Machine, mount: Mount) -> None:
    """After kill -9 umount leaves an ordinary directory, and the session can be resumed."""
    mount.kill()

    document = machine.json("umount", mount.path)

    assert document["was_dead"] is True
    assert os.listdir(mount.path) == []
    assert machine.json("sessions", "--local") == {"sessions": []}


def test_session_mounted_twice_says_where(machine: Machine, mount: Mount) -> None:
    """One session, one mount."""
    (machine.directory / "n").mkdir()

    document = machine.json(
        *("mount", machine.store, machine.directory / "n", "--session", "s"),
        code=ExitCode.EXISTS_OR_BUSY,
    )

    assert document["error"]["kind"] == "session.mounted"  # type: ignore[index]
    assert str(mount.path) in document["error"]["message"]  # type: ignore[index]


def test_busy_mountpoint_is_refused(machine: Machine, mount: Mount) -> None:
    """Something is mounted there: it is said what."""
    document = machine.json(
        *("mount", machine.store, mount.path, "--session", "t"), code=ExitCode.EXISTS_OR_BUSY
    )

    assert document["error"]["kind"] == "mountpoint.mounted"  # type: ignore[index]
    assert "session s" in document["error"]["message"]  # type: ignore[index]


def test_mkdir_makes_and_takes_back(machine: Machine) -> None:
    """--mkdir creates the mountpoint, and removes it when the mount fails."""
    place = machine.directory / "x" / "y"

    machine.json("mount", machine.store, place, "--mkdir", "--session", "../x", code=2)
    assert not place.exists()
    machine.mount("x/z", mkdir=True, session="s")
    assert os.path.ismount(machine.directory / "x" / "z")


def test_time_travel_is_read_only(machine: Machine, mount: Mount) -> None:
    """--at shows the past; it cannot be changed, and its log is that of its revision."""
    (mount.path / "a").write_text("old")
    mount.commit("old")
    (mount.path / "a").write_text("new")
    mount.commit("new")

    past = machine.mount("past", session=None, at="s~1", read_only=True)

    assert (past.path / "a").read_text() == "old"
    with pytest.raises(OSError, match="Read-only"):
        (past.path / "b").write_text("x")
    machine.json("commit", past.path, "-m", "x", code=ExitCode.REFUSED)
    (commit,) = machine.json("log", past.path)["commits"]  # type: ignore[misc]
    assert commit["message"] == "old"
    assert "revision s~1, base" in machine.run("status", past.path)
    assert "revision s~1 of" in machine.run("sessions", "--local")


def test_read_only_view_is_not_told_to_be_worked_in(machine: Machine, mount: Mount) -> None:
    """Without --at it shows the branch as it is now."""
    (mount.path / "a").write_text("x")
    mount.commit("why", "--into", "main")
    (machine.directory / "view").mkdir()

    done = machine.start("mount", machine.store, machine.directory / "view", "--read-only")
    machine.run("umount", machine.directory / "view")

    assert b"main is mounted at" in done.stdout
    assert b"read-only" in done.stdout


def test_racing_mounts_start_one_supervisor(machine: Machine) -> None:
    """Many first mounts at once: all succeed, one supervisor comes of it."""
    with ThreadPoolExecutor(4) as pool:
        mounts = list(pool.map(lambda i: machine.mount(f"m{i}", session=f"s{i}"), range(4)))

    assert len({mount.pid for mount in mounts}) == 4
    log = (machine.state_dir / "log" / "workspacefsd.jsonl").read_text()
    assert log.count("supervisor.started") == 1


def test_mounts_outlive_their_supervisor(machine: Machine, mount: Mount) -> None:
    """kill -9 of the supervisor: the mount answers, and a new supervisor knows it."""
    os.kill(int(str(_supervisor(machine)["pid"])), signal.SIGKILL)
    (mount.path / "a").write_text("x")

    machine.mount("other", session="other")

    assert mount.status() == {"a": "added"}
    found = machine.json("sessions", "--local")["sessions"]
    assert {row["session"] for row in found} == {"s", "other"}  # type: ignore[attr-defined]
    assert all(row["is_alive"] for row in found)  # type: ignore[attr-defined]


def test_long_state_dir_is_no_obstacle(tmp_path: Path) -> None:
    """Unix sockets have short names; state directories need not."""
    machine = Machine(tmp_path)
    machine.state_dir = tmp_path / ("long" * 40)
    machine.init()
    try:
        mount = machine.mount()
        assert mount.status() == {}
    finally:
        machine.close()


def test_foreground_unmounts_on_interrupt(machine: Machine) -> None:
    """--foreground stays; Ctrl-C unmounts and keeps what was written."""
    place = machine.directory / "fg"
    place.mkdir()
    command = [sys.executable, "-P", "-m", "workspacefs.cli", "mount", str(machine.store)]
    process = subprocess.Popen(
        [*command, str(place), "--session", "fg", "--foreground"],
        env=machine.environ(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    (place / "a").write_text("x")

    process.send_signal(signal.SIGINT)

    assert process.wait(_DEADLINE_S) == 0
    assert "session fg is mounted" in line
    assert not os.path.ismount(place)
    again = machine.mount("fg", session="fg")
    assert (again.path / "a").read_text() == "x"


def test_no_secret_of_the_caller_reaches_a_daemon(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A canary in the environment is in no process, log or state file of ours."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-7f3a")

    mount = machine.mount()
    mount.status()

    for pid in (mount.pid, int(str(_supervisor(machine)["pid"]))):
        assert b"canary-7f3a" not in Path(f"/proc/{pid}/environ").read_bytes()
    for path in machine.state_dir.rglob("*"):
        if path.is_file():
            assert b"canary-7f3a" not in path.read_bytes()


def test_outside_of_a_mount_is_told(machine: Machine, tmp_path: Path) -> None:
    """Commands that need a mount say that there is none, and how to get one."""
    for command in (["status"], ["diff"], ["commit", "-m", "x"]):
        document = machine.json(*command, tmp_path, code=ExitCode.NOT_FOUND)
        assert document["error"]["kind"] == "session.not_mounted"  # type: ignore[index]
    machine.json("umount", tmp_path, code=ExitCode.NOT_FOUND)


def test_planted_attribute_leads_nowhere(machine: Machine, tmp_path: Path) -> None:
    """An ordinary file that claims to be in a session is not believed further than a socket."""
    path = tmp_path / "f"
    path.write_text("x")
    claim = (
        b'{"session": "s", "session_id": "x", "socket": "/nowhere", "mountpoint": "/", '
        b'"store_url": "file:///s"}'
    )
    try:
        os.setxattr(path, "user.workspacefs.session", claim)
    except OSError:
        pytest.skip("no user attributes here")

    machine.json("status", path, code=ExitCode.UNAVAILABLE)


def test_supervisor_of_older_code_is_replaced(machine: Machine, mount: Mount) -> None:
    """stop frees the place; the next mount starts a new one, old mounts go on."""
    first = _supervisor(machine)["pid"]

    machine.run("supervisor", "stop")
    deadline = time.monotonic() + _DEADLINE_S
    while _supervisor(machine)["is_running"]:
        assert time.monotonic() < deadline
    machine.mount("other", session="other")

    assert _supervisor(machine)["pid"] != first
    assert mount.status() == {}
