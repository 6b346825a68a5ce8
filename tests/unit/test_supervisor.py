"""The supervisor with real processes and sockets, and a session that mounts nothing."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workspacefs.client.connection import Connection
from workspacefs.client.registry import find_start_ticks, living_sessions, load_sessions
from workspacefs.client.supervisor import find_supervisor
from workspacefs.errors import (
    BusyError,
    NotFoundError,
    UnavailableError,
    UsageError,
    WorkspaceError,
)
from workspacefs.statedir import StateDir

_REPOSITORY = Path(__file__).resolve().parents[2]
_DEADLINE_S = 20.0


def until(is_so: Callable[[], object]) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + _DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


class Supervised:
    """A state directory and whoever supervises it."""

    def __init__(self, directory: Path) -> None:
        self.state = StateDir(str(directory / "state"))
        self.directory = directory

    def start(self, **environ: str) -> dict[str, object]:
        """Start a supervisor; return what it said when it was ready, or why it is not."""
        reader, writer = os.pipe()
        command = [
            *(sys.executable, "-P", "-m", "workspacefs_daemon.app", "supervise"),
            *("--state-dir", self.state.root, "--ready-fd", str(writer)),
            *("--session-module", "tests.unit.fake_session"),
        ]
        path = os.pathsep.join(filter(None, (str(_REPOSITORY), os.environ.get("PYTHONPATH"))))
        subprocess.run(
            command,
            pass_fds=[writer],
            env={**os.environ, "PYTHONPATH": path, **environ},
            check=False,
            capture_output=True,
            timeout=_DEADLINE_S,
        )
        os.close(writer)
        with open(reader, "rb") as answer:
            document = json.loads(answer.read())
        assert isinstance(document, dict)
        return document

    def connect(self) -> Connection:
        """Return a connection to the supervisor."""
        return Connection.open(self.state.supervisor_socket)

    def pid(self) -> int:
        """Return its process id."""
        with self.connect() as connection:
            return int(str(connection.call("ping")["pid"]))

    def mount(self, name: str | None = "s", directory: str = "m") -> dict[str, object]:
        """Ask for a mount."""
        mountpoint = self.directory / directory
        mountpoint.mkdir(exist_ok=True)
        with self.connect() as connection:
            return connection.call("mount", {"spec": self.spec(name, mountpoint)})

    def spec(self, name: str | None, mountpoint: Path) -> dict[str, object]:
        """Return what is to be mounted."""
        return {
            "store_url": f"file://{self.directory}/store",
            "mountpoint": str(mountpoint),
            "state_dir": self.state.root,
            "session_name": name,
        }

    def events(self) -> list[dict[str, object]]:
        """Return everything that was logged."""
        return [json.loads(line) for line in Path(self.state.log_file).read_text().splitlines()]

    def close(self) -> None:
        """End everything."""
        for session in load_sessions(self.state):
            if session.is_alive():
                os.kill(session.pid, signal.SIGKILL)
        connection = find_supervisor(self.state)
        if connection is not None:
            with connection:
                connection.call("stop")


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    """A supervisor that runs."""
    made = Supervised(tmp_path)
    assert "ok" in made.start()
    try:
        yield made
    finally:
        made.close()


def test_mount_answers_with_the_session(supervised: Supervised) -> None:
    """The session runs in a process of its own and answers on its own socket."""
    result = supervised.mount("amber")

    assert result["session"] == "amber"
    with Connection.open(str(result["socket"])) as session:
        assert session.call("ping")["pid"] == result["pid"] != supervised.pid()


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def warm_process(supervised: Supervised) -> int:
    """Wait for the process that waits for the next mount; return its id."""
    pid, mounted = supervised.pid(), {one.pid for one in living_sessions(supervised.state)}
    until(lambda: len(children_of(pid)) > len(mounted))
    (found,) = set(children_of(pid)) - mounted
    return found


def test_next_mount_is_served_by_a_process_that_waits(supervised: Supervised) -> None:
    """After each mount one more is made ready; it has nothing of the sessions before it."""
    supervised.mount("first")

    waiting = warm_process(supervised)
    second = supervised.mount("second", "m2")

    assert second["pid"] == waiting
    files = {os.readlink(path) for path in Path(f"/proc/{waiting}/fd").iterdir()}
    assert not [name for name in files if name.endswith(".lock")]
    assert warm_process(supervised) != waiting


def test_killed_waiting_process_costs_nobody_a_mount(supervised: Supervised) -> None:
    """Without one, a process is made when it is needed."""
    supervised.mount("first")
    waiting = warm_process(supervised)

    os.kill(waiting, signal.SIGKILL)
    until(lambda: waiting not in children_of(supervised.pid()))
    second = supervised.mount("second", "m2")

    assert second["session"] == "second"
    assert second["pid"] != waiting


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_waiting_process_ends_with_the_supervisor(supervised: Supervised, end: str) -> None:
    """However it ends."""
    supervised.mount("first")
    pid, waiting = supervised.pid(), warm_process(supervised)
    started = find_start_ticks(waiting)

    if end == "stop":
        with supervised.connect() as connection:
            connection.call("stop")
    else:
        os.kill(pid, signal.SIGKILL)

    until(lambda: find_start_ticks(waiting) != started)


def test_files_of_a_session_are_private(supervised: Supervised) -> None:
    """Sockets, registry and logs can be read by nobody else."""
    supervised.mount()

    for path in Path(supervised.state.root).rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize(
    ("name", "cls", "kind"),
    [
        ("fail", NotFoundError, "rev.absent"),
        ("tell", NotFoundError, "rev.absent"),
        ("bug", WorkspaceError, "internal"),
        ("crash", UnavailableError, "session.died"),
    ],
)
def test_mount_that_fails_says_why(
    supervised: Supervised, name: str, cls: type[WorkspaceError], kind: str
) -> None:
    """The asker gets the session's own error; the supervisor goes on."""
    with pytest.raises(cls) as caught:
        supervised.mount(name)

    assert caught.value.kind == kind
    assert "secret" not in str(caught.value)
    assert supervised.mount("next")["session"] == "next"


