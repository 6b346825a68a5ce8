"""The supervisor: a warm process that forks one session process for each mount.

Single-threaded and without an event loop, because it forks: it waits with a selector and never for
anything else. Sessions do not need it once they are mounted; it may be killed at any moment.
This module must not know what a session does.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final

from workspacefs import __version__
from workspacefs.client.registry import living_sessions
from workspacefs.errors import UnavailableError, UsageError, WorkspaceError
from workspacefs.protocol.failures import error_document, error_from_document
from workspacefs.protocol.lines import LineBuffer
from workspacefs.protocol.messages import Request, decode_request, encode_line, find_request_id
from workspacefs.protocol.parts import iter_answer
from workspacefs.protocol.sockets import peer_refusal
from workspacefs.statedir import StateDir
from workspacefs_daemon.spec import SessionSpec, spec_from_document
from workspacefs_daemon.transfers import Transfers
from workspacefs_daemon.zygote import StartedSession

log = logging.getLogger(__name__)

IDLE_EXIT_S: Final = 3600.0
"""A supervisor without living sessions and requests ends after this time."""
LOOK_AROUND_S: Final = 15.0
"""How often it looks whether it is still needed."""
SEND_TIMEOUT_S: Final = 2.0
"""Longest time that an asker may take to read an answer; nobody else is served meanwhile."""
_RECEIVE_BYTES: Final = 64 * 1024
_READY_MAX_BYTES: Final = 1024 * 1024
_ASKERS_MAX: Final = 256

Fork = Callable[[SessionSpec], StartedSession]


class _Asker:
    """A connection, and what came in of its next request."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.lines = LineBuffer()


class _Birth:
    """A session process that has not said yet whether it mounted, and who waits for that."""

    def __init__(self, asker: _Asker, request_id: int, started: StartedSession) -> None:
        self.asker = asker
        self.request_id = request_id
        self.started = started
        self.said = bytearray()
        self.began = time.monotonic()


