"""The systems under test behind one face: a directory to work in, and ways to look at the cost.

Every system keeps all it has below one home directory of its own.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from bench.failures import BenchError
from bench.machine import drop_page_cache, find_program, is_mounted, kind_of_disk, remove_tree
from bench.processes import attempt, disk_usage_bytes, find_by_arguments, is_alive, run_tool
from bench.s3.traffic import Traffic
from workspacefs.client.connection import Connection
from workspacefs.client.registry import LiveSession, load_sessions
from workspacefs.errors import WorkspaceError
from workspacefs.statedir import StateDir

_STEP_TIMEOUT_S: Final = 300.0
_CLOSE_TIMEOUT_S: Final = 120.0
_KILL_WAIT_S: Final = 5.0


class System(ABC):
    """One file system to measure. `create`, then `mount`; `close` works at any point."""

    name: ClassVar[str]

    def __init__(self, home: Path) -> None:
        self.home = home
        self.mountpoint = home / "mnt"
        self.environ: Mapping[str, str] = {}
        """What its programs find in their environment besides ours."""

    @property
    def root(self) -> Path:
        """Where workloads work, while it is mounted."""
        return self.mountpoint

    def create(self) -> None:
        """Make the directories and an empty store."""
        self.mountpoint.mkdir(parents=True)

    def close(self, *, keeps_files: bool = False) -> None:
        """Unmount, end what was started, remove all files; never gives up half-way."""
        steps = self._closing_steps()
        if not keeps_files:
            steps.append(lambda: remove_tree(self.home))
        problems = [attempt(step) for step in steps]
        told = "; ".join(str(problem) for problem in problems if problem is not None)
        if told:
            raise BenchError(f"{self.name}: not all was cleaned up: {told}")

    def is_mounted(self) -> bool:
        """Tell whether `root` is what it should be."""
        return is_mounted(self.mountpoint)

    def go_cold(self) -> None:
        """Mount anew, with nothing in any cache that can be emptied."""
        self.unmount()
        self.empty_caches()
        drop_page_cache()
        self.mount()

    def empty_caches(self) -> None:
        """Delete caches of the system's own, if any; called while it is not mounted."""
        return

    @abstractmethod
    def mount(self) -> None:
        """Make `root` usable."""

    @abstractmethod
    def unmount(self) -> None:
        """Take `root` away; the store stays."""

    def settle(self) -> None:
        """Bring all that was written to where a fresh mount would read it from."""
        os.sync()

    def pids(self) -> list[int]:
        """Return the processes that serve the mount."""
        return []

    def messages(self) -> dict[str, int] | None:
        """Return how many requests of the kernel were answered since the mount, by kind."""
        return None

    def inodes(self) -> int | None:
        """Return how many inodes the kernel holds, as far as the daemon knows."""
        return None

    def traffic_mark(self) -> int:
        """Return where the count of requests to a far store stands, for `traffic_since`."""
        return 0

    def traffic_since(self, mark: int) -> Traffic | None:
        """Return what went to a far store since then and came back; None: it has none."""
        return None

    @abstractmethod
    def stored_bytes(self) -> int:
        """Return what it takes on the disk, caches left out."""

    def version(self) -> str:
        """Return the version, for the report."""
        return ""

    def _closing_steps(self) -> list[Callable[[], object]]:
        return []


class Plain(System):
    """A directory of the local disk; called ext4, which is what the project compares with."""

    name = "ext4"

    def mount(self) -> None:
        return

    def unmount(self) -> None:
        return

    def is_mounted(self) -> bool:
        return True

    def stored_bytes(self) -> int:
        return disk_usage_bytes(self.mountpoint)

    def version(self) -> str:
        return kind_of_disk(self.home.parent)


