"""HTTP/1.1 as far as a proxy must know it: heads, and where bodies end."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from workspacefs.testing.proxy.rules import CloseError

MAX_PIECE_BYTES: Final = 512 * 1024
_HEAD_BYTES: Final = 64 * 1024
_LONGEST_HEAD_BYTES: Final = 1024 * 1024
_ANSWERS_WITHOUT_BODY: Final = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


@dataclass(frozen=True, slots=True)
class Framing:
    """Where a body ends: after `length` bytes, after the last chunk, or with the connection."""

    length: int | None
    is_chunked: bool = False


NO_BODY: Final = Framing(0)


@dataclass(frozen=True, slots=True)
class Head:
    """First line and header fields of a request or an answer."""

    raw: bytes
    words: tuple[str, str, str]
    """Of the first line: method, target, version; or version, status, reason."""
    fields: dict[str, str]
    """Names in lower case; of a repeated one, the last value."""

    @classmethod
    def parse(cls, raw: bytes) -> Head:
        """Take a head apart; `raw` ends with the empty line."""
        first, *lines = raw[:-4].decode("latin-1").split("\r\n")
        words = [*first.split(" ", 2), "", ""]
        fields = {}
        for line in lines:
            name, _, value = line.partition(":")
            fields[name.strip().lower()] = value.strip()
        return cls(raw, (words[0], words[1], words[2]), fields)

    @property
    def status(self) -> int:
        """Status of an answer."""
        return int(self.words[1])

    @property
    def wants_continue(self) -> bool:
        """Whether the client sends the body only when told to."""
        return self.fields.get("expect", "").lower() == "100-continue"

    @property
    def keeps_connection(self) -> bool:
        """Whether another exchange can follow on the same connection."""
        wish = self.fields.get("connection", "").lower()
        return "close" not in wish and ("HTTP/1.0" not in self.words or "keep-alive" in wish)

    def request_framing(self) -> Framing:
        """Return where the body of this request ends."""
        return self._told_framing() or NO_BODY

    def answer_framing(self, method: str) -> Framing:
        """Return where the body of this answer to a request of that method ends."""
        if method == "HEAD" or self.status in _ANSWERS_WITHOUT_BODY:
            return NO_BODY
        return self._told_framing() or Framing(None)

    def with_body(self, body_bytes: int, status: int | None) -> bytes:
        """Return this answer's head, altered for a body of another length."""
        first, *lines = self.raw[:-4].split(b"\r\n")
        if status is not None:
            first = f"HTTP/1.1 {status} {_reason(status)}".encode()
        framing = (b"content-length:", b"transfer-encoding:")
        kept = [line for line in lines if not line.lower().startswith(framing)]
        return b"\r\n".join([first, *kept, b"Content-Length: %d" % body_bytes, b"", b""])

    def _told_framing(self) -> Framing | None:
        if "chunked" in self.fields.get("transfer-encoding", "").lower():
            return Framing(None, is_chunked=True)
        length = self.fields.get("content-length")
        return None if length is None else Framing(int(length))


def make_head(status: int, fields: dict[str, str]) -> bytes:
    """Return the head of an answer of the proxy's own."""
    lines = [f"HTTP/1.1 {status} {_reason(status)}", *(f"{k}: {v}" for k, v in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


class Wire:
    """One end of a connection, with what was read ahead. For one thread."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self._ahead = b""
        self._buffer = memoryview(b"")

    def send(self, data: bytes | memoryview) -> None:
        """Send everything."""
        self.sock.sendall(data)

    def read_head(self) -> Head | None:
        """Return the next head; None when the other side has closed before one began."""
        raw = self._read_until(b"\r\n\r\n", may_end=True)
        return Head.parse(raw) if raw else None

    def iter_body(self, framing: Framing, piece_bytes: int) -> Iterator[tuple[memoryview, bool]]:
        """Yield all bytes of a body, framing included, and whether they are content.

        A piece is valid until the next step. Empty bodies have no piece.

        Raises:
            CloseError: The other side closed before the end.
        """
        if framing.is_chunked:
            yield from self._iter_chunks(piece_bytes)
        elif framing.length is not None:
            yield from self._iter_exactly(framing.length, piece_bytes)
        else:
            while piece := self._read_some(piece_bytes):
                yield piece, True

    def _iter_exactly(self, length: int, piece_bytes: int) -> Iterator[tuple[memoryview, bool]]:
        while length:
            piece = self._read_some(min(length, piece_bytes))
            if not piece:
                raise CloseError
            length -= len(piece)
            yield piece, True

    def _iter_chunks(self, piece_bytes: int) -> Iterator[tuple[memoryview, bool]]:
        while True:
            line = self._read_until(b"\r\n")
            yield memoryview(line), False
            length = int(line.partition(b";")[0], 16)
            if not length:
                break
            yield from self._iter_exactly(length, piece_bytes)
            yield memoryview(self._read_until(b"\r\n")), False
        while line != b"\r\n":  # trailers, and the empty line after them
            line = self._read_until(b"\r\n")
            yield memoryview(line), False

    def _read_until(self, mark: bytes, *, may_end: bool = False) -> bytes:
        data = self._ahead
        while (at := data.find(mark)) < 0:
            more = self.sock.recv(_HEAD_BYTES)
            if not more and may_end and not data:
                return b""
            if not more or len(data) > _LONGEST_HEAD_BYTES:
                raise CloseError
            data += more
        end = at + len(mark)
        self._ahead = data[end:]
        return data[:end]

    def _read_some(self, limit: int) -> memoryview:
        if self._ahead:
            piece = memoryview(self._ahead)[:limit]
            self._ahead = self._ahead[limit:]
            return piece
        if len(self._buffer) < limit:
            self._buffer = memoryview(bytearray(limit))
        return self._buffer[: self.sock.recv_into(self._buffer[:limit])]
