"""What runs beside a mount: its failures are not the mount's."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

from workspacefs.errors import KeyAbsentError
from workspacefs_daemon.session import beside


def test_failing_task_ends_alone(caplog: pytest.LogCaptureFixture) -> None:
    """An error that nobody foresaw is logged, and the tasks next to it go on."""
    went_on = []

    async def fail() -> None:
        raise KeyAbsentError("ids/1")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(beside, fail)
            await trio.testing.wait_all_tasks_blocked()
            went_on.append(True)

    with caplog.at_level(logging.ERROR):
        trio.run(main)

    assert went_on == [True]
    assert [record.message for record in caplog.records] == ["session.task_failed"]


def test_cancelling_a_task_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    """The end of the mount ends what runs beside it, silently."""

    async def main() -> None:
        with trio.move_on_after(0):
            await beside(trio.sleep_forever)

    with caplog.at_level(logging.ERROR):
        trio.run(main)

    assert caplog.records == []
