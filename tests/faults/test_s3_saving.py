"""Autosave, pause and resume with a bucket, while answers get lost and the store goes away."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading

import pytest

from tests.harness import Mount, kill, tree_of
from tests.s3_machine import S3Machine, kill_all, requests_to, wait_until
from workspacefs.errors import ExitCode
from workspacefs.testing.proxy import DropAnswer, Stall, Status

SESSION_WRITES = requests_to("PUT", key="/refs/sessions/")


def work(mount: Mount) -> None:
    """Commit a base and change it."""
    (mount.path / "d").mkdir()
    for number in range(20):
        (mount.path / "d" / f"f{number}").write_bytes(os.urandom(3000))
    (mount.path / "large").write_bytes(os.urandom(3_000_000))
    mount.commit("base")
    (mount.path / "d/f1").write_text("changed")
    (mount.path / "d/f2").unlink()
    (mount.path / "d/f3").rename(mount.path / "moved")
    (mount.path / "new").write_bytes(os.urandom(500_000))
    with (mount.path / "large").open("r+b") as file:
        file.seek(100_000)
        file.write(b"here")


def kill_sandbox(machine: S3Machine, mount: Mount) -> None:
    """End all processes of a machine at once, and lose its disk."""
    kill_all([mount.pid, machine.supervisor_pid(), *machine.transfer_pids()])
    kill(mount.pid)
    subprocess.run(["umount", "-l", mount.path], check=True)
    shutil.rmtree(machine.state_dir)


def test_killed_sandbox_goes_on_elsewhere(s3: S3Machine) -> None:
    """From its last autosave, on a machine that has never seen it."""
    mount = s3.mount(autosave="1s")
    work(mount)
    before, status = tree_of(mount.path), mount.status()
    wait_until(mount.is_stored)

    kill_sandbox(s3, mount)
    resumed = s3.beside().resume("s", "--steal")

    assert tree_of(resumed.path) == before
    assert resumed.status() == status


def test_save_stores_only_what_has_changed(s3: S3Machine) -> None:
    """The second save of a session with much work sends what is new."""
    mount = s3.mount(autosave="1s")
    work(mount)
    wait_until(mount.is_stored)
    s3.proxy.clear_log()

    (mount.path / "small").write_text("small")
    with (mount.path / "d/f1").open("a") as file:
        file.write(" again")
    wait_until(mount.is_stored)

    sent_bytes = sum(info.received_bytes for info in s3.proxy.log if info.method == "PUT")
    assert 0 < sent_bytes < 30_000


@pytest.mark.parametrize("loses_request", [False, True])
def test_save_whose_answer_gets_lost(s3: S3Machine, loses_request: bool) -> None:
    """It was done or it was not: the next one finds out, and so does a commit."""
    mount = s3.mount(autosave="1s", store_timeout="2")
    work(mount)
    action = Status(500) if loses_request else DropAnswer()
    fault = s3.fault(action, SESSION_WRITES, times=2)
    (mount.path / "more").write_text("more")
    wait_until(lambda: fault.fired)
    before = tree_of(mount.path)

    wait_until(mount.is_stored)
    answer = mount.commit("all", "--into", "main")

    assert answer["is_new"] is True
    assert tree_of(mount.path) == before
    assert tree_of(s3.beside().mount(session="other").path) == before


def test_store_that_is_away_puts_saving_off(s3: S3Machine) -> None:
    """Work goes on; a pause says that nothing is lost; when the store is back all is stored."""
    mount = s3.mount(autosave="1s", store_timeout="1.5")
    work(mount)
    wait_until(mount.is_stored)
    s3.proxy.down()

    (mount.path / "while-away").write_text("w")
    refused = s3.start("pause", mount.path)
    assert refused.returncode == ExitCode.UNAVAILABLE, refused.stderr
    assert b"Nothing is lost" in refused.stderr
    (mount.path / "still-here").write_text("s")
    assert mount.is_stored() is False
    s3.proxy.up()

    wait_until(mount.is_stored)
    before = tree_of(mount.path)
    s3.run("pause", mount.path)
    assert tree_of(s3.beside().resume("s", "--steal").path) == before


def test_work_goes_on_while_much_is_being_stored(s3: S3Machine) -> None:
    """A fork, a checkpoint and a commit do not wait for an autosave whose upload takes long; what
    that stores of an older state than the commit's counts for nothing.
    """
    mount = s3.mount(autosave="1s")
    work(mount)
    wait_until(mount.is_stored)
    go_on = threading.Event()
    upload = s3.fault(Stall(go_on), requests_to("PUT", key="/packs/"), times=1)
    (mount.path / "more").write_bytes(os.urandom(100_000))
    wait_until(lambda: upload.fired)

    before = tree_of(mount.path)
    fork = s3.fork(mount, "fork")
    s3.run("checkpoint", mount.path, "--name", "one")
    (mount.path / "yet-more").write_text("y")
    mount.commit("all")
    go_on.set()

    assert tree_of(fork.path) == before
    wait_until(mount.is_stored)
    assert s3.json("session", "show", s3.store, "s")["saved"] is None
    (mount.path / "after").write_text("a")
    wait_until(mount.is_stored)
    assert s3.json("session", "show", s3.store, "s")["saved"] is not None
    assert (s3.beside().resume("s", "--steal").path / "after").read_text() == "a"


def test_lease_given_back_after_the_session_was_mounted_again(s3: S3Machine) -> None:
    """An unmount does not wait for long until the store knows; the write that comes late takes
    nothing from the next mount.
    """
    mount = s3.mount()
    work(mount)
    go_on = threading.Event()
    late = s3.fault(Stall(go_on), SESSION_WRITES, times=1)
    mount.umount()
    assert late.fired

    mount = mount.again()
    go_on.set()
    mount.commit("all", "--into", "main")
    (mount.path / "more").write_text("more")

    assert s3.json("status", mount.path)["is_lost"] is False
    assert mount.commit("more")["is_new"] is True
