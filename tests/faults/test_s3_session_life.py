"""Policies of sessions with a bucket: how many requests they take, and while it is away."""

from __future__ import annotations

import os

import pytest

from tests.harness import Mount, tree_of
from tests.s3_machine import S3Machine, requests_to, wait_until
from workspacefs.testing.proxy import DropAnswer, Status

SESSION_WRITES = requests_to("PUT", key="/refs/sessions/")


def work(mount: Mount) -> None:
    """Commit something, and leave something uncommitted."""
    (mount.path / "a").write_bytes(os.urandom(3000))
    mount.commit("base")
    (mount.path / "b").write_bytes(os.urandom(300_000))
    (mount.path / "a").rename(mount.path / "moved")


def is_gone(mount: Mount) -> bool:
    """Tell whether nothing is mounted, and the session's process has ended."""
    registered = list((mount.machine.state_dir / "run").glob("*.json"))
    return not os.path.ismount(mount.path) and not registered


def status_of(mount: Mount) -> dict[str, object]:
    return mount.machine.json("status", mount.path)


def test_policy_takes_no_request_of_its_own(s3: S3Machine) -> None:
    """A new session has it from the write that begins it, one that exists from the lease."""
    s3.mount("warm", session="warm").umount()

    def writes_of(session: str, **flags: str) -> int:
        s3.proxy.clear_log()
        mount = s3.mount("m", session=session, **flags)
        count = sum(SESSION_WRITES(info) for info in s3.proxy.log)
        mount.umount()
        return count

    assert writes_of("plain") == writes_of("s", idle_pause="1h", ttl="2h") == 1
    assert writes_of("plain") == writes_of("s", idle_pause="off", ttl="3h") == 1

    policy = s3.json("session", "show", s3.store, "s")["policy"]
    assert policy["idle_pause_s"] is None  # type: ignore[index]
    assert policy["ttl_s"] == 3 * 3600  # type: ignore[index]


def test_idle_session_goes_on_elsewhere(s3: S3Machine) -> None:
    """From a machine that stored nothing before it paused."""
    mount = s3.mount(idle_pause="1s")
    work(mount)
    before, status = tree_of(mount.path), mount.status()

    wait_until(lambda: is_gone(mount))

    assert not list(s3.state_dir.glob("sessions/*/*/session.json"))
    resumed = s3.beside().resume("s", "--idle-pause", "off")
    assert tree_of(resumed.path) == before
    assert resumed.status() == status


def test_session_does_not_pause_while_its_work_cannot_be_stored(s3: S3Machine) -> None:
    """It goes on, says why, and pauses when all can be stored."""
    mount = s3.mount(ttl="1h", store_timeout="1.5")
    work(mount)
    before = tree_of(mount.path)
    s3.fault(Status(500), requests_to("PUT", key="/packs/"))
    s3.run("session", "set", s3.store, "s", "--ttl", "1s")

    wait_until(lambda: status_of(mount)["pause_put_off"])
    assert tree_of(mount.path) == before
    assert s3.calm() == []

    wait_until(lambda: is_gone(mount))

    assert tree_of(s3.beside().resume("s", "--ttl", "off").path) == before


@pytest.mark.parametrize("is_mounted", [True, False])
def test_policy_whose_answer_gets_lost(s3: S3Machine, is_mounted: bool) -> None:
    """It is changed all the same; a commit after it takes nothing back."""
    mount = s3.mount()
    work(mount)
    before = tree_of(mount.path)
    setting = ("session", "set", s3.store, "s", "--archive-after", "7d")
    fault = s3.fault(DropAnswer(), SESSION_WRITES, times=1)

    if is_mounted:
        s3.run(*setting)
    else:
        s3.beside().run(*setting)

    assert fault.fired
    mount.commit("all", "--into", "main")
    assert status_of(mount)["is_lost"] is False
    policy = s3.json("session", "show", s3.store, "s")["policy"]
    assert policy["archive_after_s"] == 7 * 86400  # type: ignore[index]
    mount.umount()
    assert tree_of(s3.beside().resume().path) == before


def test_ephemeral_session_that_ends_while_the_store_is_away(s3: S3Machine) -> None:
    """Its unmount does not wait for long; the next mount on that machine deletes it."""
    mount = s3.mount("gone", session="gone", ephemeral=True, store_timeout="1.5")
    work(mount)
    s3.proxy.down()
    s3.run("umount", mount.path)
    s3.proxy.up()
    assert s3.json("session", "show", s3.store, "gone")["lease"] is not None

    s3.mount(session="kept")

    def names() -> set[str]:
        rows = s3.json("session", "list", s3.store)["sessions"]
        return {row["session"] for row in rows}  # type: ignore[attr-defined]

    wait_until(lambda: names() == {"kept"})
    wait_until(lambda: not list(s3.state_dir.glob("sessions/*/gone/session.json")))


def test_pause_that_cannot_give_the_session_back_keeps_it(s3: S3Machine) -> None:
    """Else nobody could have it without stealing, not even this machine."""
    mount = s3.mount()
    work(mount)
    before = tree_of(mount.path)
    s3.fault(Status(500), SESSION_WRITES, nth=set(range(2, 1000)))  # the work is named by the first
    s3.run("pause", mount.path)
    assert s3.calm() == []
    assert s3.json("session", "show", s3.store, "s")["lease"] is not None

    assert tree_of(mount.again().path) == before


def test_session_that_was_unmounted_is_archived(s3: S3Machine) -> None:
    """A session on this disk is stored by a process that mounts nothing."""
    mount = s3.mount()
    work(mount)
    before = tree_of(mount.path)
    mount.umount()

    s3.run("session", "archive", s3.store, "s")

    other = s3.beside()
    assert other.json("session", "list", other.store)["sessions"] == []
    assert tree_of(other.resume().path) == before
