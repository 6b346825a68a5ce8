"""Rounds that a mount makes for sessions which nobody has mounted."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar, cast

import pytest
import trio
from trio.testing import MockClock

from tests.unit.recording_backend import RecordingBackend
from workspacefs.refs import Lease, RefKind, SessionPolicy
from workspacefs.statedir import StateDir, ensure_state_dir
from workspacefs.workspace.policies import change_policy, find_session
from workspacefs.workspace.sessions import OpenSession, drop_lease, open_session
from workspacefs.workspace.workspace import Workspace
from workspacefs_daemon.background.sweeping import PERIOD_S, SESSIONS_MAX, Sweeper
from workspacefs_daemon.mounted import Mounted

T = TypeVar("T")

LEASE = Lease(saver="aa", host="here", since_ns=1)


class LateClock:
    """A clock that is two days ahead."""

    def now_ns(self) -> int:
        return time.time_ns() + 2 * 86400 * 10**9


class World:
    """A workspace, and a session "own" that is mounted."""

    def __init__(self, directory: Path) -> None:
        self.backend = RecordingBackend(is_local=True)
        self.early = Workspace.create(self.backend)
        self.workspace = Workspace.open(self.backend, clock=LateClock())
        self.state = StateDir(str(directory / "state"))
        ensure_state_dir(self.state)
        own, _ = open_session(self.early, "own", branch="main", owner="me", lease=LEASE)
        self.mounted = SimpleNamespace(
            name="own", workspace=self.workspace, session=own, committing=None,
            spec=SimpleNamespace(state_dir=self.state.root, store_environ={}),
            chain=SimpleNamespace(record=SimpleNamespace(saver=LEASE.saver)),
            blocking=SimpleNamespace(errand=self._errand),
        )  # fmt: skip

    async def _errand(self, call: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return call()

    def add(self, name: str, policy: SessionPolicy, *, is_mounted: bool = False) -> None:
        """Begin a session at rest, or one that is mounted somewhere."""
        session, _ = open_session(
            self.early, name, branch="main", owner="me", lease=LEASE, policy=policy
        )
        if not is_mounted:
            drop_lease(self.early, session, has_work=False)

    def sweep(self, script: Callable[[], Awaitable[None]]) -> None:
        """Let `script` run while the mount makes its rounds."""

        async def main() -> None:
            self.mounted.committing = trio.Lock()
            sweeper = Sweeper(cast("Mounted", self.mounted), {}, draw=lambda: 0.5)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sweeper.run)
                await script()
                nursery.cancel_scope.cancel()

        trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_round_does_what_policies_ask_for(world: World) -> None:
    """Once an hour or so, and never to a session that is mounted."""
    world.add("archived", SessionPolicy(archive_after_s=86400))
    world.add("deleted", SessionPolicy(delete_after_s=86400))
    world.add("kept", SessionPolicy(archive_after_s=3 * 86400, delete_after_s=4 * 86400))
    world.add("mounted", SessionPolicy(delete_after_s=1), is_mounted=True)

    def states() -> list[str]:
        names = ("archived", "deleted", "kept", "mounted")
        return [
            session.state
            for name in names
            if (session := world.workspace.refs.get(RefKind.SESSION, name)[0].session) is not None
        ]

    async def script() -> None:
        await trio.sleep(PERIOD_S * 0.4)
        assert states() == ["open"] * 4
        await trio.sleep(PERIOD_S * 0.2)
        assert states() == ["archived", "deleted", "open", "open"]

    world.sweep(script)


def test_round_takes_few_requests(world: World) -> None:
    """However many sessions there are."""
    for number in range(SESSIONS_MAX * 3):
        world.add(f"s{number}", SessionPolicy(archive_after_s=3 * 86400))

    async def script() -> None:
        with world.backend.recorded() as made:
            await trio.sleep(PERIOD_S)
        assert SESSIONS_MAX <= len(made) <= SESSIONS_MAX + 3

    world.sweep(script)


def test_mount_hears_of_its_own_policy(world: World) -> None:
    """That was changed elsewhere, while nothing is stored here."""
    change_policy(world.early, "own", {"ttl_s": 60})

    async def script() -> None:
        await trio.sleep(PERIOD_S)

    world.sweep(script)

    assert world.mounted.session == find_session(world.workspace, "own")


def test_robbed_mount_takes_nothing_for_its_own(world: World) -> None:
    """It finds out by what it stores next."""
    before: OpenSession = world.mounted.session
    found = find_session(world.early, "own")
    other = found.changed(lease=Lease(saver="bb", host="there", since_ns=2))
    world.early.refs.compare_and_swap(RefKind.SESSION, "own", expected=found.version, new=other)

    async def script() -> None:
        await trio.sleep(PERIOD_S)

    world.sweep(script)

    assert world.mounted.session == before
