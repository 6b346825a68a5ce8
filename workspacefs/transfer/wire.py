"""Messages of a transfer connection: a small header, bytes, and now and then a descriptor.

    header length   4, little-endian
    payload length  8, little-endian
    header          msgpack map with text keys
    payload         raw

A descriptor (SCM_RIGHTS) may come with the first byte of a message: a value that is to be stored,
in a memfd, which so need not be copied through the socket. Source: unix(7), memfd_create(2).
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgpack

from workspacefs.errors import UsageError

HEADER_MAX_BYTES: Final = 4 << 20
PAYLOAD_MAX_BYTES: Final = 128 << 20
SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
"""What a value in a memfd must have: it is mapped, and one that is cut short would be a SIGBUS.
Source: fcntl(2), file sealing."""
_LENGTHS: Final = struct.Struct("<IQ")


class Message(NamedTuple):
    """One message."""

    header: dict[str, object]
    payload: bytes
    fd: int | None
    """Belongs to whoever received it."""


class Wire:
    """One end of a connection. Used by one thread at a time; times out as the socket does."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def send(
        self,
        header: Mapping[str, object],
        payload: bytes | memoryview = b"",
        *,
        fd: int | None = None,
    ) -> None:
        """Send one message; the caller keeps its descriptor.

        Raises:
            OSError: The other end is gone, or takes too long.
        """
        packed = msgpack.packb(header)
        head = _LENGTHS.pack(len(packed), len(payload)) + packed
        if fd is not None:
            sent = socket.send_fds(self.connection, [head], [fd])
            head = head[sent:]
        if len(payload) <= 64 << 10:
            self.connection.sendall(head + bytes(payload))
        else:
            self.connection.sendall(head)
            self.connection.sendall(payload)

    def receive(self) -> Message | None:
        """Return the next message; None: the other end has hung up.

        Raises:
            OSError: The connection broke, or nothing came in time.
            UsageError: What came is no message.
        """
        first, fds, _, _ = socket.recv_fds(self.connection, _LENGTHS.size, 1)
        fd = fds[0] if fds else None
        try:
            if not first:
                return None
            lengths = first + self._exactly(_LENGTHS.size - len(first))
            header_bytes, payload_bytes = _LENGTHS.unpack(lengths)
            if header_bytes > HEADER_MAX_BYTES or payload_bytes > PAYLOAD_MAX_BYTES:
                raise UsageError("a message is longer than any may be", kind="protocol.malformed")
            header = _header_of(self._exactly(header_bytes))
            message = Message(header, self._exactly(payload_bytes), fd)
        except BaseException:
            if fd is not None:
                os.close(fd)
            raise
        return message

    def is_ended(self) -> bool:
        """Tell whether the other end has hung up, or speaks without being asked."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Hang up."""
        self.connection.close()

    def _exactly(self, length: int) -> bytes:
        if length == 0:
            return b""
        data = self.connection.recv(length)
        if len(data) == length:
            return data
        buffer = bytearray(length)
        view = memoryview(buffer)
        view[: len(data)] = data
        at = len(data)
        while at < length:
            got = self.connection.recv_into(view[at:]) if data else 0
            if got == 0:
                raise ConnectionResetError("the connection ended within a message")
            at += got
        return bytes(buffer)


def _header_of(packed: bytes) -> dict[str, object]:
    try:
        header = msgpack.unpackb(packed)
    except (ValueError, msgpack.exceptions.UnpackException) as exc:
        raise UsageError("a message has no header", kind="protocol.malformed") from exc
    if not isinstance(header, dict):
        raise UsageError("a message has no header", kind="protocol.malformed")
    return header
