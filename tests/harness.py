"""Real mounts for tests: a store, a state directory and mountpoints below one directory.

Everything goes through the public command line, as a user would, but for the two things that no
command does: killing processes and looking into the session's own directory.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PATIENCE_S = 30.0


class CommandFailed(AssertionError):
    """A command ended with another exit code than was expected."""


class Machine:
    """One machine of a user: a state directory, and commands that use it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state_dir = directory / "state"
        self.store = directory / "store"
        self.restarts = False
        """Whether its supervisor brings dead sessions back; most tests look at what is dead."""
        self._mountpoints: list[Path] = []

    def run(self, *words: str | Path, code: int = 0, text: bytes | None = None) -> str:
        """Run `workspacefs WORDS`; return its standard output."""
        done = self.start(*words, text=text)
        if done.returncode != code:
            raise CommandFailed(
                f"workspacefs {' '.join(map(str, words))} ended with {done.returncode}, "
                f"not {code}\n{done.stdout.decode()}{done.stderr.decode()}{self.log_tail()}"
            )
        return done.stdout.decode(errors="surrogateescape")

    def start(
        self, *words: str | Path, text: bytes | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `workspacefs WORDS`, whatever comes of it."""
        return subprocess.run(
            self.command(*words),
            input=text,
            capture_output=True,
            env=self.environ(),
            timeout=240,
            check=False,
        )

    def command(self, *words: str | Path) -> list[str]:
        """Return what runs `workspacefs WORDS` on this machine."""
        return [sys.executable, "-m", "workspacefs.cli", *map(str, words)]

    def json(self, *words: str | Path, code: int = 0) -> dict[str, object]:
        """Run a command with --json; return its document."""
        document = json.loads(self.run(*words, "--json", code=code))
        assert isinstance(document, dict)
        return document

    def environ(self) -> dict[str, str]:
        """Return the environment of commands: this machine's state directory."""
        return {**os.environ, **self.own_environ()}

    def own_environ(self) -> dict[str, str]:
        """Return the variables that are this machine's."""
        return {
            "WORKSPACEFS_STATE_DIR": str(self.state_dir),
            "WORKSPACEFS_RESTART": "on" if self.restarts else "off",
        }

    def init(self) -> None:
        """Make the workspace."""
        self.run("init", self.store)

    def mount(self, name: str = "m", *, session: str | None = "s", **flags: str | bool) -> Mount:
        """Mount at the directory `name`; flags as keyword arguments, True for bare ones."""
        mountpoint = self.directory / name
        if mountpoint not in self._mountpoints:  # a dead mount there cannot even be looked at
            mountpoint.mkdir(exist_ok=True)
        words: list[str | Path] = ["mount", self.store, mountpoint]
        if session is not None:
            words += ["--session", session]
        for flag, value in flags.items():
            words.append("--" + flag.replace("_", "-"))
            if not isinstance(value, bool):
                words.append(value)
        document = self.json(*words)
        self.keep(mountpoint)
        return Mount(self, mountpoint, document)

    def fork(self, source: Mount, name: str, *, session: str | None = None) -> Mount:
        """Fork a mounted session; its fork is mounted at the directory `name`."""
        mountpoint = self.directory / name
        words: list[str | Path] = ["fork", source.path, mountpoint]
        if session is not None:
            words += ["--session", session]
        (document,) = self.json(*words)["sessions"]  # type: ignore[misc]
        self.keep(mountpoint)
        return Mount(self, mountpoint, document)

    def resume(self, session: str = "s", *flags: str) -> Mount:
        """Resume a session at the directory "resumed"."""
        mountpoint = self.directory / "resumed"
        document = self.json("resume", self.store, session, mountpoint, *flags)
        self.keep(mountpoint)
        return Mount(self, mountpoint, document)

    def keep(self, mountpoint: Path) -> None:
        """Take this mount away at the end, too."""
        if mountpoint not in self._mountpoints:
            self._mountpoints.append(mountpoint)

    def supervisor_pid(self) -> int:
        """Return the process id of the supervisor; there must be one."""
        return int(str(self.json("supervisor", "status")["pid"]))

    def has_sessions(self) -> bool:
        """Tell whether this machine has any session on its disk."""
        return bool(
            list((self.state_dir / "layers").glob("*/*/data.mdb"))
            or list((self.state_dir / "sessions").glob("*/*/session.json"))
        )

    def wait_until(self, is_so: Callable[[], object]) -> None:
        """Wait for something that a process of this machine does by itself."""
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < deadline, f"it did not happen in time{self.log_tail()}"
            time.sleep(0.005)

    def log_tail(self) -> str:
        """Return the last lines of the daemons' log."""
        text = ""
        for path in sorted((self.state_dir / "log").glob("workspacefsd.*")):
            lines = path.read_text(errors="replace").splitlines()[-15:]
            text += f"\n{path.name}:\n" + "\n".join(lines)
        return text

    def close(self) -> None:
        """Take every mount away and end every process that was started."""
        for mountpoint in self._mountpoints:
            self.start("umount", "--lazy", mountpoint)
            subprocess.run(["umount", "-l", mountpoint], capture_output=True, check=False)
        self.start("supervisor", "stop")
        for path in (self.state_dir / "run").glob("*.json"):
            try:
                kill(int(json.loads(path.read_text())["pid"]))
            except (ValueError, KeyError):
                continue


class Mount:
    """One mounted session."""

    def __init__(self, machine: Machine, path: Path, document: dict[str, object]) -> None:
        self.machine = machine
        self.path = path
        self.document = document
        self.pid = int(str(document["pid"]))

    def status(self) -> dict[str, str]:
        """Return kind by path of all that differs from the base commit."""
        changes = self.machine.json("status", self.path)["changes"]
        assert isinstance(changes, list)
        return {str(change["path"]): str(change["kind"]) for change in changes}

    def is_stored(self) -> object:
        """Tell whether the store has all of the session's work."""
        return self.machine.json("status", self.path)["is_stored"]

    def wait_until_stored(self) -> None:
        """Return when the store has all of the session's work."""
        self.machine.wait_until(self.is_stored)

    def commit(self, message: str = "work", *words: str, code: int = 0) -> dict[str, object]:
        """Commit; return the answer."""
        return self.machine.json("commit", self.path, "-m", message, *words, code=code)

    def kill(self) -> None:
        """kill -9 the session process; its mount is dead afterwards."""
        kill(self.pid)

    def again(self) -> Mount:
        """Mount the same session at the same place."""
        return self.machine.mount(self.path.name, session=str(self.document["session"]))

    def umount(self) -> None:
        """Unmount, as a user does."""
        self.machine.run("umount", self.path)


def kill(pid: int) -> None:
    """kill -9 a process and wait until it is gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    until = time.monotonic() + PATIENCE_S
    while _is_running(pid):
        if time.monotonic() > until:
            raise AssertionError(f"process {pid} does not die")
        time.sleep(0.005)


def _is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def tree_of(root: Path) -> dict[str, tuple[object, ...]]:
    """Return everything that a user can see below `root`, by path; times in ns, links by group."""
    seen: dict[str, tuple[object, ...]] = {}
    first_names: dict[int, str] = {}
    stack: list[str] = [""]
    while stack:
        prefix = stack.pop()
        for entry in sorted(os.scandir(root / prefix), key=lambda found: found.name):
            name = f"{prefix}{entry.name}"
            status = entry.stat(follow_symlinks=False)
            same = first_names.setdefault(status.st_ino, name) if status.st_nlink > 1 else name
            content: object = None
            if entry.is_symlink():
                content = os.readlink(entry.path)
            elif entry.is_dir():
                stack.append(name + "/")
            elif entry.is_file():
                content = Path(entry.path).read_bytes()
            attributes = _xattrs(entry.path)
            size = None if entry.is_dir(follow_symlinks=False) else status.st_size
            links = None if entry.is_dir(follow_symlinks=False) else (status.st_nlink, same)
            seen[name] = (
                status.st_mode,
                status.st_uid,
                status.st_gid,
                size,
                status.st_mtime_ns,
                links,
                content,
                attributes,
            )
    return seen


def inodes_of(root: Path) -> dict[str, tuple[int, int, int]]:
    """Return what git remembers of each file below `root`, by path."""
    found = {}
    for directory, directories, files in os.walk(root):
        for name in (*directories, *files):
            path = Path(directory, name)
            stat = path.lstat()
            found[str(path.relative_to(root))] = (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
    return found


def _xattrs(path: str) -> Sequence[tuple[str, bytes]]:
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError:
        return ()
    return tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in sorted(names))