class WorkspaceFs(System):
    """A session of a workspace in a local store, handled through the command line alone."""

    name = "workspacefs"

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.store = home / "store"
        self.state = StateDir(str(home / "state"))
        self.session = "bench"
        self._program = find_program("workspacefs")

    @property
    def url(self) -> str:
        """Where the workspace is stored."""
        return str(self.store)

    def create(self) -> None:
        super().create()
        self.command("init", self.url)

    def command(self, *words: str, timeout_s: float = _STEP_TIMEOUT_S) -> bytes:
        """Run the command line with our own state directory; return its standard output."""
        command = [self._program, words[0], "--state-dir", self.state.root, *words[1:]]
        return run_tool(command, timeout_s=timeout_s, environ=self.environ)

    def ask(self, *words: str, timeout_s: float = _STEP_TIMEOUT_S) -> dict[str, object]:
        """Run a command with --json; return its document."""
        document = json.loads(
            self.command(words[0], "--json", *words[1:], timeout_s=timeout_s),
        )
        if not isinstance(document, dict):
            raise BenchError(f"workspacefs {words[0]} --json does not answer with an object")
        return document

    def mount(self) -> None:
        self.command("mount", self.url, str(self.mountpoint), "--session", self.session)

    def unmount(self) -> None:
        self.command("umount", str(self.mountpoint))

    def begin_session(self, name: str) -> None:
        """Let the next mount begin, or resume, the session of this name."""
        self.session = name

    def stop_supervisor(self) -> None:
        """End the supervisor; it is started again by the next mount."""
        self.command("supervisor", "stop")

    def settle(self) -> None:
        self.command("commit", str(self.mountpoint), "-m", "bench", timeout_s=_STEP_TIMEOUT_S * 4)
        os.sync()

    def pids(self) -> list[int]:
        return [session.pid for session in self._sessions()]

    def messages(self) -> dict[str, int] | None:
        counts = self._counters().get("messages")
        if not isinstance(counts, dict):
            return None
        # Forgets are counted by inode, and the kernel sends them when it likes.
        return {name: count for name, count in counts.items() if name != "forget"}

    def inodes(self) -> int | None:
        count = self._counters().get("inodes")
        return count if isinstance(count, int) else None

    def stored_bytes(self) -> int:
        work = map(Path, (self.state.sessions_dir, self.state.layers_dir))
        return disk_usage_bytes(self.store, *work)

    def unmount_all(self) -> None:
        """Unmount whatever is mounted: forks too, and what does not answer any more."""
        for place in self._mountpoints():
            self._unmount_somehow(place)

    def version(self) -> str:
        return run_tool([self._program, "--version"]).decode().strip().rpartition(" ")[2]

    def _counters(self) -> dict[str, object]:
        for session in self._sessions():
            try:
                with Connection.open(session.socket) as connection:
                    return connection.call("counters")
            except WorkspaceError:
                return {}
        return {}

    def _sessions(self) -> list[LiveSession]:
        return [found for found in load_sessions(self.state) if found.is_alive()]

    def _closing_steps(self) -> list[Callable[[], object]]:
        pids = [session.pid for session in load_sessions(self.state) if session.is_alive()]
        lock = Path(self.state.supervisor_lock)
        text = lock.read_text().strip() if lock.exists() else ""
        pids += [int(text)] if text.isdigit() else []
        return [
            *(partial(self._unmount_somehow, place) for place in self._mountpoints()),
            lambda: lock.exists() and self.command("supervisor", "stop", timeout_s=30),
            lambda: end_processes([pid for pid in pids if self._is_ours(pid)]),
            *(partial(detach, place) for place in self._mountpoints()),
        ]

    def _mountpoints(self) -> set[Path]:
        return {self.mountpoint, *(Path(found.mountpoint) for found in load_sessions(self.state))}

    def _unmount_somehow(self, place: Path) -> None:
        if not is_mounted(place):
            return
        try:
            self.command("umount", str(place), timeout_s=_CLOSE_TIMEOUT_S)
        except BenchError:
            self.command("umount", "--force", str(place), timeout_s=_CLOSE_TIMEOUT_S)

    def _is_ours(self, pid: int) -> bool:
        # A session is forked from the supervisor, so both carry our state directory.
        return pid in find_by_arguments("workspacefs_daemon.app", self.state.root)


