"""One connection to a daemon: ask, watch progress, get the answer. Synchronous; not thread-safe."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self

from workspacefs.errors import UnavailableError, UsageError
from workspacefs.protocol.lines import LineBuffer
from workspacefs.protocol.messages import (
    Failure,
    Ok,
    Part,
    Progress,
    Reply,
    Request,
    decode_reply,
    encode_request,
)
from workspacefs.protocol.sockets import connect_unix

CONNECT_TIMEOUT_S: Final = 10.0
ANSWER_TIMEOUT_S: Final = 600.0
"""Longest silence of a daemon that is at work; it says at least every few seconds that it is."""
_RECEIVE_BYTES: Final = 256 * 1024

OnProgress = Callable[[Mapping[str, object]], None]
OnPart = Callable[[str, "list[object] | str"], None]


class Connection:
    """Asks one daemon, one request after the other."""

    def __init__(self, connection: socket.socket, *, what: str) -> None:
        self._socket = connection
        self._what = what
        self._lines = LineBuffer()
        self._ready: list[Reply] = []
        self._last_id = 0

    @classmethod
    def open(
        cls, path: str, *, what: str = "the daemon", timeout_s: float = CONNECT_TIMEOUT_S
    ) -> Self:
        """Return a connection to the daemon that listens at `path`.

        Raises:
            UnavailableError: Nobody listens there (kind "daemon.absent"), or nobody answers.
            RefusedError: The listener runs under another account.
        """
        try:
            return cls(connect_unix(path, timeout_s=timeout_s), what=what)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as exc:
            raise UnavailableError(
                f"{what} is not running (nobody listens at {path})",
                kind="daemon.absent",
                socket=path,
            ) from exc
        except OSError as exc:
            raise UnavailableError(
                f"{what} does not accept a connection at {path}: {exc.strerror or exc}",
                kind="daemon.unreachable",
                socket=path,
            ) from exc

    def call(
        self,
        op: str,
        args: Mapping[str, object] | None = None,
        *,
        on_progress: OnProgress | None = None,
        on_part: OnPart | None = None,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> dict[str, object]:
        """Return the answer to one request.

        Args:
            op: Name of the operation.
            args: Its arguments; file names are text with surrogateescape.
            on_progress: Called with each progress message.
            on_part: Called with (member, piece) of long members; without it they are put together
                and stand in the answer.
            timeout_s: Longest silence that is waited through.

        Raises:
            WorkspaceError: The daemon's own error, or UnavailableError when it went away, was
                silent for too long (kind "daemon.timeout") or did not make sense.
        """
        self._last_id += 1
        parts: dict[str, list[list[object] | str]] = {}
        self._socket.settimeout(timeout_s)
        self._send(encode_request(Request(self._last_id, op, args or {})))
        while True:
            match self._receive(op):
                case Failure(_, error):
                    raise error
                case Progress(_, progress):
                    if on_progress is not None:
                        on_progress(progress)
                case Part(_, member, value):
                    if on_part is not None:
                        on_part(member, value)
                    else:
                        parts.setdefault(member, []).append(value)
                case Ok(_, ok):
                    return {**{name: _joined(pieces) for name, pieces in parts.items()}, **ok}

    def shutdown(self) -> None:
        """End the conversation from another thread; the call that waits fails."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up; a request that is still running is cancelled by the daemon."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _send(self, line: bytes) -> None:
        try:
            self._socket.sendall(line)
        except OSError as exc:
            raise self._gone() from exc

    def _receive(self, op: str) -> Reply:
        while True:
            while self._ready:
                reply = self._ready.pop(0)
                # 0: the daemon could not even read the id of what we sent.
                if reply.id in (self._last_id, 0):
                    return reply
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except TimeoutError as exc:
                raise UnavailableError(
                    f"{self._what} has been silent for too long about {op!r}", kind="daemon.timeout"
                ) from exc
            except OSError as exc:
                raise self._gone() from exc
            if not data:
                raise self._gone()
            try:
                lines = self._lines.feed(data)
            except UsageError as exc:
                raise UnavailableError(
                    f"{self._what} sent a message beyond all limits", kind="protocol.malformed"
                ) from exc
            self._ready += map(decode_reply, lines)

    def _gone(self) -> UnavailableError:
        return UnavailableError(f"{self._what} went away before it answered", kind="daemon.gone")


def _joined(pieces: list[list[object] | str]) -> list[object] | str:
    texts = [piece for piece in pieces if isinstance(piece, str)]
    if len(texts) == len(pieces):
        return "".join(texts)
    return [row for piece in pieces for row in piece]
