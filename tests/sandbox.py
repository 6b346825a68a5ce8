"""Sandboxes: machines of a user that share nothing but the store, and that are killed whole.

Each has mount, process, IPC and host name namespaces of its own, a home and a state directory on a
file system in memory that nobody else sees, and the network of this machine, for stores that are on
loopback. When its first process is killed, the kernel kills all others and takes its mounts.

Source: unshare(1), nsenter(1), pid_namespaces(7).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.harness import Machine
from workspacefs.client.mountinfo import load_mounts

_NAMESPACES: Final = ("--mount", "--pid", "--ipc", "--uts")
_FIRST_PROCESS: Final = """
import os, signal, socket, subprocess, sys
socket.sethostname(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0700", "sandbox", sys.argv[2]], check=True)
os.mkdir(sys.argv[2] + "/home")
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
print("ready", flush=True)
while True:
    signal.sigwait([signal.SIGCHLD])
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""


class Sandbox(Machine):
    """One sandbox. Its files are seen from outside by paths that go through its first process;
    where a command in it is given such a path, it gets the one that it knows.
    """

    def __init__(
        self, place: Path, name: str, *, store: str | Path, variables: Mapping[str, str]
    ) -> None:
        """Start it.

        Args:
            place: A directory that is hidden in it by its own file system.
            name: Its host name.
            store: The store's URL or directory.
            variables: Set for its commands: what gives access to the store.
        """
        place.mkdir()
        command = ["unshare", *_NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
        command += ["--", sys.executable, "-c", _FIRST_PROCESS, name, str(place)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said == b"ready\n", said
        number = self._process.pid
        self.first_pid = int(Path(f"/proc/{number}/task/{number}/children").read_text())
        self.name = name
        self._place = place
        self._root = f"/proc/{self.first_pid}/root"
        self._namespace = os.stat(f"/proc/{self.first_pid}/ns/pid").st_ino
        self._is_killed = False
        super().__init__(Path(f"{self._root}{place}"))
        self.store = store  # type: ignore[assignment]  # it is used as a word of commands only
        self.restarts = True
        self._variables = dict(variables)

    def command(self, *words: str | Path) -> list[str]:
        """Return what runs `workspacefs WORDS` in the sandbox."""
        return self.inside(
            *super().command(*(str(word).removeprefix(self._root) for word in words))
        )

    def inside(self, *command: str) -> list[str]:
        """Return what runs a command in the sandbox."""
        return ["nsenter", "--target", str(self.first_pid), *_NAMESPACES, "--", *command]

    def environ(self) -> dict[str, str]:
        """Return the environment of commands in it: nothing of ours that leads anywhere."""
        path = os.environ["PATH"]
        return {"PATH": path, "LANG": "C.UTF-8", **self.own_environ(), **self._variables}

    def own_environ(self) -> dict[str, str]:
        """Return the variables that are this sandbox's."""
        return {
            **super().own_environ(),
            "HOME": f"{self._place}/home",
            "WORKSPACEFS_STATE_DIR": f"{self._place}/state",
        }

    def processes(self) -> list[int]:
        """Return all processes in it, as they are numbered outside."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.stat(entry / "ns/pid").st_ino == self._namespace:
                    found.append(int(entry.name))
            except OSError:
                continue  # it has ended, or is none that we could have started
        return found

    def kill(self) -> None:
        """kill -9 its first process: nothing of it is left, not even for an instant of goodbye."""
        if self._is_killed:
            return
        self._is_killed = True
        os.kill(self.first_pid, signal.SIGKILL)
        # The kernel reaps the first process only after all others.
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        left = self.processes()
        assert not left, f"processes outlived their sandbox: {left}"
        seen = [mount for mount in load_mounts() if str(self._place) in mount.mountpoint]
        assert not seen, f"mounts of a sandbox are seen outside: {seen}"
        assert list(self._place.iterdir()) == []

    def close(self) -> None:
        """End it."""
        self.kill()
