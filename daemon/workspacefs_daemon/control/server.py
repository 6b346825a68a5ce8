"""The control server of a session process: requests in, answers out, on the process's event loop.

One task a connection, one request at a time on each. Whatever a request does wrong becomes an
error reply; nothing that comes from the wire can end the process or another connection.
This module must not know what operations there are.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

import trio

from workspacefs.errors import UsageError, WorkspaceError
from workspacefs.protocol.failures import INTERNAL_KIND, error_document
from workspacefs.protocol.lines import LineBuffer
from workspacefs.protocol.messages import Request, decode_request, encode_line, find_request_id
from workspacefs.protocol.parts import iter_answer
from workspacefs.protocol.sockets import listen_unix, peer_refusal

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 64
"""Connections served at once; more wait in the listener's backlog."""
SEND_TIMEOUT_S: Final = 30.0
"""Longest time that an asker may take to read one message."""
_RECEIVE_BYTES: Final = 64 * 1024

SendProgress = Callable[[Mapping[str, object]], Awaitable[None]]


class SessionOps(Protocol):
    """The operations of a session."""

    async def handle(
        self, op: str, args: Mapping[str, object], progress: SendProgress
    ) -> Mapping[str, object]:
        """Do one operation and return its answer.

        Long lists and texts among the members of the answer are sent in parts. Cancelled when the
        asker hangs up or the server ends.

        Raises:
            WorkspaceError: Is sent as it is; UsageError(kind="op.unknown") when there is no such
                operation.
        """
        ...


async def serve_control(
    socket_path: str,
    ops: SessionOps,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve requests at `socket_path` until cancelled; started once connections are accepted.

    An answer that is ready is still sent when the server is cancelled. An operation that ends the
    process ("umount") shields its last steps from that cancellation, then returns as any other.
    The socket file is removed at the end.
    """
    listener = listen_unix(socket_path)
    slots = trio.Semaphore(CONNECTIONS_MAX)

    async def serve(connection: trio.socket.SocketType) -> None:
        try:
            await _serve_connection(connection, ops)
        finally:
            slots.release()

    with trio.socket.from_stdlib_socket(listener) as accepting:
        try:
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    await slots.acquire()
                    connection, _ = await accepting.accept()
                    nursery.start_soon(serve, connection)
        finally:
            try:
                os.unlink(socket_path)
            except FileNotFoundError:
                pass


async def _serve_connection(connection: trio.socket.SocketType, ops: SessionOps) -> None:
    async with trio.SocketStream(connection) as stream:
        if (refusal := peer_refusal(connection)) is not None:
            log.warning("control.refused", extra={"kind": refusal.kind, **refusal.context})
            return
        try:
            await _Conversation(stream, ops).run()
        except (trio.BrokenResourceError, trio.TooSlowError):
            log.info("control.hung_up")
        except Exception:  # the root of a connection: its end must not be the session's
            log.exception("control.bug")


class _Conversation:
    """What is said on one connection."""

    def __init__(self, stream: trio.SocketStream, ops: SessionOps) -> None:
        self._stream = stream
        self._ops = ops
        self._lines = LineBuffer()
        self._waiting: list[bytes] = []
        self._has_hung_up = False

    async def run(self) -> None:
        """Answer requests until the asker hangs up or talks nonsense without end."""
        while True:
            while self._waiting:
                await self._answer(self._waiting.pop(0))
            if self._has_hung_up:
                return
            try:
                await self._receive()
            except UsageError as exc:
                await self._send(encode_line({"id": 0, "error": error_document(exc)}))
                return

    async def _receive(self) -> None:
        data = await self._stream.receive_some(_RECEIVE_BYTES)
        if data:
            self._waiting += self._lines.feed(data)
        else:
            self._has_hung_up = True

    async def _answer(self, line: bytes) -> None:
        try:
            request = decode_request(line)
        except UsageError as exc:
            refusal = {"id": find_request_id(line), "error": error_document(exc)}
            await self._send(encode_line(refusal))
            return
        began = time.monotonic()
        answers: list[Mapping[str, object] | WorkspaceError] = []
        try:
            await self._handle(request, answers)
        finally:
            # Also when cancelled: whoever unmounts hears that it worked, though that ends us.
            for answer in answers:
                with trio.CancelScope(shield=True):
                    await self._send_answer(request, answer, began)

    async def _send_answer(
        self, request: Request, answer: Mapping[str, object] | WorkspaceError, began: float
    ) -> None:
        sent_bytes = 0
        for message in iter_answer(request.id, answer):
            try:
                line = encode_line(message)
            except (TypeError, ValueError, WorkspaceError) as exc:
                line = encode_line({"id": request.id, "error": error_document(exc)})
                log.exception("control.bug", extra={"op": request.op})
            await self._send(line)
            sent_bytes += len(line)
        log.info(
            "control.answered",
            extra={
                "op": request.op,
                "kind": answer.kind if isinstance(answer, WorkspaceError) else "ok",
                "duration_ms": round((time.monotonic() - began) * 1000, 3),
                "bytes": sent_bytes,
            },
        )

    async def _handle(
        self, request: Request, answers: list[Mapping[str, object] | WorkspaceError]
    ) -> None:
        async def progress(facts: Mapping[str, object]) -> None:
            try:
                await self._send(encode_line({"id": request.id, "progress": facts}))
            except (trio.BrokenResourceError, trio.TooSlowError):
                self._has_hung_up = True
                nursery.cancel_scope.cancel()
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, nursery.cancel_scope)
            try:
                answers.append(await self._ops.handle(request.op, request.args, progress))
            except Exception as exc:  # noqa: BLE001  # the root of a request: every error is told
                answers.append(_told(exc, request.op))
            nursery.cancel_scope.cancel()

    async def _watch(self, scope: trio.CancelScope) -> None:
        # While an operation runs only its asker's hanging up matters; what else it says waits.
        while not self._has_hung_up:
            try:
                await self._receive()
            except (UsageError, trio.BrokenResourceError):
                self._has_hung_up = True
        scope.cancel()

    async def _send(self, line: bytes) -> None:
        with trio.fail_after(SEND_TIMEOUT_S):
            await self._stream.send_all(line)


def _told(exc: BaseException, op: str) -> WorkspaceError:
    while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]  # nurseries add groups of one
    if isinstance(exc, WorkspaceError):
        return exc
    log.error("control.bug", extra={"op": op}, exc_info=exc)
    told = error_document(exc)
    return WorkspaceError(str(told["message"]), kind=INTERNAL_KIND, cause=type(exc).__name__)