def test_sessions_outlive_the_supervisor(supervised: Supervised) -> None:
    """kill -9 of the supervisor disturbs no session, and its successor knows them."""
    result = supervised.mount("amber")
    os.kill(supervised.pid(), signal.SIGKILL)

    until(lambda: "ok" in supervised.start())

    with supervised.connect() as connection:
        (found,) = connection.call("sessions")["sessions"]  # type: ignore[misc]
    assert found["session_id"] == result["session_id"]
    with Connection.open(str(result["socket"])) as session:
        assert session.call("ping")["pid"] == result["pid"]


def test_session_that_ends_leaves_no_trace(supervised: Supervised) -> None:
    """After umount neither socket nor registry file is left, and the process is reaped."""
    result = supervised.mount()

    with Connection.open(str(result["socket"])) as session:
        session.call("umount")

    until(lambda: find_start_ticks(int(str(result["pid"]))) is None)
    until(lambda: not load_sessions(supervised.state))
    assert not Path(str(result["socket"])).exists()


def test_session_that_was_killed_is_still_known_by_name(supervised: Supervised) -> None:
    """Its registry file stays, so that its dead mount can be told of."""
    result = supervised.mount("amber")

    os.kill(int(str(result["pid"])), signal.SIGKILL)

    until(lambda: not living_sessions(supervised.state))
    assert [found.session for found in load_sessions(supervised.state)] == ["amber"]
    until(lambda: any(e.get("exit_status") == -9 for e in supervised.events()))


def test_session_mounted_already_says_where(supervised: Supervised) -> None:
    """The same session is not mounted twice."""
    supervised.mount("amber")

    with pytest.raises(BusyError, match=f"{supervised.directory}/m ") as caught:
        supervised.mount("amber", "other")

    assert caught.value.kind == "session.mounted"


