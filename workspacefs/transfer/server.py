"""The transfer process's side: one thread a connection, one request at a time on each.

This module must not know S3: it serves whatever backend it is given.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import mmap
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from workspacefs.backend.contract import Version
from workspacefs.cache.backend import CachingBackend
from workspacefs.cache.fetch_queue import Priority
from workspacefs.errors import KeyAbsentError, UsageError, WorkspaceError
from workspacefs.protocol.failures import error_document
from workspacefs.protocol.sockets import peer_refusal
from workspacefs.transfer.wire import SEALS, Message, Wire

log = logging.getLogger(__name__)

IDLE_EXIT_S: Final = 600.0
"""A transfer process without connections ends after this time."""
_UNKNOWN_EXIT_S: Final = 5.0
"""The same when nobody could find it any more."""
_CONNECTIONS_MAX: Final = 4096
_UPLOADS: Final = 3
_LOOK_AROUND_S: Final = 1.0
_SEND_TIMEOUT_S: Final = 60.0
_ACCEPT_PAUSE_S: Final = 0.1
_PAGE_MAX: Final = 1000

Extra = Callable[[Mapping[str, object]], Mapping[str, object]]


class TransferServer:
    """Serves one store to the sessions of this account.

    Args:
        listener: Where they connect.
        store: The store, behind its cache.
        extras: Further operations by name; each gets the header of a request and answers one.
        idle_exit_s: How long to wait for the next connection when there is none.
        is_known: Whether anybody can still be told where we listen.
    """

    def __init__(
        self,
        listener: socket.socket,
        store: CachingBackend,
        *,
        extras: Mapping[str, Extra],
        idle_exit_s: float = IDLE_EXIT_S,
        is_known: Callable[[], bool] = lambda: True,
    ) -> None:
        self._listener = listener
        self._store = store
        self._extras = extras
        self._idle_exit_s = idle_exit_s
        self._is_known = is_known
        self._uploads = threading.Semaphore(_UPLOADS)
        self._lock = threading.Lock()
        self._connections = 0
        self._idle_since = time.monotonic()
        self._is_stopping = False

    def stop(self) -> None:
        """Have `serve` return soon; from any thread or signal handler."""
        self._is_stopping = True

    def serve(self) -> None:
        """Serve until nobody has been connected for long, or told to stop."""
        self._listener.setblocking(False)
        while not self._is_stopping:
            ready, _, _ = select.select([self._listener], [], [], _LOOK_AROUND_S)
            if ready:
                self._accept()
            elif self._is_idle():
                return

    def _is_idle(self) -> bool:
        with self._lock:
            idle_s = time.monotonic() - self._idle_since
            limit_s = self._idle_exit_s if self._is_known() else _UNKNOWN_EXIT_S
            return self._connections == 0 and idle_s > limit_s

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as exc:
            # Out of descriptors, as a rule: it is tried again, but not all the time.
            log.warning("transfer.not_accepted", extra={"errno": exc.errno})
            time.sleep(_ACCEPT_PAUSE_S)
            return
        if peer_refusal(connection) is not None or self._connections >= _CONNECTIONS_MAX:
            log.warning("transfer.refused")
            connection.close()
            return
        with self._lock:
            self._connections += 1
        connection.setblocking(True)  # the standard library's own signature
        try:
            threading.Thread(
                target=self._converse, args=(Wire(connection),), name="client", daemon=True
            ).start()
        except RuntimeError:
            log.warning("transfer.no_thread", extra={"connections": self._connections})
            self._hung_up(connection)

    def _converse(self, wire: Wire) -> None:
        try:
            while True:
                wire.connection.settimeout(None)  # who is connected may be silent for days
                message = wire.receive()
                if message is None:
                    return
                self._answer(wire, message)
        except (OSError, UsageError) as exc:
            log.info("transfer.hung_up", extra={"reason": type(exc).__name__})
        except Exception:
            log.exception("transfer.bug")
        finally:
            self._hung_up(wire.connection)

    def _hung_up(self, connection: socket.socket) -> None:
        connection.close()
        with self._lock:
            self._connections -= 1
            self._idle_since = time.monotonic()

    def _answer(self, wire: Wire, message: Message) -> None:
        payload = b""
        header: Mapping[str, object]
        try:
            header, payload = self._do(message)
        except KeyAbsentError as exc:
            header = {"absent": exc.key}
        except WorkspaceError as exc:
            header = {"error": error_document(exc)}
        except Exception as exc:  # the root of a request: every error is told
            log.exception("transfer.bug", extra={"op": str(message.header.get("op"))})
            header = {"error": error_document(exc)}
        finally:
            if message.fd is not None:
                os.close(message.fd)
        if message.header.get("quiet") is not True:
            wire.connection.settimeout(_SEND_TIMEOUT_S)
            wire.send(header, payload)

    def _do(self, message: Message) -> tuple[Mapping[str, object], bytes]:
        header, store = message.header, self._store
        op = _text(header, "op")
        match op:
            case "get":
                return _OK, self._get(header)
            case "get_versioned":
                data, version = store.get_versioned(_text(header, "key"))
                return {"ok": True, "version": version}, data
            case "size":
                return {"ok": True, "size": store.size_bytes(_text(header, "key"))}, b""
            case "put":
                self._put(_text(header, "key"), message.fd)
                return _OK, b""
            case "put_if_absent":
                made = store.put_if_absent(_text(header, "key"), message.payload)
                return {"ok": True, "version": made}, b""
            case "put_if_version":
                version = Version(_text(header, "version"))
                made = store.put_if_version(_text(header, "key"), message.payload, version)
                return {"ok": True, "version": made}, b""
            case "list":
                return {"ok": True, "keys": self._list(header)}, b""
            case "delete":
                store.delete(_text(header, "key"))
                return _OK, b""
            case "delete_if_version":
                version = Version(_text(header, "version"))
                return {
                    "ok": True,
                    "done": store.delete_if_version(_text(header, "key"), version),
                }, b""
            case "forget":
                store.forget_local(
                    _text(header, "key"),
                    offset=_number(header, "offset"),
                    length=_number(header, "length"),
                )
                return _OK, b""
            case "mark":
                store.fetcher.mark_met(_text(header, "key"), _number(header, "block"))
                return _OK, b""
            case "prefetch":
                self._prefetch(header)
                return _OK, b""
            case _ if op in self._extras:
                return {"ok": True, **self._extras[op](header)}, b""
            case _:
                raise UsageError(f"there is no operation {op!r}", kind="op.unknown")

    def _get(self, header: Mapping[str, object]) -> bytes:
        key, offset = _text(header, "key"), _number(header, "offset")
        if header.get("length") is None:
            return self._store.get(key, offset=offset)
        length, wait_s = _number(header, "length"), header.get("wait_s")
        if not isinstance(wait_s, int | float):
            raise UsageError("wait_s must be a number", kind="args.invalid")
        if self._store.is_cached(key):
            reads_ahead = header.get("reads_ahead") is not False
            return self._store.read(key, offset, length, wait_s=wait_s, reads_ahead=reads_ahead)
        return self._store.get(key, offset=offset, length=length)

    def _put(self, key: str, fd: int | None) -> None:
        if fd is None or not _is_sealed(fd):
            raise UsageError("a put needs a descriptor of a sealed memfd", kind="args.invalid")
        size_bytes = os.fstat(fd).st_size
        with self._uploads:  # each holds parts of its value in memory
            if size_bytes == 0:
                self._store.put(key, [])
                return
            with (
                mmap.mmap(fd, size_bytes, prot=mmap.PROT_READ) as mapped,
                memoryview(mapped) as view,
            ):
                self._store.put(key, [view])

    def _list(self, header: Mapping[str, object]) -> list[tuple[str, int]]:
        limit = min(_number(header, "limit"), _PAGE_MAX)
        found = self._store.iter_keys(
            _text(header, "prefix"), start_after=_text(header, "start_after")
        )
        return [(info.key, info.size_bytes) for info in itertools.islice(found, limit)]

    def _prefetch(self, header: Mapping[str, object]) -> None:
        ranges = header.get("ranges")
        if not isinstance(ranges, list):
            raise UsageError("a prefetch needs ranges", kind="args.invalid")
        priority = Priority.AHEAD if header.get("is_ahead") is True else Priority.PREFETCH
        for key, offset, length in ranges:
            self._store.fetcher.prefetch(str(key), int(offset), int(length), priority=priority)


_OK: Final[Mapping[str, object]] = {"ok": True}


def _is_sealed(fd: int) -> bool:
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS == SEALS
    except OSError:
        return False


def _text(header: Mapping[str, object], name: str) -> str:
    value = header.get(name)
    if not isinstance(value, str):
        raise UsageError(f"{name} must be a text", kind="args.invalid")
    return value


def _number(header: Mapping[str, object], name: str) -> int:
    value = header.get(name)
    if type(value) is not int or value < 0:
        raise UsageError(f"{name} must be a number", kind="args.invalid")
    return value
