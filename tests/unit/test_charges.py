"""Which dead sessions are brought back: a clock turned by hand, and processes that do nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clocks import TurnedClock
from workspacefs.client.registry import (
    LiveSession,
    boot_id,
    find_given_up,
    find_start_ticks,
    forget_session,
    give_up_session,
    save_session,
)
from workspacefs.errors import BusyError, RefusedError, UnavailableError, WorkspaceError
from workspacefs.protocol.failures import error_document
from workspacefs.statedir import StateDir, ensure_state_dir
from workspacefs_daemon.births import Answer
from workspacefs_daemon.charges import Charges
from workspacefs_daemon.restarts import DEATHS_MAX, DEATHS_WITHIN_S, LONGEST_PAUSE_S
from workspacefs_daemon.spec import SessionSpec
from workspacefs_daemon.zygote import StartedSession

KILLED = -signal.SIGKILL


class Machine:
    """Charges over a real run directory; sessions are children that sleep."""

    def __init__(self, directory: Path) -> None:
        self.state = StateDir(str(directory))
        ensure_state_dir(self.state)
        self.clock = TurnedClock()
        self.forked: list[SessionSpec] = []
        self.children: list[subprocess.Popen[bytes]] = []
        self.writers: list[int] = []
        self.watched: dict[int, Callable[[], None]] = {}
        self.mounts = {"/m"}
        self.charges = Charges(
            self.state,
            fork=self.fork,
            watch=self.watched.__setitem__,
            unwatch=self.watched.pop,
            now_s=self.clock.monotonic,
            is_mounted=self.mounts.__contains__,
        )

    def fork(self, spec: SessionSpec) -> StartedSession:
        reader, writer = os.pipe()
        child = subprocess.Popen(["sleep", "600"])
        self.forked.append(spec)
        self.children.append(child)
        self.writers.append(writer)
        return StartedSession(child.pid, reader)

    def spec(self, **members: object) -> SessionSpec:
        made = {"store_url": "file:///s", "mountpoint": "/m", "state_dir": self.state.root}
        return SessionSpec(**{**made, **members})  # type: ignore[arg-type]

    def result(self, **members: object) -> dict[str, object]:
        """Register the newest child, and return what it says of its mount."""
        pid = self.children[-1].pid
        session = LiveSession(
            session="s",
            session_id="abc",
            socket=self.state.session_socket("abc"),
            mountpoint="/m",
            store_url="file:///s",
            branch="main",
            is_read_only=False,
            pid=pid,
            start_ticks=find_start_ticks(pid) or 0,
            boot_id=boot_id(),
            mounted_ns=1,
        )._replace(**members)  # type: ignore[arg-type]
        save_session(self.state, session)
        return {**session._asdict(), "base": "c0ffee"}

    def mount(self, **members: object) -> None:
        """Mount a session as if somebody had asked for it."""
        started = self.fork(self.spec(**members))
        os.close(started.ready_fd)
        self.charges.take(self.forked[-1], self.result(), started.pid)
        self.forked.clear()

    def say(self, answer: Answer) -> None:
        """Let the process that was forked last say what came of its mount."""
        message: dict[str, object] = (
            {"error": error_document(answer)}
            if isinstance(answer, WorkspaceError)
            else {"ok": dict(answer)}
        )
        os.write(self.writers[-1], json.dumps(message).encode() + b"\n")
        (react,) = self.watched.values()
        react()

    def end(self, status: int = KILLED) -> None:
        """End the process that was forked last; then time passes."""
        child = self.children[-1]
        child.kill()
        child.wait()
        os.close(self.writers.pop())
        self.charges.ended(child.pid, status)
        self.charges.run_due()

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.sleep(seconds)
        self.charges.run_due()

    def close(self) -> None:
        self.charges.close_files()
        for child in self.children:
            child.kill()
            child.wait()
        for writer in self.writers:
            os.close(writer)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """No session yet."""
    made = Machine(tmp_path)
    yield made
    made.close()


def test_killed_session_is_mounted_again(machine: Machine) -> None:
    """The very session that was mounted, wherever its name came from; never by stealing."""
    machine.mount(steals=True, session_name=None)

    machine.end()

    assert machine.forked == [machine.spec(session_name="s")]


def test_killed_view_shows_the_same_commit(machine: Machine) -> None:
    """Though its branch has moved since."""
    machine.mount(read_only=True, branch="main")

    machine.end()

    assert machine.forked == [machine.spec(read_only=True, at_rev="c0ffee")]


@pytest.mark.parametrize("status", [0, -signal.SIGTERM, -signal.SIGINT])
def test_session_that_ended_on_purpose_is_not(machine: Machine, status: int) -> None:
    """Its exit status says so."""
    machine.mount()

    machine.end(status)

    assert machine.forked == []


def test_session_that_was_being_unmounted_is_not(machine: Machine) -> None:
    """It had noted that, and was killed before it had ended."""
    machine.mount()
    give_up_session(machine.state, "abc", "it was being unmounted")

    machine.end()

    assert machine.forked == []


def test_session_that_was_cleared_away_is_not(machine: Machine) -> None:
    """Its registration is gone, whatever its process ended with."""
    machine.mount()
    forget_session(machine.state, "abc")

    machine.end(1)

    assert machine.forked == []


def test_session_whose_mount_is_gone_is_not(machine: Machine) -> None:
    """Somebody took it away by other means."""
    machine.mount()
    machine.mounts.clear()

    machine.end()

    assert machine.forked == []


def test_given_up_after_some_deaths_within_a_minute(machine: Machine) -> None:
    """What kills it each time shall not kill it for ever; why stands where `sessions` looks."""
    machine.mount()

    for number in range(1, DEATHS_MAX):
        machine.end()
        assert len(machine.forked) == number
        machine.say(machine.result())
    machine.end()
    machine.wait(DEATHS_WITHIN_S)

    assert len(machine.forked) == DEATHS_MAX - 1
    assert "died 4 times within 60 seconds" in str(find_given_up(machine.state, "abc"))


def test_deaths_long_ago_do_not_count(machine: Machine) -> None:
    """A session that dies every half minute is brought back each time."""
    machine.mount()

    for number in range(1, 4 * DEATHS_MAX):
        machine.end()
        assert len(machine.forked) == number
        machine.say(machine.result())
        machine.wait(DEATHS_WITHIN_S / 2)


def test_death_before_the_mount_counts(machine: Machine) -> None:
    """A session whose recovery kills it is given up as well."""
    machine.mount()

    for _ in range(DEATHS_MAX):
        machine.end()

    assert len(machine.forked) == DEATHS_MAX - 1
    assert find_given_up(machine.state, "abc") is not None
    assert not machine.charges.is_busy


def test_store_that_is_away_is_waited_for(machine: Machine) -> None:
    """With longer and longer pauses, without end."""
    machine.mount()
    machine.end()

    for _ in range(20):
        machine.say(UnavailableError("no answer", kind="store.away"))
        machine.end(1)
        before = len(machine.forked)
        assert 0 < machine.charges.wait_s(1000) <= LONGEST_PAUSE_S
        machine.wait(machine.charges.wait_s(1000))
        assert len(machine.forked) == before + 1

    assert find_given_up(machine.state, "abc") is None


def test_error_that_stays_gives_up(machine: Machine) -> None:
    """Somebody else has the session by now: that is told, and not tried again."""
    machine.mount()
    machine.end()

    machine.say(BusyError("session s is mounted on elsewhere", kind="session.leased"))
    machine.end(1)
    machine.wait(1000)

    assert len(machine.forked) == 1
    assert "is mounted on elsewhere" in str(find_given_up(machine.state, "abc"))


def test_death_is_seen_though_the_mount_was_not_heard_of_yet(machine: Machine) -> None:
    """The process says that it mounted and dies before anybody looks."""
    machine.mount()
    machine.end()
    message = {"ok": machine.result()}
    os.write(machine.writers[-1], json.dumps(message).encode() + b"\n")

    machine.end()

    assert len(machine.forked) == 2


def test_umount_ends_what_is_on_its_way_back(machine: Machine) -> None:
    """It hears of it when the process is gone, even if that had mounted by then."""
    machine.mount()
    machine.end()
    told: list[Answer] = []

    machine.charges.release("/m", told.append)
    assert told == []
    os.write(machine.writers[-1], json.dumps({"ok": machine.result()}).encode() + b"\n")
    assert machine.children[-1].wait() == KILLED
    machine.end()

    assert told == [{"session": "s", "store_url": "file:///s"}]
    assert len(machine.forked) == 1
    assert not machine.charges.is_busy


def test_umount_between_two_attempts(machine: Machine) -> None:
    """One attempt has failed and its process is still ending: there is no second one."""
    machine.mount()
    machine.end()
    machine.say(UnavailableError("no answer", kind="store.away"))
    told: list[Answer] = []

    machine.charges.release("/m", told.append)
    machine.end(1)
    machine.wait(1000)

    assert told == [{"session": "s", "store_url": "file:///s"}]
    assert len(machine.forked) == 1


def test_umount_while_it_waits(machine: Machine) -> None:
    """The store is away: it is not tried again."""
    machine.mount()
    machine.end()
    machine.say(UnavailableError("no answer", kind="store.away"))
    machine.end(1)
    told: list[Answer] = []

    machine.charges.release("/m", told.append)
    machine.wait(1000)

    assert told == [{"session": "s", "store_url": "file:///s"}]
    assert len(machine.forked) == 1


def test_supervisor_that_stops_says_what_it_leaves_dead(machine: Machine) -> None:
    """What waits to come back would wait for ever."""
    machine.mount()
    machine.end()
    machine.say(UnavailableError("no answer", kind="store.away"))
    machine.end(1)

    machine.charges.stop()

    assert "supervisor stopped" in str(find_given_up(machine.state, "abc"))


def test_umount_before_the_death_was_seen(machine: Machine) -> None:
    """The process is dead and nobody has told the supervisor: then it must not begin."""
    machine.mount()
    machine.children[-1].kill()
    os.waitid(os.P_PID, machine.children[-1].pid, os.WEXITED | os.WNOWAIT)
    told: list[Answer] = []

    machine.charges.release("/m", told.append)
    machine.end()

    assert told == [{"session": "s", "store_url": "file:///s"}]
    assert machine.forked == []


def test_umount_of_a_living_session_asks_that(machine: Machine) -> None:
    """The supervisor keeps it: the session itself may refuse to be unmounted."""
    machine.mount()
    told: list[Answer] = []

    machine.charges.release("/m", told.append)
    machine.end()

    assert told == [{"session": None, "store_url": None}]
    assert len(machine.forked) == 1


def test_mount_joins_what_is_on_its_way_back(machine: Machine) -> None:
    """Whoever asks for the same session at the same place gets that one."""
    machine.mount()
    machine.end()
    told: list[Answer] = []

    assert machine.charges.join(machine.spec(session_name="s"), told.append)
    assert machine.charges.join(machine.spec(store_url="/s/"), told.append)
    assert not machine.charges.join(machine.spec(session_name="other"), told.append)
    result = machine.result()
    machine.say(result)

    assert told == [result, result]


def test_mount_by_hand_replaces_what_waits(machine: Machine) -> None:
    """At the same place, or of the same session elsewhere."""
    for members in ({"session_name": "other"}, {"session_name": "s", "mountpoint": "/elsewhere"}):
        machine.mount()
        machine.end()
        machine.say(UnavailableError("no answer", kind="store.away"))
        machine.end(1)
        assert machine.charges.is_busy

        machine.charges.make_way(machine.spec(**members))

        assert not machine.charges.is_busy


def test_adopted_process_need_not_be_a_child(machine: Machine) -> None:
    """Its end is seen all the same."""
    machine.mount()
    pid = machine.children[-1].pid
    other = Machine(Path(machine.state.root))
    other.charges.adopt(machine.spec(session_name="s"), "abc", pid)
    other.charges.adopt(machine.spec(session_name="s", autosave_s=1.0), "abc", pid)
    ((_, react),) = other.watched.items()

    machine.children[-1].kill()
    react()
    other.charges.run_due()

    assert other.forked == [machine.spec(session_name="s", autosave_s=1.0)]
    other.close()


def test_only_the_session_itself_is_adopted(machine: Machine) -> None:
    """Another process cannot say how it is mounted again."""
    machine.mount()

    with pytest.raises(RefusedError) as caught:
        machine.charges.adopt(machine.spec(), "abc", os.getpid())

    assert caught.value.kind == "adopt.foreign"
