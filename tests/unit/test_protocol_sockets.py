"""Sockets: only ours may listen and connect, at paths of any length."""

from __future__ import annotations

import os
import socket
import stat
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