class JuiceFs(System):
    """JuiceFS with badger metadata and a local directory for objects; default mount options."""

    name = "juicefs"
    mount_options: ClassVar[tuple[str, ...]] = ()

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._program = find_program("juicefs")
        self._meta_url = f"badger://{home}/meta"
        self._cache = home / "cache"

    def create(self) -> None:
        super().create()
        self._command(
            "format", self._meta_url, f"bench-{secrets.token_hex(4)}",
            *self._storage(), "--trash-days", "0",
        )  # fmt: skip

    def mount(self) -> None:
        self._command(
            "mount", self._meta_url, str(self.mountpoint), "-d",
            "--cache-dir", str(self._cache), "--log", str(self.home / "log"),
            "--no-usage-report", "--backup-meta", "0", "--metrics", "127.0.0.1:0",
            *self.mount_options,
        )  # fmt: skip

    def unmount(self) -> None:
        self._command("umount", str(self.mountpoint))
        # The metadata database is locked until the process has ended.
        wait_for(lambda: not self.pids(), _CLOSE_TIMEOUT_S, "juicefs does not end")

    def empty_caches(self) -> None:
        remove_tree(self._cache)

    def pids(self) -> list[int]:
        return find_by_arguments(self._program, str(self.mountpoint))

    def messages(self) -> dict[str, int] | None:
        try:
            text = (self.mountpoint / ".stats").read_text()
        except OSError:
            return None
        prefix = "juicefs_fuse_ops_total_"
        return {
            line.split()[0].removeprefix(prefix): int(line.split()[1])
            for line in text.splitlines()
            if line.startswith(prefix)
        }

    def stored_bytes(self) -> int:
        return disk_usage_bytes(self.home / "objects", self.home / "meta")

    def version(self) -> str:
        return run_tool([self._program, "version"]).decode().strip().rpartition(" ")[2]

    def _storage(self) -> tuple[str, ...]:
        """Return the options that say where objects are."""
        return ("--storage", "file", "--bucket", f"{self.home}/objects/")

    def _unmount_somehow(self) -> None:
        # When that fails (an interrupted run may hold a file open) the next steps end it.
        if is_mounted(self.mountpoint):
            attempt(self.unmount)

    def _command(self, *words: str) -> bytes:
        return run_tool([self._program, *words], timeout_s=_STEP_TIMEOUT_S, environ=self.environ)

    def _closing_steps(self) -> list[Callable[[], object]]:
        pids = self.pids()
        return [
            self._unmount_somehow,
            lambda: end_processes(pids),
            lambda: detach(self.mountpoint),
        ]


class JuiceFsWriteback(JuiceFs):
    """JuiceFS that answers before objects are stored; not part of the default run."""

    name = "juicefs-writeback"
    mount_options = ("--writeback",)

    def settle(self) -> None:
        super().settle()
        staged = f"{self._cache}"
        wait_for(
            lambda: not any("rawstaging" in path for path, _, files in os.walk(staged) if files),
            _STEP_TIMEOUT_S,
            "juicefs does not finish its uploads",
        )

    def stored_bytes(self) -> int:
        return super().stored_bytes() + sum(
            disk_usage_bytes(path) for path in self._cache.glob("*/rawstaging")
        )


SYSTEMS: Final[dict[str, type[System]]] = {
    kind.name: kind for kind in (Plain, WorkspaceFs, JuiceFs, JuiceFsWriteback)
}
DEFAULT_SYSTEMS: Final = ("ext4", "workspacefs", "juicefs")


def end_processes(pids: Sequence[int]) -> None:
    """End processes that we started, by force if need be."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            if is_alive(pid):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
        deadline = time.monotonic() + _KILL_WAIT_S
        while any(map(is_alive, pids)) and time.monotonic() < deadline:
            time.sleep(0.01)


def detach(mountpoint: Path) -> None:
    """Unmount lazily, whatever it is that is mounted here."""
    if is_mounted(mountpoint):
        done = subprocess.run(
            ["fusermount3", "-u", "-z", str(mountpoint)], capture_output=True, check=False
        )
        if done.returncode:
            run_tool(["umount", "-l", str(mountpoint)])


def wait_for(is_so: Callable[[], bool], timeout_s: float, problem: str) -> None:
    """Return when it is so.

    Raises:
        BenchError: It is not so in time.
    """
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            raise BenchError(problem)
        time.sleep(0.01)
