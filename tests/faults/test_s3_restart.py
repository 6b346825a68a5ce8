"""Mounts of a far store whose processes are killed, in every order, and come back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.harness import Mount, kill, tree_of
from tests.s3_machine import S3Machine, kill_all, wait_until
from tests.servers import SECRET_KEY


@pytest.fixture
def s3(s3: S3Machine) -> S3Machine:
    """A machine whose supervisor brings dead sessions back, with a workspace in a bucket."""
    s3.restarts = True
    return s3


def work(mount: Mount) -> dict[str, tuple[object, ...]]:
    """Commit something, change it, and return what is seen."""
    (mount.path / "large").write_bytes(os.urandom(2_000_000))
    mount.commit("base", "--into", "main")
    (mount.path / "new").write_bytes(os.urandom(300_000))
    return tree_of(mount.path)


def happened(s3: S3Machine, event: str) -> int:
    """Return how often something was logged."""
    return sum(line["event"] == event for line in s3.log_lines())


def test_all_that_serves_a_mount_is_killed(s3: S3Machine) -> None:
    """First the supervisor, then the session and its transfer process at once: its successor
    brings it back, with keys that were never on disk.
    """
    mount = s3.mount()
    before = work(mount)
    (transfer,) = s3.transfer_pids()
    wait_until(lambda: happened(s3, "session.adopted") == 1)

    kill(s3.supervisor_pid())
    wait_until(lambda: happened(s3, "session.adopted") == 2)
    kill_all([mount.pid, transfer])
    wait_until(lambda: happened(s3, "session.restarted") == 1)
    s3.clear_cache()

    assert tree_of(mount.path) == before
    assert mount.commit("more", "--into", "main")["is_new"] is True
    for pid in (s3.supervisor_pid(), *s3.transfer_pids()):
        for name in ("cmdline", "environ"):
            assert SECRET_KEY.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    for path in s3.state_dir.rglob("*"):
        assert not path.is_file() or SECRET_KEY.encode() not in path.read_bytes(), path


def test_new_keys_are_told_to_the_supervisor(s3: S3Machine) -> None:
    """What comes back has those that were given last."""
    mount = s3.mount()
    before = work(mount)
    wait_until(lambda: happened(s3, "session.adopted") == 1)

    s3.variables["AWS_SESSION_TOKEN"] = ""
    s3.run("credentials", mount.path)
    wait_until(lambda: happened(s3, "session.adopted") == 2)
    kill(mount.pid)
    wait_until(lambda: happened(s3, "session.restarted") == 1)

    assert tree_of(mount.path) == before


def test_store_is_away_while_a_session_dies(s3: S3Machine) -> None:
    """Its mount stays dead until the store answers, and then it is back with all its work."""
    mount = s3.mount(store_timeout="1.5")
    before = work(mount)
    s3.proxy.down()

    kill_all([mount.pid, *s3.transfer_pids()])
    wait_until(lambda: happened(s3, "session.not_restarted"))
    with pytest.raises(OSError, match="not connected"):
        os.statvfs(mount.path)
    s3.proxy.up()

    wait_until(lambda: happened(s3, "session.restarted"))
    assert tree_of(mount.path) == before
