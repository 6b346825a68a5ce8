"""Entry point of the daemons (`workspacefsd`): the only place that reads their environment and
builds their objects.

    workspacefsd supervise --state-dir DIR [--ready-fd N] [--foreground]
    workspacefsd session --spec JSON [--json]

The command line starts both; a person has no need to.
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import fcntl
import functools
import gc
import importlib
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

import workspacefs
from workspacefs.config import (
    daemon_environment,
    load_log_level,
    load_restarts,
    store_environment,
)
from workspacefs.errors import BusyError, ExitCode, UnavailableError, UsageError, WorkspaceError
from workspacefs.logs import LOG_FILE_MODE, install_log_file, set_aside_if_long
from workspacefs.protocol.failures import error_document, error_from_document
from workspacefs.protocol.sockets import listen_unix
from workspacefs.statedir import StateDir, ensure_state_dir
from workspacefs_daemon.announcement import Announcement
from workspacefs_daemon.sources import Sources
from workspacefs_daemon.spec import SessionSpec, spec_from_document
from workspacefs_daemon.supervisor import Supervisor
from workspacefs_daemon.transfers import Transfers, TransferSpec
from workspacefs_daemon.warm import WarmProcess, fork_warm
from workspacefs_daemon.zygote import (
    RunSession,
    SessionForks,
    fork_transfer,
    name_process,
    run_transfer_child,
    serve_session,
)

log = logging.getLogger(__name__)

SESSION_MODULE: Final = "workspacefs_daemon.session"
TRANSFER_MODULE: Final = "workspacefs_daemon.transfer"
_PACKAGE_DIRS: Final = (
    os.path.dirname(os.path.abspath(workspacefs.__file__)),
    os.path.dirname(os.path.abspath(__file__)),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon that the arguments ask for; return its exit code."""
    options = _parser().parse_args(argv)
    level = load_log_level(os.environ)
    if options.command == "supervise":
        return _supervise(options, level)
    return _run_in_foreground(options, level)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="workspacefsd", description="Daemons of workspacefs; started by `workspacefs mount`."
    )
    parser.add_argument("--version", action="version", version=workspacefs.__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    supervise = commands.add_parser("supervise", help="fork a session process for each mount")
    supervise.add_argument("--state-dir", required=True)
    supervise.add_argument("--ready-fd", type=int, help="where to say that it listens; goes away")
    supervise.add_argument("--far", action="store_true", help="a mount of a far store comes next")
    supervise.add_argument("--foreground", action="store_true", help="do not leave the terminal")
    session = commands.add_parser("session", help="serve one mount in the foreground")
    session.add_argument("--spec", required=True, help="what to mount, as a JSON object")
    session.add_argument("--json", action="store_true", help="say where it is mounted as JSON")
    for command in (supervise, session):
        command.add_argument("--session-module", default=SESSION_MODULE, help=argparse.SUPPRESS)
    return parser


def _supervise(options: argparse.Namespace, level: int) -> int:
    state = StateDir(options.state_dir)
    try:
        supervisor = _build_supervisor(state, options, level)
    except WorkspaceError as exc:
        _say_started(options.ready_fd, {"error": error_document(exc)})
        sys.stderr.write(f"workspacefsd: {exc}\n")
        return int(exc.exit_code)
    _say_started(options.ready_fd, {"ok": {"pid": os.getpid()}})
    supervisor.serve()
    return int(ExitCode.OK)


def _build_supervisor(state: StateDir, options: argparse.Namespace, level: int) -> Supervisor:
    if not options.foreground:
        _leave_terminal()
    ensure_state_dir(state)
    lock_fd = _lock(state.supervisor_lock)
    warm = _fork_warm_transfer(lock_fd, options.ready_fd) if options.far else None
    set_aside_if_long(state.log_file)
    set_aside_if_long(state.crash_file)
    if not options.foreground:
        _leave_starter(state)
    install_log_file(state.log_file, role="supervisor", level=level)
    faulthandler.enable()
    sources = Sources(_PACKAGE_DIRS)
    session = _load_session(options.session_module)
    name_process("workspacefsd")
    listener = listen_unix(state.supervisor_socket)
    supervisor: Supervisor

    def fork_for(spec: TransferSpec, listening: socket.socket) -> int:
        ready = None
        if warm is not None:
            ready = warm.hand_over(dataclasses.asdict(spec), [listening.fileno()])
        return ready or fork_transfer(TRANSFER_MODULE, spec, listening, release)

    def release() -> None:
        supervisor.release()
        forks.release()
        if warm is not None:
            warm.release()

    forks = SessionForks(session.run, session.get_ready, release, state.root)
    transfers = Transfers(state, fork_for)
    supervisor = Supervisor(
        state,
        listener,
        lock_fd,
        fork=forks.fork,
        warm_up=forks.warm_up,
        transfers=transfers,
        is_outdated=sources.have_changed,
        restarts=load_restarts(os.environ),
    )
    return supervisor


def _fork_warm_transfer(lock_fd: int, ready_fd: int | None) -> WarmProcess | None:
    """Have a transfer process load its part while we load ours."""

    def prepare() -> None:
        importlib.import_module(TRANSFER_MODULE).prepare()

    def serve(order: Mapping[str, Any], fds: list[int]) -> NoReturn:
        listening = socket.socket(fileno=fds[0])
        run_transfer_child(TRANSFER_MODULE, TransferSpec(**order), listening, lambda: None)

    def release() -> None:
        os.close(lock_fd)
        if ready_fd is not None:
            os.close(ready_fd)  # whoever waits for the supervisor waits for its end

    return fork_warm(prepare, serve, release)


class _SessionModule(NamedTuple):
    """What a session process runs."""

    run: RunSession
    get_ready: Callable[[], None]


def _load_session(module: str) -> _SessionModule:
    """Import everything that a session needs, once, before any fork.

    Not an import at the top: a missing or broken library is told to whoever waits for the start.
    """
    # What is imported lives as long as the process. Collections that look for garbage in it cost
    # 40 ms of the start; in a forked session they would copy its pages as well.
    gc.disable()
    try:
        loaded = importlib.import_module(module)
        if hasattr(loaded, "warm_up"):
            loaded.warm_up()
    except ImportError as exc:
        log.exception("supervisor.import_failed")
        raise UnavailableError(
            f"a part of workspacefs cannot be loaded: {exc}; "
            "workspacefs doctor says what is missing",
            kind="supervisor.import",
            module=exc.name,
        ) from exc
    gc.freeze()
    gc.enable()
    run_session: RunSession = functools.partial(
        loaded.run_session, environ=daemon_environment(os.environ)
    )
    return _SessionModule(run_session, getattr(loaded, "get_ready", lambda: None))


def _leave_terminal() -> None:
    # Source: daemon(7), the SysV steps.
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    os.chdir("/")
    os.umask(0o077)


def _leave_starter(state: StateDir) -> None:
    """Give back the files of whoever started us: they may be waiting for a pipe to end."""
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    crashes = os.open(
        state.crash_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, LOG_FILE_MODE
    )
    for number, source in ((0, nothing), (1, crashes), (2, crashes)):
        os.dup2(source, number)
    os.close(nothing)
    os.close(crashes)


def _lock(path: str) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        holder = os.read(descriptor, 32).decode(errors="replace").strip()
        os.close(descriptor)
        raise BusyError(
            f"a supervisor runs already for this state directory (process {holder or 'unknown'})",
            kind="supervisor.running",
        ) from exc
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _say_started(ready_fd: int | None, message: Mapping[str, object]) -> None:
    if ready_fd is None:
        return
    try:
        os.write(ready_fd, json.dumps(message).encode("ascii") + b"\n")
    except BrokenPipeError:
        log.warning("supervisor.starter_gone")
    os.close(ready_fd)


def _run_in_foreground(options: argparse.Namespace, level: int) -> int:
    answer: list[Mapping[str, object]] = []

    def tell(message: Mapping[str, object]) -> None:
        answer.append(message)
        if "ok" in message:
            _print_mounted(message["ok"], as_json=options.json)

    try:
        # Keys come through the environment that this process was started with: its command line
        # can be read by anyone.
        spec = dataclasses.replace(
            _spec_in(options.spec), store_environ=store_environment(os.environ)
        )
        state = StateDir(spec.state_dir)
        ensure_state_dir(state)
        install_log_file(state.log_file, role="session", level=level)
        faulthandler.enable()
        session = _load_session(options.session_module)
        if serve_session(session.run, spec, Announcement(spec, tell)):
            return int(ExitCode.OK)
        error = error_from_document(_member(answer[-1], "error"))
    except WorkspaceError as exc:
        error = exc
    if options.json:
        sys.stdout.write(json.dumps({"error": error_document(error)}) + "\n")
    else:
        sys.stderr.write(f"workspacefs: {error}\n")
    return int(error.exit_code)


def _spec_in(text: str) -> SessionSpec:
    try:
        document = json.loads(text)
    except ValueError as exc:
        raise UsageError("--spec is no JSON", kind="mount.malformed") from exc
    if not isinstance(document, dict):
        raise UsageError("--spec is no JSON object", kind="mount.malformed")
    return spec_from_document(document)


def _member(message: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = message.get(name)
    return value if isinstance(value, dict) else {}


def _print_mounted(result: object, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(result) + "\n")
    elif isinstance(result, dict):
        sys.stdout.write(
            f"session {result['session']} is mounted at {result['mountpoint']}; "
            "Ctrl-C unmounts it, nothing is lost\n"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
