"""Asking a transfer process: connections that are kept for the next question, and hints.

This module must not know what is asked.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from workspacefs.errors import IntegrityError, KeyAbsentError, UnavailableError, WorkspaceError
from workspacefs.protocol.failures import error_from_document
from workspacefs.transfer.wire import Message, Wire

log = logging.getLogger(__name__)

Connect: TypeAlias = Callable[[], socket.socket]
"""Returns a connection to a living transfer process, starting one if need be; may block for a
few seconds. Raises UnavailableError."""

_IDLE_MAX: Final = 8
_HINTS_MAX: Final = 1024
_HINT_TIMEOUT_S: Final = 15.0
_PAUSE_S: Final = 0.05


class Connections:
    """Conversations with a transfer process, or with its successor when it is gone. Thread-safe."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._idle: list[Wire] = []
        self._lock = threading.Lock()
        self._hints: deque[Mapping[str, object]] = deque()
        self._has_hints = threading.Event()
        self._hint_thread: threading.Thread | None = None
        self._is_closed = False
        self._generation = 0
        """Of connections; those of an earlier one are not used again."""
        self.lost = 0
        """Connections that ended while they were used, or were found ended."""

    def ask(self, op: str, args: Mapping[str, object], *, silence_s: float) -> Message:
        """Ask what may be asked twice, and return the answer.

        Args:
            op: Name of the operation.
            args: Its arguments.
            silence_s: Longest silence that is waited through.

        Raises:
            KeyAbsentError: There is no such value.
            WorkspaceError: As the transfer process tells; UnavailableError when none can be had.
        """
        deadline = time.monotonic() + silence_s
        while True:
            try:
                return self.ask_once(op, args, silence_s=silence_s)
            except ConnectionError as exc:
                if time.monotonic() >= deadline:
                    raise unreached() from exc
                time.sleep(_PAUSE_S)

    def ask_once(
        self,
        op: str,
        args: Mapping[str, object],
        *,
        payload: bytes = b"",
        fd: int | None = None,
        silence_s: float,
    ) -> Message:
        """Ask once, and return the answer. See `ask`.

        Raises:
            ConnectionError: There was none: the transfer process is gone.
        """
        generation = self._generation
        wire = self._take()
        try:
            wire.connection.settimeout(silence_s)
            wire.send({"op": op, **args}, payload, fd=fd)
            answer = wire.receive()
        except BaseException as exc:
            self._lost(wire)
            if isinstance(exc, TimeoutError):
                raise UnavailableError(
                    "the transfer process does not answer", kind="transfer.silent"
                ) from exc
            if isinstance(exc, OSError):
                raise ConnectionResetError(str(exc)) from exc
            raise
        if answer is None:
            self._lost(wire)
            raise ConnectionResetError("the transfer process went away")
        self._give_back(wire, generation)
        return _checked(answer)

    def _take(self) -> Wire:
        while True:
            with self._lock:
                wire = self._idle.pop() if self._idle else None
            if wire is None:
                return Wire(self._connect())
            # Looked at first: a conditional write must not get lost with a process long gone.
            if not wire.is_ended():
                return wire
            self._lost(wire)

    def _lost(self, wire: Wire) -> None:
        wire.close()
        with self._lock:
            self.lost += 1
        self._drop_idle()  # they lead to the same process

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for wire in idle:
            wire.close()

    def _give_back(self, wire: Wire, generation: int) -> None:
        with self._lock:
            if generation == self._generation and len(self._idle) < _IDLE_MAX:
                self._idle.append(wire)
                return
        wire.close()

    def hint(self, op: str, args: Mapping[str, object]) -> None:
        """Tell the transfer process something that needs no answer; lost when it is away.

        Never blocks: event loops call it.
        """
        with self._lock:
            if len(self._hints) >= _HINTS_MAX:
                return
            self._hints.append({"op": op, "quiet": True, **args})
            if self._hint_thread is None:
                self._hint_thread = threading.Thread(
                    target=self._send_hints, name="hints", daemon=True
                )
                self._hint_thread.start()
        self._has_hints.set()

    def _send_hints(self) -> None:
        wire: Wire | None = None
        generation = self._generation
        while not self._is_closed:
            self._has_hints.wait()
            self._has_hints.clear()
            while self._hints:
                hint = self._hints.popleft()
                try:
                    if wire is not None and generation != self._generation:
                        wire.close()
                        wire = None
                    if wire is None or wire.is_ended():
                        generation = self._generation
                        wire = Wire(self._connect())
                    wire.connection.settimeout(_HINT_TIMEOUT_S)
                    wire.send(hint)
                except (OSError, WorkspaceError) as exc:
                    log.debug("transfer.hint_lost", extra={"reason": str(exc)})
                    if wire is not None:
                        wire.close()
                    wire = None
                    self._hints.clear()
        if wire is not None:
            wire.close()

    def reconnect(self) -> None:
        """Use new connections from now on; what is under way ends on the old ones."""
        with self._lock:
            self._generation += 1
        self._drop_idle()

    def close(self) -> None:
        """Hang up everywhere."""
        self._is_closed = True
        self._has_hints.set()
        self._drop_idle()


def _checked(answer: Message) -> Message:
    absent, error = answer.header.get("absent"), answer.header.get("error")
    if isinstance(absent, str):
        raise KeyAbsentError(absent)
    if isinstance(error, dict):
        raise error_from_document(error)
    if "ok" not in answer.header:
        raise IntegrityError("the transfer process does not make sense", kind="protocol.malformed")
    return answer


def unreached() -> UnavailableError:
    """Return the error of whom no transfer process answered."""
    return UnavailableError(
        "the transfer process ends again and again; see the log of the daemons",
        kind="transfer.gone",
    )
