"""When a mounted session pauses by itself, by a clock that is turned by hand."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from workspacefs.errors import BusyError, UnavailableError, WorkspaceError
from workspacefs.refs import SessionPolicy
from workspacefs_daemon.background.retiring import retire
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.retirement import Retirement


class Watched(Retirement):
    """A mount that pauses at once, or does what `outcomes` say first."""

    def __init__(self, policy: SessionPolicy) -> None:
        self.session = SimpleNamespace(policy=policy)
        self.counts: dict[str, int] = defaultdict(int)
        self.mounted = SimpleNamespace(session=SimpleNamespace(session=self.session), is_lost=False)
        self.outcomes: list[WorkspaceError] = []
        self.tried_s: list[float] = []
        super().__init__(cast("Mounted", self.mounted), self.counts)
        self.began_s = trio.current_time()

    async def pause(self) -> None:
        self.tried_s.append(trio.current_time() - self.began_s)
        if self.outcomes:
            raise self.outcomes.pop(0)


def watch(
    policy: SessionPolicy, script: Callable[[Watched], Awaitable[None]], for_s: float = 6000
) -> Watched:
    """Let `script` use a mount while it is watched."""
    made: list[Watched] = []

    async def main() -> None:
        watched = Watched(policy)
        made.append(watched)
        with trio.move_on_after(for_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(script, watched)
                await retire(watched)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    return made[0]


async def nothing(watched: Watched) -> None:
    pass


def test_unused_mount_pauses_in_time() -> None:
    """Not before its time, and soon after."""
    watched = watch(SessionPolicy(idle_pause_s=1800), nothing)

    (tried_s,) = watched.tried_s
    assert 1800 <= tried_s <= 1806


def test_mount_without_policy_does_not_pause() -> None:
    """However long nobody uses it."""
    assert watch(SessionPolicy(archive_after_s=1, delete_after_s=1), nothing).tried_s == []


def test_use_puts_pausing_off() -> None:
    """Time counts from the last message of a program."""

    async def use(watched: Watched) -> None:
        for _ in range(100):
            await trio.sleep(50)
            watched.counts["lookup"] += 1

    watched = watch(SessionPolicy(idle_pause_s=60), use)

    assert 5060 <= watched.tried_s[0] <= 5075


def test_what_is_no_use_does_not() -> None:
    """Messages that monitors and our own syncfs cause."""

    async def look(watched: Watched) -> None:
        for _ in range(100):
            await trio.sleep(1)
            for name in ("statfs", "getattr", "getxattr", "opendir", "releasedir", "forget"):
                watched.counts[name] += 1

    assert watch(SessionPolicy(idle_pause_s=60), look).tried_s[0] < 70


def test_time_that_is_over_is_over_in_use_too() -> None:
    """Nothing puts it off."""

    async def use(watched: Watched) -> None:
        while True:
            await trio.sleep(1)
            watched.counts["write"] += 1

    watched = watch(SessionPolicy(ttl_s=3600, idle_pause_s=60), use, for_s=4000)

    assert 3600 <= watched.tried_s[0] <= 3610


def test_pause_that_was_put_off_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """Not too often, and it is logged once for each reason."""
    caplog.set_level(logging.INFO)

    async def prepare(watched: Watched) -> None:
        watched.outcomes += [BusyError("in use")] * 5
        watched.outcomes += [UnavailableError("away")] * 5

    watched = watch(SessionPolicy(idle_pause_s=600), prepare)

    assert len(watched.tried_s) == 11
    gaps = [later - earlier for earlier, later in pairwise(watched.tried_s)]
    assert all(60 <= gap <= 66 for gap in gaps)
    said = [record for record in caplog.records if record.message == "session.pause_put_off"]
    assert len(said) == 2
    assert all(record.levelno == logging.INFO for record in said)


def test_reason_is_forgotten_when_it_is_used_again() -> None:
    """What status says is true now."""
    seen: list[str | None] = []

    async def use(watched: Watched) -> None:
        watched.outcomes.append(BusyError("in use"))
        await trio.sleep(70)
        seen.append(watched.put_off)
        watched.counts["open"] += 1
        await trio.sleep(20)
        seen.append(watched.put_off)

    watch(SessionPolicy(idle_pause_s=60), use, for_s=100)

    assert seen == ["in use", None]


def test_robbed_mount_does_not_pause() -> None:
    """What is here is nowhere else, and cannot be stored."""

    async def lose(watched: Watched) -> None:
        watched.mounted.is_lost = True

    assert watch(SessionPolicy(ttl_s=1, idle_pause_s=1), lose).tried_s == []


def test_policy_that_is_changed_counts_from_the_mount() -> None:
    """A time that is over already is over at once."""

    async def change(watched: Watched) -> None:
        await trio.sleep(1000)
        watched.session.policy = SessionPolicy(ttl_s=900)

    watched = watch(SessionPolicy(), change)

    assert 1000 <= watched.tried_s[0] <= 1006
