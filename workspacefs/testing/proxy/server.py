"""The proxy itself: listens, goes away and comes back, keeps rules and notes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from workspacefs.testing.proxy.connection import Connection, Route
from workspacefs.testing.proxy.pace import Pace
from workspacefs.testing.proxy.requests import LogFile, RequestInfo, sequential_depth
from workspacefs.testing.proxy.rules import Action, Rule

_HOST: Final = "127.0.0.1"
_END_TIMEOUT_S: Final = 5.0
_BACKLOG: Final = 512


class FaultProxy:
    """Passes HTTP requests from loopback on to one server; a context manager.

    It serves from `__enter__` on; `__exit__` ends its connections and threads.

    Args:
        upstream_host: Where the server is.
        upstream_port: Its port.
        delay_s: Every request waits so long before it is passed on.
        connect_delay: Whether a new connection costs that too.
        continue_delay: Whether "100 Continue" does, as it is a round trip of its own.
        bandwidth_bytes_per_s: For all connections together, each way.
        port: To listen on; 0: a free one.
        log_path: Notes go to this file (see read_log), and are not kept in memory.
    """

    def __init__(
        self,
        upstream_host: str,
        upstream_port: int,
        *,
        delay_s: float = 0.0,
        connect_delay: bool = False,
        continue_delay: bool = False,
        bandwidth_bytes_per_s: float | None = None,
        port: int = 0,
        log_path: Path | None = None,
    ) -> None:
        self._route = Route(
            (upstream_host, upstream_port),
            delay_s,
            0.0,
            0.0,
            Pace(bandwidth_bytes_per_s),
            Pace(bandwidth_bytes_per_s),
        )
        self._connect_delay = connect_delay
        self._continue_delay = continue_delay
        self.delay_s = delay_s
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._log: list[RequestInfo] = []
        self._file = None if log_path is None else LogFile(log_path)
        self._connections: dict[Connection, threading.Thread] = {}
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        # Bound for good but never listening: the port stays ours while nobody answers on it.
        self._guard = _bound_socket(port)
        self.port: int = self._guard.getsockname()[1]

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"http://{_HOST}:{self.port}"

    @property
    def delay_s(self) -> float:
        """What each request costs; may be changed at any time."""
        return self._route.delay_s

    @delay_s.setter
    def delay_s(self, seconds: float) -> None:
        self._route.delay_s = seconds
        self._route.connect_delay_s = seconds if self._connect_delay else 0.0
        self._route.continue_delay_s = seconds if self._continue_delay else 0.0

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """What all connections share, each way; may be changed at any time."""
        return self._route.up.bytes_per_s

    @bandwidth_bytes_per_s.setter
    def bandwidth_bytes_per_s(self, rate: float | None) -> None:
        self._route.up.bytes_per_s = self._route.down.bytes_per_s = rate

    @property
    def log(self) -> list[RequestInfo]:
        """Notes of all requests so far, in the order in which they began."""
        with self._lock:
            return list(self._log)

    def clear_log(self) -> None:
        """Forget the notes."""
        with self._lock:
            self._log.clear()

    @staticmethod
    def sequential_depth(requests: Iterable[RequestInfo]) -> int:
        """Return the longest chain of requests that did not overlap."""
        return sequential_depth(requests)

    def add(self, rule: Rule) -> Rule:
        """Let a rule act from now on; return it."""
        with self._lock:
            self._rules.append(rule)
        return rule

    def remove(self, rule: Rule) -> None:
        """Let a rule act no more."""
        with self._lock:
            self._rules.remove(rule)

    def up(self) -> None:
        """Listen; nothing happens if it does."""
        if self._listener is not None:
            return
        self._listener = _bound_socket(self.port)
        self._listener.listen(_BACKLOG)
        self._acceptor = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
        self._acceptor.start()

    def down(self) -> None:
        """Refuse connections, and cut the open ones; returns when all are gone."""
        if self._listener is not None and self._acceptor is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._acceptor.join()
            self._listener.close()
            self._listener = self._acceptor = None
        self.cut()

    def cut(self) -> None:
        """Cut the open connections, but go on listening; returns when they are gone."""
        with self._lock:
            found = list(self._connections.items())
        for connection, _ in found:
            connection.cut()
        for _, thread in found:
            thread.join(_END_TIMEOUT_S)

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()
        self._guard.close()
        if self._file is not None:
            self._file.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            connection = Connection(sock, self._route, self._choose, self._note)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            with self._lock:
                self._connections[connection] = thread
            thread.start()

    def _serve(self, connection: Connection) -> None:
        try:
            connection.serve()
        finally:
            with self._lock:
                self._connections.pop(connection, None)

    def _choose(self, info: RequestInfo) -> Action | None:
        with self._lock:
            if self._file is None:
                self._log.append(info)
            for rule in self._rules:
                if rule.fires(info):
                    return rule.action
        return None

    def _note(self, info: RequestInfo) -> None:
        if self._file is not None:
            self._file.write(info)


def _bound_socket(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((_HOST, port))
    return sock
