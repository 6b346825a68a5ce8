"""A transfer process in threads of this one: its server, and a way to it that can break off."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from workspacefs.backend.contract import RangeAnswer
from workspacefs.backend.memory import MemoryBackend
from workspacefs.cache.backend import CachingBackend, RemoteStore
from workspacefs.cache.directory import CacheDirectory
from workspacefs.cache.fetcher import Fetcher
from workspacefs.protocol.sockets import connect_unix, listen_unix
from workspacefs.transfer.client import TransferBackend
from workspacefs.transfer.server import IDLE_EXIT_S, Extra, TransferServer
from workspacefs.transfer.wire import Message, Wire

_TIMEOUT_S = 20.0


class RemoteMemory(MemoryBackend):
    """A memory backend whose ranges come in pieces."""

    is_local = False

    def open_range(self, key: str, *, offset: int, length: int) -> RangeAnswer:
        """Begin a range. See RangeSource."""
        total_bytes = self.size_bytes(key)
        data = self.get(key, offset=offset, length=max(0, min(length, total_bytes - offset)))
        return RangeAnswer(total_bytes, _pieces(data))


def _pieces(data: bytes) -> Generator[bytes, None, None]:
    for start in range(0, len(data), 100_000):
        yield data[start : start + 100_000]


class Served:
    """A server that runs, and clients of it."""

    def __init__(
        self, store: RemoteStore, directory: Path, *, idle_exit_s: float = IDLE_EXIT_S
    ) -> None:
        self.store = store
        self.socket = str(directory / "transfer.sock")
        self.root = directory / "cache"
        cache = CacheDirectory(self.root, store.url, is_writable=True)
        self.fetcher = Fetcher(store, cache)
        self.extras: dict[str, Extra] = {}
        self.server = TransferServer(
            listen_unix(self.socket, backlog=64),
            CachingBackend(store, self.fetcher, keeps_writes=True),
            extras=self.extras,
            idle_exit_s=idle_exit_s,
        )
        self.thread = threading.Thread(target=self.server.serve, daemon=True)

    def connect(self) -> socket.socket:
        """Return a connection. See transfer.client.Connect."""
        return connect_unix(self.socket, timeout_s=_TIMEOUT_S)

    def client(
        self, connect: Callable[[], socket.socket] | None = None, *, wait_s: float = _TIMEOUT_S
    ) -> TransferBackend:
        """Return a backend as a session process has it."""
        return TransferBackend(
            self.store.url,
            connect or self.connect,
            CacheDirectory(self.root, self.store.url, is_writable=False),
            wait_s=wait_s,
        )


@contextmanager
def serving(
    store: RemoteStore, directory: Path, *, idle_exit_s: float = IDLE_EXIT_S
) -> Iterator[Served]:
    """Run a server until the body ends."""
    served = Served(store, directory, idle_exit_s=idle_exit_s)
    served.thread.start()
    try:
        yield served
    finally:
        served.server.stop()
        if served.thread.is_alive():
            served.connect().close()  # it looks up at once
        served.thread.join(_TIMEOUT_S)
        served.fetcher.close()
        os.unlink(served.socket)


class Relay:
    """Passes messages on, and hangs up on clients at a moment that a test chooses.

    To the client it looks as if the transfer process had died there and another one had come.
    """

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self.cut_before: list[str] = []
        """The next requests of these operations are not even heard."""
        self.cut_after: list[str] = []
        """The next requests of these operations are done, but not answered."""
        self.cuts = 0
        self.connections = 0
        self.seen: list[str] = []
        self._ends: list[socket.socket] = []

    def connect(self) -> socket.socket:
        """Return a connection to the server behind us."""
        ours, theirs = socket.socketpair()
        ours.settimeout(_TIMEOUT_S)
        theirs.settimeout(_TIMEOUT_S)
        self.connections += 1
        self._ends.append(ours)
        threading.Thread(target=self._pass_on, args=(Wire(ours),), daemon=True).start()
        return theirs

    def die(self) -> None:
        """Hang up on all clients at once."""
        for end in self._ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # hung up already
        self._ends.clear()

    def _pass_on(self, client: Wire) -> None:
        try:
            server = Wire(self._connect())
        except OSError:
            client.close()  # the server has ended meanwhile: so it looks to the client
            return
        try:
            while (message := client.receive()) is not None:
                if not self._pass(client, server, message):
                    return
        except OSError:
            return
        finally:
            client.close()
            server.close()

    def _pass(self, client: Wire, server: Wire, message: Message) -> bool:
        op = str(message.header["op"])
        self.seen.append(op)
        try:
            if op in self.cut_before:
                self.cut_before.remove(op)
                self.cuts += 1
                return False
            server.send(message.header, message.payload, fd=message.fd)
        finally:
            if message.fd is not None:
                os.close(message.fd)
        if message.header.get("quiet") is True:
            return True
        answer = server.receive()
        if answer is None:
            return False
        if op in self.cut_after:
            self.cut_after.remove(op)
            self.cuts += 1
            return False
        client.send(answer.header, answer.payload)
        return True
