"""Messages between a session and its transfer process: whole, or an error; no descriptor leaks."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import msgpack
import pytest

from workspacefs.errors import UsageError
from workspacefs.transfer.wire import HEADER_MAX_BYTES, PAYLOAD_MAX_BYTES, Wire

TIMEOUT_S = 20.0

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Both ends of a connection."""
    left, right = socket.socketpair()
    left.settimeout(TIMEOUT_S)
    right.settimeout(TIMEOUT_S)
    yield left, right
    left.close()
    right.close()


def raw_message(header: object, payload: bytes = b"") -> bytes:
    """Return a message as it stands on the wire."""
    packed = msgpack.packb(header)
    return len(packed).to_bytes(4, "little") + len(payload).to_bytes(8, "little") + packed + payload


def open_descriptors() -> int:
    """Return how many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def memfd(content: bytes) -> int:
    """Return a descriptor with this content."""
    fd = os.memfd_create("test")
    os.write(fd, content)
    return fd


@pytest.mark.parametrize("size_bytes", [0, 1, 65_536, 65_537, 3_000_000])
def test_message_arrives_as_it_was_sent(ends: Ends, size_bytes: int) -> None:
    """Header and payload of any size come through, one message after the other."""
    payload = os.urandom(size_bytes)
    header = {"op": "get", "id": b"\0\xff", "n": 1 << 40, "list": [1, None, True], "text": "ä"}
    sender = threading.Thread(
        target=lambda: [Wire(ends[0]).send(header, payload) for _ in range(2)]
    )
    sender.start()

    messages = [Wire(ends[1]).receive() for _ in range(2)]

    sender.join(TIMEOUT_S)
    for message in messages:
        assert message is not None
        assert message == (header, payload, None)


def test_message_in_single_bytes_is_put_together(ends: Ends) -> None:
    """It does not matter in what pieces a message arrives."""
    raw = raw_message({"op": "x"}, b"payload") * 2
    sender = threading.Thread(
        target=lambda: [ends[0].sendall(raw[i : i + 1]) for i in range(len(raw))]
    )
    sender.start()

    for _ in range(2):
        assert Wire(ends[1]).receive() == ({"op": "x"}, b"payload", None)
    sender.join(TIMEOUT_S)


@pytest.mark.parametrize("cut", range(len(raw_message({"op": "x"}, b"payload"))))
def test_message_cut_at_any_byte_is_a_broken_connection(ends: Ends, cut: int) -> None:
    """Half a message is never taken for one; nothing at all is a hang-up."""
    ends[0].sendall(raw_message({"op": "x"}, b"payload")[:cut])
    ends[0].close()

    if cut == 0:
        assert Wire(ends[1]).receive() is None
    else:
        with pytest.raises(ConnectionError):
            Wire(ends[1]).receive()


@pytest.mark.parametrize(
    "raw",
    [
        raw_message([1, 2]),
        raw_message(None),
        raw_message("op"),
        raw_message({1: 2}),
        (2).to_bytes(4, "little") + bytes(8) + b"\xc1\xc1",
        (1).to_bytes(4, "little") + bytes(8) + b"\x81",
        (2).to_bytes(4, "little") + bytes(8) + b"\x80\x80",
        bytes(12),
        (HEADER_MAX_BYTES + 1).to_bytes(4, "little") + bytes(8),
        (1).to_bytes(4, "little") + (PAYLOAD_MAX_BYTES + 1).to_bytes(8, "little"),
        b"\xff" * 12,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        (5000).to_bytes(4, "little") + bytes(8) + b"\x91" * 5000,
    ],
)
def test_what_is_no_message_is_refused(ends: Ends, raw: bytes) -> None:
    """Garbage, beyond all limits or of the wrong shape, is told as such before it is waited for."""
    ends[0].sendall(raw)

    with pytest.raises(UsageError) as caught:
        Wire(ends[1]).receive()

    assert caught.value.kind == "protocol.malformed"


def test_descriptor_comes_with_its_message(ends: Ends) -> None:
    """It belongs to the message that it was sent with, and to no other."""
    fd = memfd(b"the value")
    sender = Wire(ends[0])
    sender.send({"n": 1})
    sender.send({"n": 2}, b"x" * 10_000, fd=fd)
    sender.send({"n": 3})
    os.close(fd)
    receiver = Wire(ends[1])

    first, second, third = receiver.receive(), receiver.receive(), receiver.receive()

    assert first is not None
    assert second is not None
    assert third is not None
    assert first.fd is None
    assert third.fd is None
    assert second.fd is not None
    assert os.pread(second.fd, 100, 0) == b"the value"
    os.close(second.fd)


@pytest.mark.parametrize(
    "raw", [b"\xff" * 12, raw_message([]), raw_message({"op": "x"})[:-1], b"1"]
)
def test_descriptor_of_a_bad_message_is_closed(ends: Ends, raw: bytes) -> None:
    """Whoever sends garbage cannot fill up our descriptors."""
    fd = memfd(b"")
    before = open_descriptors()
    socket.send_fds(ends[0], [raw], [fd])
    ends[0].shutdown(socket.SHUT_WR)

    with pytest.raises((UsageError, ConnectionError)):
        Wire(ends[1]).receive()

    assert open_descriptors() == before
    os.close(fd)


def test_descriptors_that_nobody_asked_for_are_not_kept(ends: Ends) -> None:
    """More than one, or one within a message, are dropped by the kernel."""
    fd = memfd(b"")
    raw = raw_message({"op": "x"}, b"payload")
    before = open_descriptors()
    socket.send_fds(ends[0], [raw], [fd, fd, fd])
    ends[0].sendall(raw[:12])
    socket.send_fds(ends[0], [raw[12:]], [fd])
    receiver = Wire(ends[1])

    first, second = receiver.receive(), receiver.receive()

    assert first is not None
    assert first.fd is not None
    os.close(first.fd)
    assert second == ({"op": "x"}, b"payload", None)
    assert open_descriptors() == before
    os.close(fd)


def test_end_of_a_connection_shows_without_using_it(ends: Ends) -> None:
    """Whether the other end is there can be told before anything is sent."""
    wire = Wire(ends[0])
    assert not wire.is_ended()

    ends[1].close()

    assert wire.is_ended()


def test_silence_ends_a_wait(ends: Ends) -> None:
    """The socket's time limit holds within a message too."""
    ends[1].settimeout(0.01)
    with pytest.raises(TimeoutError):
        Wire(ends[1]).receive()
    ends[0].sendall(raw_message({"op": "x"})[:-1])
    with pytest.raises(TimeoutError):
        Wire(ends[1]).receive()
