"""Dead processes come back: real mounts, kill -9, and a supervisor that may be killed as well."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness import Machine, Mount, kill, tree_of
from workspacefs.errors import ExitCode
from workspacefs_daemon.restarts import DEATHS_MAX

PATIENCE_S = 30.0


@pytest.fixture
def machine(machine: Machine) -> Machine:
    """A machine whose supervisor brings dead sessions back."""
    machine.restarts = True
    return machine


def registered(machine: Machine) -> list[dict[str, object]]:
    """Return the registered sessions."""
    found = machine.json("sessions", "--local")["sessions"]
    assert isinstance(found, list)
    return found


def events(machine: Machine, name: str) -> list[dict[str, object]]:
    """Return what was logged under a name."""
    lines = (machine.state_dir / "log/workspacefsd.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def wait_until_back(mount: Mount) -> None:
    """Return when another process serves the mount; it is the one to kill from then on."""
    machine, before = mount.machine, mount.pid

    def is_back() -> bool:
        (row,) = registered(machine)
        mount.pid = int(str(row["pid"]))
        return bool(row["is_alive"]) and mount.pid != before

    machine.wait_until(is_back)


def wait_until_adopted(machine: Machine, *, supervisor: int, sessions: int = 1) -> None:
    """Return when so many sessions have told a supervisor what they have mounted."""
    machine.wait_until(
        lambda: (
            sum(one["supervisor_pid"] == supervisor for one in events(machine, "session.adopted"))
            >= sessions
        )
    )


def wait_for_successor(machine: Machine, *, before: int) -> int:
    """Return the supervisor that came after one that is gone."""

    def is_there() -> bool:
        answer = machine.json("supervisor", "status")
        return bool(answer["is_running"]) and answer["pid"] != before

    machine.wait_until(is_there)
    return machine.supervisor_pid()


@contextmanager
def recovery_held_up(machine: Machine) -> Iterator[None]:
    """Let whoever opens a layer wait until the block ends."""
    held = []
    for layer in (machine.state_dir / "layers").glob("*/*/boot"):
        file = layer.with_name("settling").open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
        held.append(file)
    assert held
    try:
        yield
    finally:
        for file in held:
            file.close()


def work(mount: Mount) -> dict[str, tuple[object, ...]]:
    """Commit something, change it, and return what is seen."""
    (mount.path / "d").mkdir()
    (mount.path / "d/kept").write_text("kept")
    mount.commit("base")
    (mount.path / "d/new").write_bytes(os.urandom(300_000))
    (mount.path / "link").symlink_to("d/new")
    os.setxattr(mount.path / "d/kept", "user.note", b"n")
    return tree_of(mount.path)


def test_killed_session_comes_back(machine: Machine) -> None:
    """At the same place, with all that is not committed; so does a view, of the same commit."""
    mount = machine.mount(autosave="5m")
    before = work(mount)

    mount.kill()
    wait_until_back(mount)

    assert tree_of(mount.path) == before
    assert mount.status() == {"d/new": "added", "link": "added", "d/kept": "metadata"}
    assert machine.json("status", mount.path)["autosave_s"] == 300
    mount.commit("all", "--into", "main")
    assert tree_of(mount.path) == before


def test_killed_view_comes_back_as_it_was(machine: Machine) -> None:
    """Its branch has moved since: a view shows one commit."""
    mount = machine.mount()
    work(mount)
    mount.commit("first", "--into", "main")
    view = machine.mount("view", session=None, read_only=True)
    before = tree_of(view.path)
    (mount.path / "later").write_text("l")
    mount.commit("second", "--into", "main")
    mount.umount()

    view.kill()
    wait_until_back(view)

    assert tree_of(view.path) == before


def test_what_a_writer_wrote_is_there(machine: Machine) -> None:
    """Each call that returned before kill -9; the writer's files are those of the dead mount."""
    mount = machine.mount()
    for number in range(DEATHS_MAX - 1):
        program = (
            "import os, sys\n"
            f"out = os.open(sys.argv[1] + '/log{number}', os.O_CREAT | os.O_WRONLY)\n"
            "while True:\n"
            "    os.write(out, b'x' * 100)\n"
            "    print(flush=True)\n"
        )
        writer = subprocess.Popen(
            [sys.executable, "-c", program, str(mount.path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert writer.stdout is not None
        assert writer.stderr is not None
        for _ in range(50):
            writer.stdout.readline()

        mount.kill()
        returned = 50 + len(writer.stdout.readlines())
        wait_until_back(mount)

        # The call that was under way; each one after it would be ENOTCONN.
        said = writer.stderr.read()
        assert b"connection abort" in said or b"endpoint is not connected" in said
        writer.wait()
        size_bytes = (mount.path / f"log{number}").stat().st_size
        # One more write may have been done whose call did not return.
        assert size_bytes in (100 * returned, 100 * (returned + 1))


def test_directory_that_one_stood_in(machine: Machine) -> None:
    """It is that of the dead mount for good; the same path leads to the new one."""
    mount = machine.mount()
    work(mount)
    stood = os.open(mount.path / "d", os.O_RDONLY)

    mount.kill()
    wait_until_back(mount)

    with pytest.raises(OSError, match="not connected") as caught:
        os.stat("kept", dir_fd=stood)
    assert caught.value.errno == errno.ENOTCONN
    os.close(stood)
    assert (mount.path / "d/kept").read_text() == "kept"


def test_mount_by_hand_of_what_came_back(machine: Machine) -> None:
    """It says where the session is, and to go there again."""
    mount = machine.mount()
    mount.kill()
    wait_until_back(mount)

    refused = machine.start("mount", machine.store, mount.path, "--session", "s")

    assert refused.returncode == ExitCode.EXISTS_OR_BUSY
    assert f"cd {mount.path}".encode() in refused.stderr


def test_mount_by_hand_of_what_is_coming_back(machine: Machine) -> None:
    """It waits for that, and succeeds."""
    mount = machine.mount()
    before = work(mount)
    with recovery_held_up(machine):
        mount.kill()
        machine.wait_until(lambda: events(machine, "session.restarting"))
        words = ("mount", machine.store, mount.path, "--session", "s")
        asked = subprocess.Popen(machine.command(*words), env=machine.environ())
        machine.wait_until(lambda: is_connected(asked.pid))

    assert asked.wait(PATIENCE_S) == 0
    assert tree_of(mount.path) == before
    assert len(events(machine, "session.mounted")) == 2


def is_connected(pid: int) -> bool:
    """Tell whether a process has a socket, and waits."""
    try:
        names = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state == "S" and any(name.startswith("socket:") for name in names)


def test_killed_in_a_loop_is_given_up(machine: Machine) -> None:
    """After some deaths it stays dead, which says why; mounted by hand it is looked after again."""
    mount = machine.mount()
    before = work(mount)
    for _ in range(DEATHS_MAX - 1):
        mount.kill()
        wait_until_back(mount)

    mount.kill()
    machine.wait_until(lambda: registered(machine)[0]["given_up"])

    said = machine.run("sessions", "--local")
    assert f"DEAD: its process died {DEATHS_MAX} times within 60 seconds" in said
    assert [one["session"] for one in events(machine, "session.given_up")] == ["s"]
    with pytest.raises(OSError, match="not connected"):
        os.statvfs(mount.path)
    mount = mount.again()
    assert tree_of(mount.path) == before
    mount.kill()
    wait_until_back(mount)


def test_umount_wins_over_a_restart(machine: Machine) -> None:
    """It ends what brings the session back, and nothing is mounted afterwards."""
    mount = machine.mount()
    before = work(mount)
    with recovery_held_up(machine):
        mount.kill()
        machine.wait_until(lambda: events(machine, "session.restarting"))
        (restart,) = events(machine, "session.restarting")

        mount.umount()

        assert not Path(f"/proc/{restart['session_pid']}").exists()
    assert registered(machine) == []
    assert not os.path.ismount(mount.path)
    assert list(mount.path.iterdir()) == []
    assert tree_of(mount.again().path) == before


def test_umount_wins_over_a_death(machine: Machine) -> None:
    """The session is killed while it is being asked."""
    mount = machine.mount()
    before = work(mount)
    os.kill(mount.pid, signal.SIGSTOP)
    try:
        asked = subprocess.Popen(
            machine.command("umount", mount.path), env=machine.environ(), stderr=subprocess.PIPE
        )
        machine.wait_until(lambda: is_connected(asked.pid) or is_held_up(asked.pid))
    finally:
        mount.kill()

    _, said = asked.communicate(timeout=PATIENCE_S)
    assert asked.returncode == 0, said
    assert registered(machine) == []
    assert not os.path.ismount(mount.path)
    assert list(mount.path.iterdir()) == []
    assert tree_of(mount.again().path) == before


def is_held_up(pid: int) -> bool:
    """Tell whether a process waits for the answer of a file system."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text() == "request_wait_answer"
    except OSError:
        return False


@pytest.mark.parametrize("way", ["umount", "pause", "SIGTERM", "umount -l", "umount --force"])
def test_given_up_on_purpose_stays_away(machine: Machine, way: str) -> None:
    """Nothing comes back, and nothing is left to be told of; the next mount is looked after."""
    mount = machine.mount()
    work(mount)

    if way == "umount":
        mount.umount()
    elif way == "pause":
        machine.run("pause", mount.path)
    elif way == "SIGTERM":
        os.kill(mount.pid, signal.SIGTERM)
    elif way == "umount -l":
        subprocess.run(["umount", "-l", mount.path], check=True)
    else:
        machine.run("umount", "--force", mount.path)
    machine.wait_until(lambda: not registered(machine))
    machine.wait_until(lambda: events(machine, "session.process_ended"))

    assert events(machine, "session.restarting") == []
    assert not os.path.ismount(mount.path)
    assert [path.name for path in (machine.state_dir / "run").glob("*.given-up")] == []
    mount = mount.again()
    mount.kill()
    wait_until_back(mount)


def test_umount_that_was_refused_changes_nothing(machine: Machine) -> None:
    """A program is in the mount: it stays, and is brought back when it dies."""
    mount = machine.mount()
    work(mount)
    with (mount.path / "d/kept").open():
        machine.run("umount", mount.path, code=ExitCode.EXISTS_OR_BUSY)
        machine.run("pause", mount.path, code=ExitCode.EXISTS_OR_BUSY)

    mount.kill()
    wait_until_back(mount)


def test_lazily_unmounted_session_stays_away(machine: Machine) -> None:
    """It goes on for the program that uses it, and when it is killed that was all."""
    mount = machine.mount()
    work(mount)
    with (mount.path / "d/kept").open():
        machine.run("umount", "--lazy", mount.path)
        kill(mount.pid)
        machine.wait_until(lambda: events(machine, "session.process_ended"))

    assert events(machine, "session.restarting") == []
    assert not os.path.ismount(mount.path)


def test_killed_supervisor_is_replaced(machine: Machine) -> None:
    """By the sessions, once, without touching them; its successor brings them back."""
    mounts = [machine.mount(name, session=name) for name in ("a", "b", "c")]
    pids = {str(mount.pid) for mount in mounts}
    before = work(mounts[0])
    first = machine.supervisor_pid()

    kill(first)
    second = wait_for_successor(machine, before=first)
    wait_until_adopted(machine, supervisor=second, sessions=3)

    assert {str(row["pid"]) for row in registered(machine)} == pids
    assert len(events(machine, "supervisor.started")) == 2
    files = [os.readlink(path) for path in Path(f"/proc/{second}/fd").iterdir()]
    assert "/dev/fuse" not in files, "the death of its starter would go unnoticed"
    mounts[0].kill()
    machine.wait_until(lambda: events(machine, "session.restarted"))
    assert tree_of(mounts[0].path) == before
    for mount in mounts:
        mount.umount()
    machine.wait_until(lambda: registered(machine) == [])
    assert len(events(machine, "session.restarting")) == 1


def test_stopped_supervisor_is_not_fought(machine: Machine) -> None:
    """Sessions start none in its place; the next one that somebody starts looks after them."""
    mount = machine.mount()
    before = work(mount)
    first = machine.supervisor_pid()
    wait_until_adopted(machine, supervisor=first)

    machine.run("supervisor", "stop")
    machine.wait_until(lambda: not Path(f"/proc/{first}").exists())
    machine.mount("other", session="other")
    second = machine.supervisor_pid()
    wait_until_adopted(machine, supervisor=second, sessions=2)

    started = events(machine, "supervisor.started")
    assert [one["pid"] for one in started] == [first, second]
    kill(mount.pid)
    machine.wait_until(lambda: events(machine, "session.restarted"))
    assert tree_of(mount.path) == before


def test_nobody_is_brought_back_if_that_is_off(machine: Machine) -> None:
    """WORKSPACEFS_RESTART=off: a dead session stays dead."""
    machine.restarts = False
    mount = machine.mount()

    mount.kill()
    machine.wait_until(lambda: events(machine, "session.process_ended"))

    (row,) = registered(machine)
    assert (row["is_alive"], row["given_up"]) == (False, None)
    assert events(machine, "session.adopted") == []
    assert events(machine, "session.restarting") == []