class Supervisor:
    """Answers mount, sessions, ping and stop on one listener."""

    def __init__(
        self,
        state: StateDir,
        listener: socket.socket,
        lock_fd: int,
        *,
        fork: Fork,
        transfers: Transfers,
        is_outdated: Callable[[], bool],
        idle_exit_s: float = IDLE_EXIT_S,
    ) -> None:
        self._state = state
        self._listener = listener
        self._lock_fd = lock_fd
        self._fork = fork
        self._transfers = transfers
        self._is_outdated = is_outdated
        self._idle_exit_s = idle_exit_s
        self._selector = selectors.DefaultSelector()
        self._askers: set[_Asker] = set()
        self._births: set[_Birth] = set()
        self._wakeup, self._wakeup_writer = socket.socketpair()
        self._is_stopping = False
        self._busy_at = time.monotonic()

    def serve(self) -> None:
        """Serve until told to stop, idle for long, or replaced. Sessions go on after that."""
        self._listener.setblocking(False)  # the standard library's own signature
        for end in (self._wakeup, self._wakeup_writer):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._watch(self._listener, self._accept)
        self._watch(self._wakeup, self._drain_wakeups)
        log.info("supervisor.started", extra={"version": __version__})
        while not self._is_stopping:
            ready = self._selector.select(LOOK_AROUND_S)
            for key, _ in ready:
                # One asker's end may have unregistered another's file that was ready as well.
                if self._selector.get_map().get(key.fileobj) is key:
                    key.data()
            self._reap()
            if not ready:
                self._look_around()
        self._stop_listening()
        log.info("supervisor.stopped")

    def release(self) -> None:
        """Close, in a forked process, all that belongs to the supervisor alone."""
        self._selector.close()
        self._listener.close()
        os.close(self._lock_fd)
        self._wakeup.close()
        self._wakeup_writer.close()
        for asker in self._askers:
            asker.connection.close()
        for birth in self._births:
            os.close(birth.started.ready_fd)

    def _watch(self, file: socket.socket | int, react: Callable[[], None]) -> None:
        self._selector.register(file, selectors.EVENT_READ, react)

    def _on_signal(self, number: int, frame: object) -> None:
        if number != signal.SIGCHLD:
            self._is_stopping = True

    def _drain_wakeups(self) -> None:
        try:
            self._wakeup.recv(4096)
        except BlockingIOError:
            pass

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as exc:
            log.warning("supervisor.not_accepted", extra={"errno": exc.errno})
            return
        refusal = peer_refusal(connection)
        if refusal is not None or len(self._askers) >= _ASKERS_MAX:
            log.warning("control.refused", extra={"kind": refusal.kind if refusal else "crowded"})
            connection.close()
            return
        connection.settimeout(SEND_TIMEOUT_S)
        asker = _Asker(connection)
        self._askers.add(asker)
        self._watch(connection, lambda: self._hear(asker))

    def _hear(self, asker: _Asker) -> None:
        try:
            data = asker.connection.recv(_RECEIVE_BYTES)
        except OSError:
            data = b""
        if not data:
            self._hang_up(asker)
            return
        self._busy_at = time.monotonic()
        try:
            lines = asker.lines.feed(data)
        except UsageError as exc:
            self._answer(asker, 0, exc)
            self._hang_up(asker)
            return
        for line in lines:
            self._obey(asker, line)

    def _obey(self, asker: _Asker, line: bytes) -> None:
        try:
            request = decode_request(line)
        except UsageError as exc:
            self._answer(asker, find_request_id(line), exc)
            return
        try:
            answer = self._handle(asker, request)
        except WorkspaceError as exc:
            self._answer(asker, request.id, exc)
        except Exception as exc:  # the root of a request: every error is told
            log.exception("control.bug", extra={"op": request.op})
            self._answer(asker, request.id, error_from_document(error_document(exc)))
        else:
            if answer is not None:
                self._answer(asker, request.id, answer)

    def _handle(self, asker: _Asker, request: Request) -> Mapping[str, object] | None:
        match request.op:
            case "ping":
                return {"pid": os.getpid(), "version": __version__}
            case "sessions":
                return {"sessions": [found._asdict() for found in living_sessions(self._state)]}
            case "mount":
                self._mount(asker, request)
                return None
            case "transfer":
                return {"socket": self._transfers.ensure_for(request.args)}
            case "stop":
                self._stop_listening()
                return {"pid": os.getpid()}
            case _:
                raise UsageError(
                    f"the supervisor knows no operation {request.op!r}", kind="op.unknown"
                )

    def _mount(self, asker: _Asker, request: Request) -> None:
        # Before the spec is looked at: it may be of a release that says more.
        self._refuse_other_namespace(request.args.get("mount_namespace"))
        if request.args.get("version", __version__) != __version__ or self._is_outdated():
            # Before the answer: the asker starts our successor as soon as it has it.
            self._stop_listening()
            raise UnavailableError(
                "the supervisor was started from code that has changed since; it steps back",
                kind="supervisor.outdated",
            )
        document = request.args.get("spec")
        if not isinstance(document, dict):
            raise UsageError("a mount needs an object spec", kind="mount.malformed")
        spec = spec_from_document(document)
        if spec.is_far:
            # First: while it gets ready, the session does what it can without it.
            socket_path = self._transfers.ensure(
                spec.store_url,
                spec.store_environ,
                store_timeout_s=spec.store_timeout_s,
                cache_limit_bytes=spec.cache_limit_bytes,
            )
            spec = dataclasses.replace(spec, transfer_socket=socket_path)
        birth = _Birth(asker, request.id, self._fork(spec))
        self._births.add(birth)
        self._watch(birth.started.ready_fd, lambda: self._hear_birth(birth))

    def _refuse_other_namespace(self, asked: object) -> None:
        ours = os.stat("/proc/self/ns/mnt").st_ino
        if asked is not None and asked != ours:
            raise UnavailableError(
                "the supervisor of this state directory runs in another mount namespace "
                "(another container?): you could not see what it mounts; give a --state-dir of "
                "your own, or stop it: workspacefs supervisor stop",
                kind="supervisor.namespace",
            )

    def _hear_birth(self, birth: _Birth) -> None:
        data = os.read(birth.started.ready_fd, _RECEIVE_BYTES)
        birth.said += data
        if data and not birth.said.endswith(b"\n") and len(birth.said) < _READY_MAX_BYTES:
            return
        self._selector.unregister(birth.started.ready_fd)
        os.close(birth.started.ready_fd)
        self._births.discard(birth)
        answer = _told(bytes(birth.said), self._state)
        log.info(
            "supervisor.mounted",
            extra={
                "session_pid": birth.started.pid,
                "kind": answer.kind if isinstance(answer, WorkspaceError) else "ok",
                "duration_ms": round((time.monotonic() - birth.began) * 1000, 3),
            },
        )
        if birth.asker in self._askers:
            self._answer(birth.asker, birth.request_id, answer)

    def _answer(
        self, asker: _Asker, request_id: int, answer: Mapping[str, object] | WorkspaceError
    ) -> None:
        try:
            for message in iter_answer(request_id, answer):
                asker.connection.sendall(encode_line(message))
        except OSError:
            self._hang_up(asker)

    def _hang_up(self, asker: _Asker) -> None:
        if asker not in self._askers:
            return
        self._askers.discard(asker)
        self._selector.unregister(asker.connection)
        asker.connection.close()
        for birth in self._births:
            if birth.asker is asker:
                # Whoever gives up waiting for a mount does not want it to appear later.
                os.kill(birth.started.pid, signal.SIGTERM)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            is_transfer = self._transfers.reaped(pid)
            log.log(
                logging.INFO if code == 0 else logging.WARNING,
                "transfer.process_ended" if is_transfer else "session.process_ended",
                extra={"ended_pid": pid, "exit_status": code},
            )

    def _look_around(self) -> None:
        if not self._is_listening_at_its_place():
            log.warning("supervisor.socket_gone")
            self._is_stopping = True
        elif living_sessions(self._state) or self._births or self._askers:
            self._busy_at = time.monotonic()
        elif time.monotonic() - self._busy_at > self._idle_exit_s:
            self._is_stopping = True

    def _is_listening_at_its_place(self) -> bool:
        # A state directory that was deleted can never send us anyone again.
        try:
            os.stat(self._state.supervisor_socket)
        except OSError:
            return False
        return True

    def _stop_listening(self) -> None:
        if self._listener.fileno() < 0:
            return
        self._is_stopping = True
        try:
            os.unlink(self._state.supervisor_socket)
        except FileNotFoundError:
            pass
        self._selector.unregister(self._listener)
        self._listener.close()
        os.close(self._lock_fd)


def _told(line: bytes, state: StateDir) -> Mapping[str, object] | WorkspaceError:
    document = json.loads(line) if line.endswith(b"\n") else {}
    match document:
        case {"ok": dict(ok)}:
            return ok
        case {"error": dict(error)}:
            return error_from_document(error)
        case _:
            return UnavailableError(
                f"the session's process died before it was mounted; see {state.log_dir}",
                kind="session.died",
            )
