"""Sockets: only ours may listen and connect, at paths of any length."""

from __future__ import annotations

import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from workspacefs.errors import RefusedError
from workspacefs.protocol.sockets import connect_unix, listen_unix, peer_refusal


@pytest.mark.parametrize("length", [10, 107, 108, 250])
def test_path_of_any_length_can_be_used(tmp_path: Path, length: int) -> None:
    """The kernel's 108 bytes are no limit for us."""
    directory = tmp_path / ("d" * max(1, length - len(str(tmp_path)) - 8))
    directory.mkdir()
    path = str(directory / "x.sock")

    with (
        listen_unix(path) as listener,
        connect_unix(path, timeout_s=5) as client,
        listener.accept()[0] as server,
    ):
        client.sendall(b"hello")
        assert server.recv(10) == b"hello"


def test_full_queue_is_waited_for(tmp_path: Path) -> None:
    """A listener that is slow to accept is no listener that is gone."""
    path = str(tmp_path / "x.sock")
    with listen_unix(path, backlog=0) as listener, ExitStack() as held:
        held.enter_context(connect_unix(path, timeout_s=5))
        with pytest.raises(TimeoutError):
            connect_unix(path, timeout_s=0.05)
        with ThreadPoolExecutor(8) as threads:
            waiting = [threads.submit(connect_unix, path, timeout_s=60) for _ in range(8)]
            for _ in range(9):
                held.enter_context(listener.accept()[0])
            for one in waiting:
                client = held.enter_context(one.result())
                assert client.gettimeout() == 60


def test_socket_is_private_from_the_start(tmp_path: Path) -> None:
    """Mode 0600, whatever the umask; a dead socket in the way is replaced."""
    path = tmp_path / "x.sock"
    old_mask = os.umask(0)
    try:
        listen_unix(str(path)).close()
        with listen_unix(str(path)):
            mode = stat.S_IMODE(path.stat().st_mode)
    finally:
        os.umask(old_mask)

    assert mode == 0o600


def test_peer_of_our_own_is_accepted() -> None:
    """Both ends of a pair are ours."""
    left, right = socket.socketpair()

    with left, right:
        assert peer_refusal(left) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another account")
def test_peer_of_another_account_is_refused(tmp_path: Path) -> None:
    """Whoever listens under another account is not talked to, even where modes would allow it."""
    path = str(tmp_path / "x.sock")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.chmod(tmp_path, 0o777)
            os.chdir(tmp_path)
            os.setresuid(65534, 65534, 65534)
            listener = listen_unix("x.sock")
            os.write(writer, b"x")
            listener.accept()
        finally:
            os._exit(0)
    os.read(reader, 1)

    try:
        with pytest.raises(RefusedError, match="65534"):
            connect_unix(path, timeout_s=5)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
