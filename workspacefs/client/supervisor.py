"""Finding the supervisor, and starting one when none runs."""

from __future__ import annotations

import fcntl
import json
import os
import select
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from workspacefs.client.connection import Connection
from workspacefs.errors import UnavailableError
from workspacefs.protocol.failures import error_from_document
from workspacefs.statedir import StateDir, ensure_state_dir

START_TIMEOUT_S: Final = 30.0
DAEMON_MODULE: Final = "workspacefs_daemon.app"
_POLL_S: Final = 0.002
_WHAT: Final = "the supervisor"


def find_supervisor(state: StateDir) -> Connection | None:
    """Return a connection to the running supervisor, or None when none runs."""
    try:
        return Connection.open(state.supervisor_socket, what=_WHAT)
    except UnavailableError as exc:
        if exc.kind != "daemon.absent":
            raise
        return None


def ensure_supervisor(
    state: StateDir, environ: Mapping[str, str], *, is_far: bool = False
) -> Connection:
    """Return a connection to the supervisor, starting it if need be.

    Any number of programs may call this at once: one supervisor comes of it.

    Args:
        state: The state directory; created if absent.
        environ: What a new supervisor gets for its environment.
        is_far: Whether a mount of a far store comes next, so that a new one can get ready for it.
    """
    if (found := find_supervisor(state)) is not None:
        return found
    ensure_state_dir(state)
    with _held(state.start_lock):
        if (found := find_supervisor(state)) is not None:
            return found
        _start(state, environ, is_far=is_far)
        return Connection.open(state.supervisor_socket, what=_WHAT)


def daemon_command(*words: str) -> list[str]:
    """Return the command line that runs the daemon's entry point under this interpreter."""
    # -P: the working directory of whoever mounts must not be a place where modules come from.
    return [sys.executable, "-P", "-m", DAEMON_MODULE, *words]


def _start(state: StateDir, environ: Mapping[str, str], *, is_far: bool) -> None:
    reader, writer = os.pipe()
    try:
        os.set_inheritable(writer, True)
        command = daemon_command("supervise", "--state-dir", state.root, "--ready-fd", str(writer))
        command += ["--far"] if is_far else []
        appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        pid = os.posix_spawn(
            command[0],
            command,
            dict(environ),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, state.crash_file, appending, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
        )
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    with open(reader, "rb") as answer:
        if not select.select([answer], [], [], START_TIMEOUT_S)[0]:
            raise UnavailableError(
                f"the supervisor (process {pid}) has been starting for {START_TIMEOUT_S:.0f} "
                f"seconds; see {state.crash_file}",
                kind="supervisor.start",
            )
        line = answer.read()
    os.waitpid(pid, 0)  # the parent of the daemon; it has ended or is about to
    _check_started(line, state)


def _check_started(line: bytes, state: StateDir) -> None:
    document = json.loads(line) if line.strip() else None
    if document is None:
        raise UnavailableError(
            f"the supervisor did not start; {state.crash_file} says why, "
            "and workspacefs doctor may know what to do",
            kind="supervisor.start",
        )
    if "error" in document:
        raise error_from_document(document["error"])


@contextmanager
def _held(path: str) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as exc:
                if time.monotonic() > deadline:
                    raise UnavailableError(
                        "another program has been starting the supervisor for "
                        f"{START_TIMEOUT_S:.0f} seconds; see {path}",
                        kind="supervisor.start",
                    ) from exc
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)
