"""The supervisor: a warm process that forks one session process for each mount.

Single-threaded and without an event loop, because it forks: it waits with a selector and never for
anything else. Sessions do not need it once they are mounted, but to be brought back when they die;
it may be killed at any moment. This module must not know what a session does.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import resource
import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final

from workspacefs import __version__
from workspacefs.client.registry import living_sessions
from workspacefs.config import RESTART_VARIABLE
from workspacefs.errors import RefusedError, UnavailableError, UsageError, WorkspaceError
from workspacefs.protocol.failures import error_document, error_from_document
from workspacefs.protocol.lines import LineBuffer
from workspacefs.protocol.messages import Request, decode_request, encode_line, find_request_id
from workspacefs.protocol.parts import iter_answer
from workspacefs.protocol.sockets import peer_pid, peer_refusal
from workspacefs.statedir import StateDir
from workspacefs_daemon.births import Answer, Birth
from workspacefs_daemon.charges import Charges
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
_ASKERS_MAX: Final = 256

Fork = Callable[[SessionSpec], StartedSession]


class _Asker:
    """A connection, and what came in of its next request."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.lines = LineBuffer()
        self.is_session = False
        """Whether it is a session: it stays, to hear when we end."""


class Supervisor:
    """Answers mount, sessions, ping, adopt, release and stop on one listener."""

    def __init__(
        self,
        state: StateDir,
        listener: socket.socket,
        lock_fd: int,
        *,
        fork: Fork,
        warm_up: Callable[[], None],
        transfers: Transfers,
        is_outdated: Callable[[], bool],
        restarts: bool = True,
        idle_exit_s: float = IDLE_EXIT_S,
    ) -> None:
        """Listen on `listener`; `warm_up`, called when there is time, makes the next start quicker;
        `restarts`: whether sessions that die are brought back.
        """
        self._state = state
        self._listener = listener
        self._lock_fd = lock_fd
        self._fork = fork
        self._warm_up = warm_up
        self._transfers = transfers
        self._is_outdated = is_outdated
        self._idle_exit_s = idle_exit_s
        self._selector = selectors.DefaultSelector()
        self._askers: set[_Asker] = set()
        self._births: dict[Birth, tuple[_Asker, int]] = {}
        """Who asked for each mount, under which request id."""
        self._restarts = restarts
        self._charges = Charges(
            state, fork=self._begin, watch=self._watch, unwatch=self._selector.unregister
        )
        self._wakeup, self._wakeup_writer = socket.socketpair()
        self._is_stopping = False
        self._file_limits = resource.getrlimit(resource.RLIMIT_NOFILE)
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
        # Each session has a connection.
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._file_limits[1],) * 2)
        self._watch(self._listener, self._accept)
        self._watch(self._wakeup, self._drain_wakeups)
        log.info("supervisor.started", extra={"version": __version__})
        while not self._is_stopping:
            ready = self._selector.select(self._charges.wait_s(LOOK_AROUND_S))
            for key, _ in ready:
                # One asker's end may have unregistered another's file that was ready as well.
                if self._selector.get_map().get(key.fileobj) is key:
                    key.data()
            self._reap()
            self._charges.run_due()
            if not ready:
                self._look_around()
        self._stop_listening()
        log.info("supervisor.stopped")

    def release(self) -> None:
        """Close, in a forked process, all that belongs to the supervisor alone."""
        resource.setrlimit(resource.RLIMIT_NOFILE, self._file_limits)
        self._selector.close()
        self._listener.close()
        os.close(self._lock_fd)
        self._wakeup.close()
        self._wakeup_writer.close()
        for asker in self._askers:
            asker.connection.close()
        for birth in self._births:
            birth.close()
        self._charges.close_files()

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
        crowd = sum(not asker.is_session for asker in self._askers)
        if refusal is not None or crowd >= _ASKERS_MAX:
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
            case "adopt":
                return self._adopt(asker, request.args)
            case "release":
                self._release(asker, request)
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
        if self._charges.join(spec, lambda answer: self._tell(asker, request.id, answer)):
            return
        self._charges.make_way(spec)
        birth = Birth(spec, self._begin(spec))
        self._births[birth] = (asker, request.id)
        self._watch(birth.ready_fd, lambda: self._hear_birth(birth))

    def _begin(self, spec: SessionSpec) -> StartedSession:
        """Fork a process that mounts."""
        spec = dataclasses.replace(spec, restarts=self._restarts)
        if spec.is_far:
            # First: while it gets ready, the session does what it can without it.
            socket_path = self._transfers.ensure(
                spec.store_url,
                spec.store_environ,
                store_timeout_s=spec.store_timeout_s,
                cache_limit_bytes=spec.cache_limit_bytes,
            )
            spec = dataclasses.replace(spec, transfer_socket=socket_path)
        return self._fork(spec)

    def _adopt(self, asker: _Asker, args: Mapping[str, object]) -> Mapping[str, object]:
        asker.is_session = True  # refused or not, it stays
        self._refuse_other_namespace(args.get("mount_namespace"))
        document, session_id = args.get("spec"), args.get("session_id")
        if not isinstance(document, dict) or not isinstance(session_id, str):
            raise UsageError(
                "adopt needs an object spec and a text session_id", kind="args.invalid"
            )
        if not self._restarts:
            raise RefusedError(
                f"this supervisor brings no session back: {RESTART_VARIABLE} was off when it "
                "started",
                kind="restart.off",
            )
        self._charges.adopt(spec_from_document(document), session_id, peer_pid(asker.connection))
        return {"pid": os.getpid()}

    def _release(self, asker: _Asker, request: Request) -> None:
        mountpoint = request.args.get("mountpoint")
        if not isinstance(mountpoint, str):
            raise UsageError("release needs a text mountpoint", kind="args.invalid")
        self._charges.release(mountpoint, lambda answer: self._tell(asker, request.id, answer))

    def _refuse_other_namespace(self, asked: object) -> None:
        ours = os.stat("/proc/self/ns/mnt").st_ino
        if asked is not None and asked != ours:
            raise UnavailableError(
                "the supervisor of this state directory runs in another mount namespace "
                "(another container?): you could not see what it mounts; give a --state-dir of "
                "your own, or stop it: workspacefs supervisor stop",
                kind="supervisor.namespace",
            )

    def _hear_birth(self, birth: Birth) -> None:
        if not birth.hear():
            return
        self._selector.unregister(birth.ready_fd)
        birth.close()
        asker, request_id = self._births.pop(birth)
        answer = birth.answer(self._state)
        if self._restarts and not isinstance(answer, WorkspaceError):
            self._charges.take(birth.spec, answer, birth.pid)
        log.info(
            "supervisor.mounted",
            extra={
                "session_pid": birth.pid,
                "kind": answer.kind if isinstance(answer, WorkspaceError) else "ok",
                "duration_ms": birth.duration_ms,
            },
        )
        self._tell(asker, request_id, answer)
        if not self._births and not self._is_stopping:
            self._warm_up()

    def _tell(self, asker: _Asker, request_id: int, answer: Answer) -> None:
        """Answer later than at once: whoever asked may have gone."""
        if asker in self._askers:
            self._answer(asker, request_id, answer)

    def _answer(self, asker: _Asker, request_id: int, answer: Answer) -> None:
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
        for birth, (waiting, _) in self._births.items():
            if waiting is asker:
                # Whoever gives up waiting for a mount does not want it to appear later.
                os.kill(birth.pid, signal.SIGTERM)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            for birth in [one for one in self._births if one.pid == pid]:
                # What it said before is heard first. It was the only writer: this does not block.
                while birth in self._births:
                    self._hear_birth(birth)
            is_transfer = self._transfers.reaped(pid)
            log.log(
                logging.INFO if code == 0 else logging.WARNING,
                "transfer.process_ended" if is_transfer else "session.process_ended",
                extra={"ended_pid": pid, "exit_status": code},
            )
            self._charges.ended(pid, code)

    def _look_around(self) -> None:
        if not self._is_listening_at_its_place():
            log.warning("supervisor.socket_gone")
            self._is_stopping = True
        elif living_sessions(self._state) or self._births or self._askers or self._charges.is_busy:
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
        # Before any connection ends: by this file sessions tell a stop from a death.
        try:
            os.unlink(self._state.supervisor_socket)
        except FileNotFoundError:
            pass
        self._selector.unregister(self._listener)
        self._listener.close()
        os.close(self._lock_fd)
        self._charges.stop()
