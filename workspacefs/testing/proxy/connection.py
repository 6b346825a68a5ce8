"""One connection of a client: its requests, one after another, and what is done to them."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote

from workspacefs.testing.proxy.pace import Pace
from workspacefs.testing.proxy.requests import RequestInfo, without_secrets
from workspacefs.testing.proxy.rules import (
    Action,
    CloseError,
    CorruptBody,
    DropAnswer,
    Reset,
    SlowBody,
    Stall,
    Status,
    WrongBody,
    shape,
)
from workspacefs.testing.proxy.wire import MAX_PIECE_BYTES, Framing, Head, Wire, make_head

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_FIRST_FINAL_STATUS: Final = 200
_JOINED_BYTES: Final = 64 * 1024


@dataclass(slots=True)
class Route:
    """What lies between client and store; the proxy may change it at any time."""

    upstream: tuple[str, int]
    delay_s: float
    connect_delay_s: float
    continue_delay_s: float
    up: Pace
    down: Pace


class Connection:
    """Serves one client connection on the thread that calls `serve`."""

    def __init__(
        self,
        sock: socket.socket,
        route: Route,
        choose: Callable[[RequestInfo], Action | None],
        note: Callable[[RequestInfo], None],
    ) -> None:
        self._client = Wire(sock)
        self._upstream: Wire | None = None
        self._route = route
        self._choose = choose
        self._note = note
        self._cut = threading.Event()

    def serve(self) -> None:
        """Answer until one side closes; the sockets are closed on return."""
        resets = False
        try:
            self._stall(self._route.connect_delay_s)
            while self._exchange():
                pass
        except CloseError as exc:
            resets = exc.resets
        except (OSError, ValueError):
            resets = True  # the store is away, or somebody does not speak HTTP
        finally:
            if resets or self._cut.is_set():
                linger = (socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                self._client.sock.setsockopt(*linger)
            self._client.sock.close()
            if self._upstream is not None:
                self._upstream.sock.close()

    def cut(self) -> None:
        """End it from another thread, whatever it waits for."""
        self._cut.set()
        for wire in (self._client, self._upstream):
            if wire is not None:
                try:
                    wire.sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # closed already

    def _exchange(self) -> bool:
        """Serve one request; tell whether another one may follow."""
        head = self._client.read_head()
        if head is None:
            return False
        info = _describe(head)
        action = self._choose(info)
        info.fault = None if action is None else type(action).__name__
        try:
            self._stall(self._route.delay_s)
            return self._serve(head, info, action)
        finally:
            info.end_s = info.end_s or time.monotonic()
            self._note(info)

    def _serve(self, head: Head, info: RequestInfo, action: Action | None) -> bool:
        match action:
            case Reset():
                raise CloseError(resets=True)
            case Status(forwards=False):
                return self._refuse(head, info, action)
            case Stall(until=until, after_bytes=None):
                self._stall(until)
        rate = Pace(action.bytes_per_s if isinstance(action, SlowBody) else None)
        is_heard = self._pass_request(head, info, rate)
        answer = self._read_answer()
        framing = answer.answer_framing(info.method)
        match action:
            case DropAnswer():
                self._drain(framing)
                raise CloseError
            case WrongBody(body=body, status=status):
                self._drain(framing)
                info.status = answer.status if status is None else status
                self._say(info, answer.with_body(len(body), status), body)
            case Status():
                self._drain(framing)
                self._say_status(info, action)
            case _:
                self._pass_answer(answer, framing, info, action, rate)
        is_open = is_heard and (framing.length is not None or framing.is_chunked)
        return is_open and head.keeps_connection and answer.keeps_connection

    def _pass_request(self, head: Head, info: RequestInfo, rate: Pace) -> bool:
        """Send the request on; tell whether the store listened to the end."""
        upstream = self._ensure_upstream()
        up = self._route.up
        up.wait(len(head.raw))
        upstream.send(head.raw)
        if head.wants_continue:
            self._stall(self._route.continue_delay_s)
            self._client.send(_CONTINUE)
        is_heard = True
        for piece in self._iter_request_body(head, info, rate):
            up.wait(len(piece))
            try:
                if is_heard:
                    upstream.send(piece)
            except (BrokenPipeError, ConnectionResetError):
                is_heard = False  # it has answered early; the rest is read, but nobody wants it
        return is_heard

    def _iter_request_body(self, head: Head, info: RequestInfo, rate: Pace) -> Iterator[memoryview]:
        piece_bytes = rate.piece_bytes(self._route.up.piece_bytes(MAX_PIECE_BYTES))
        for piece, is_content in self._client.iter_body(head.request_framing(), piece_bytes):
            if is_content:
                info.received_bytes += len(piece)
            rate.wait(len(piece))
            self._check_cut()
            yield piece

    def _read_answer(self) -> Head:
        assert self._upstream is not None
        while True:
            answer = self._upstream.read_head()
            if answer is None:
                raise CloseError(resets=True)
            if answer.status >= _FIRST_FINAL_STATUS:
                return answer

    def _pass_answer(
        self,
        answer: Head,
        framing: Framing,
        info: RequestInfo,
        action: Action | None,
        rate: Pace,
    ) -> None:
        assert self._upstream is not None
        if isinstance(action, CorruptBody) and action.at < 0 and framing.length:
            action = CorruptBody(framing.length + action.at, action.mask)
        info.status = answer.status
        head = answer.raw  # leaves together with the first piece
        piece_bytes = rate.piece_bytes(self._route.down.piece_bytes(MAX_PIECE_BYTES))
        for piece, is_content in self._upstream.iter_body(framing, piece_bytes):
            self._check_cut()
            if not is_content:
                self._say(info, b"".join((head, piece)))
                head = b""
                continue
            for part in shape(action, piece, info.sent_bytes, self._stall):
                rate.wait(len(part))
                self._say(info, head, part)
                head = b""
        if head:
            self._say(info, head)

    def _refuse(self, head: Head, info: RequestInfo, status: Status) -> bool:
        """Answer in the store's place."""
        if head.wants_continue:
            self._say_status(info, status, {"Connection": "close"})
            return False
        for _ in self._iter_request_body(head, info, Pace(None)):
            pass
        self._say_status(info, status)
        return head.keeps_connection

    def _say_status(
        self, info: RequestInfo, status: Status, more: dict[str, str] | None = None
    ) -> None:
        fields = {**status.headers, **(more or {}), "Content-Length": str(len(status.body))}
        info.status = status.code
        is_told = info.method != "HEAD"
        self._say(info, make_head(status.code, fields), status.body if is_told else b"")

    def _say(self, info: RequestInfo, head: bytes, body: bytes | memoryview = b"") -> None:
        """Send to the client; the note is complete before the client can know of it."""
        self._route.down.wait(len(head) + len(body))
        info.sent_bytes += len(body)
        info.end_s = time.monotonic()
        if head and len(body) <= _JOINED_BYTES:
            self._client.send(b"".join((head, body)))
        else:
            self._client.send(head)
            self._client.send(body)

    def _drain(self, framing: Framing) -> None:
        assert self._upstream is not None
        for _ in self._upstream.iter_body(framing, MAX_PIECE_BYTES):
            self._check_cut()

    def _ensure_upstream(self) -> Wire:
        if self._upstream is not None:
            # Readable between two exchanges means that the store has closed it.
            if not select.select([self._upstream.sock], [], [], 0)[0]:
                return self._upstream
            self._upstream.sock.close()
        self._upstream = Wire(socket.create_connection(self._route.upstream, timeout=10))
        self._upstream.sock.settimeout(None)
        self._check_cut()
        return self._upstream

    def _stall(self, until: float | threading.Event) -> None:
        if isinstance(until, threading.Event):
            while not until.wait(0.02):
                self._check_cut()
        elif until > 0:
            self._cut.wait(until)
        self._check_cut()

    def _check_cut(self) -> None:
        if self._cut.is_set():
            raise CloseError(resets=True)


def _describe(head: Head) -> RequestInfo:
    method, target, _ = head.words
    path, _, query = target.partition("?")
    pairs = dict(parse_qsl(query, keep_blank_values=True))
    headers, shown = without_secrets(head.fields, pairs)
    return RequestInfo(method, unquote(path), shown, headers, time.monotonic())
