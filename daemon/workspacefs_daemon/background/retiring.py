"""Pausing a session when its policy says so."""

from __future__ import annotations

import logging
from typing import Final

import trio

from workspacefs.errors import WorkspaceError
from workspacefs.refs import SessionPolicy
from workspacefs_daemon.retirement import Retirement

log = logging.getLogger(__name__)

_LOOK_S: Final = (0.25, 5.0)
_RETRY_S: Final = (1.0, 60.0)


async def retire(retirement: Retirement) -> None:
    """Wait until the session is due to pause, and have it pause; ends when it has."""
    said = None
    while True:
        await trio.sleep(_share(retirement.policy, 8, _LOOK_S))
        if retirement.due() is None:
            said = retirement.put_off = None
            continue
        try:
            await retirement.pause()
        except WorkspaceError as exc:
            retirement.put_off = str(exc)
            if exc.kind != said:  # else it was said the last time
                log.info("session.pause_put_off", extra={"kind": exc.kind, "reason": str(exc)})
            said = exc.kind
        else:
            return
        await trio.sleep(_share(retirement.policy, 4, _RETRY_S))


def _share(policy: SessionPolicy, parts: int, limits_s: tuple[float, float]) -> float:
    """Return a part of the shorter of the policy's times, within limits."""
    shortest, longest = limits_s
    times = [one for one in (policy.idle_pause_s, policy.ttl_s) if one is not None]
    return max(shortest, min(longest, *(one / parts for one in times))) if times else longest