def test_asker_that_gives_up_gets_no_mount_later(supervised: Supervised) -> None:
    """A process that has not mounted yet is ended when its asker hangs up."""
    mountpoint = supervised.directory / "m"
    mountpoint.mkdir()
    connection = supervised.connect()
    asked = threading.Thread(target=_ask_and_be_cut_off, args=(connection, supervised, mountpoint))
    asked.start()
    sockets = Path(supervised.state.run_dir)
    until(lambda: len(list(sockets.glob("*.sock"))) == 2)

    connection.shutdown()

    asked.join()
    until(lambda: any(e.get("exit_status") == 3 for e in supervised.events()))


def _ask_and_be_cut_off(connection: Connection, supervised: Supervised, mountpoint: Path) -> None:
    with pytest.raises(UnavailableError):
        connection.call("mount", {"spec": supervised.spec("hang", mountpoint)})


def test_second_supervisor_refuses(supervised: Supervised) -> None:
    """Two supervisors never serve one state directory; the first one is named."""
    answer = supervised.start()

    assert answer["error"]["kind"] == "supervisor.running"  # type: ignore[index]
    assert str(supervised.pid()) in answer["error"]["message"]  # type: ignore[index]


def test_supervisor_of_changed_code_steps_back(supervised: Supervised) -> None:
    """Another release asks: the old supervisor frees its place before it answers."""
    mountpoint = supervised.directory / "m"
    mountpoint.mkdir()
    args = {"spec": supervised.spec("s", mountpoint), "version": "0.0.0-other"}

    with supervised.connect() as connection, pytest.raises(UnavailableError) as caught:
        connection.call("mount", args)

    assert caught.value.kind == "supervisor.outdated"
    assert "ok" in supervised.start()


def test_other_mount_namespace_is_told(supervised: Supervised) -> None:
    """Whoever could not see the mount does not get one."""
    args = {"spec": supervised.spec("s", supervised.directory), "mount_namespace": 1}

    with supervised.connect() as connection, pytest.raises(UnavailableError) as caught:
        connection.call("mount", args)

    assert caught.value.kind == "supervisor.namespace"


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"spec": 3},
        {"spec": {"store_url": "file:///s"}},
        {"spec": {"store_url": 1, "mountpoint": "/m", "state_dir": "/s"}},
        {"spec": {"store_url": "x", "mountpoint": "/m", "state_dir": "/s", "shell": "rm"}},
    ],
)
def test_malformed_mount_is_refused(supervised: Supervised, args: dict[str, object]) -> None:
    """Missing, unknown and mistyped members are told, and nothing is forked."""
    with supervised.connect() as connection, pytest.raises(UsageError) as caught:
        connection.call("mount", args)

    assert caught.value.kind == "mount.malformed"


def test_nonsense_on_the_socket_harms_nobody(supervised: Supervised) -> None:
    """Garbage is answered with an error; the next asker is served."""
    with supervised.connect() as connection, pytest.raises(UsageError):
        connection.call("x" * 100)
    with supervised.connect() as connection, pytest.raises(UsageError):
        connection.call("unknown")

    assert supervised.pid()


def test_supervisor_leaves_its_starter_alone(supervised: Supervised) -> None:
    """It has a session of its own, / as its directory, and none of its starter's files."""
    pid = supervised.pid()
    proc = Path(f"/proc/{pid}")

    assert os.getsid(pid) != os.getsid(0)
    assert os.readlink(proc / "cwd") == "/"
    pipes = [os.readlink(path) for path in (proc / "fd").iterdir()]
    assert not any(target.startswith("pipe:") and i > 2 for i, target in enumerate(pipes))


def test_missing_library_is_told_at_the_start(tmp_path: Path) -> None:
    """A supervisor that cannot load what sessions need says so to whoever starts it."""
    supervised = Supervised(tmp_path)
    (tmp_path / "trio.py").write_text("raise ImportError('no trio here')")

    answer = supervised.start(PYTHONPATH=f"{tmp_path}{os.pathsep}{_REPOSITORY}")

    assert answer["error"]["kind"] == "supervisor.import"  # type: ignore[index]
    assert "no trio here" in answer["error"]["message"]  # type: ignore[index]
