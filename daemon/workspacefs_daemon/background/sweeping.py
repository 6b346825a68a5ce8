"""What a mounted session does now and then for sessions of its workspace that nobody has mounted,
and to hear of a policy that was changed elsewhere.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import trio

from workspacefs.client.putting_away import put_away
from workspacefs.errors import WorkspaceError
from workspacefs.refs import RefKind
from workspacefs.statedir import StateDir
from workspacefs.workspace.archiving import Tidied, tidy_sessions
from workspacefs.workspace.leftovers import end_leftovers
from workspacefs.workspace.sessions import OpenSession, is_as_left
from workspacefs_daemon.identity import owner_name
from workspacefs_daemon.mounted import Mounted

log = logging.getLogger(__name__)

PERIOD_S: Final = 3600.0
SESSIONS_MAX: Final = 50
"""Sessions that are looked at in one round: of many, a random choice; others have other rounds."""
_FIRST_LOOK_S: Final = 5.0


class Sweeper:
    """The rounds of one mount."""

    def __init__(
        self,
        mounted: Mounted,
        environ: Mapping[str, str],
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Sweep for a mount.

        Args:
            mounted: Whose workspace it is.
            environ: What a new supervisor would be started with.
            draw: Returns a number from 0 to 1, by which mounts go at different times.
        """
        self._mounted = mounted
        self._state = StateDir(mounted.spec.state_dir)
        self._environ = {**environ, **mounted.spec.store_environ}
        self._draw = draw

    async def run(self) -> None:
        """Delete what killed ephemeral sessions have left here; then sweep every hour or so."""
        await trio.sleep(_FIRST_LOOK_S)
        await self._quietly(self._end_leftovers)
        await trio.sleep(PERIOD_S * self._draw())
        while True:
            await self._quietly(self._end_leftovers)
            await self._quietly(self._tidy)
            await self._adopt_policy()
            await trio.sleep(PERIOD_S * (0.75 + self._draw() / 2))

    async def _quietly(self, call: Callable[[], object]) -> None:
        # An errand: a mount that ends does not wait for it. Each of its steps is whole by itself.
        try:
            await self._mounted.blocking.errand(call)
        except WorkspaceError as exc:
            log.info("sessions.not_tidied", extra={"kind": exc.kind, "reason": str(exc)})

    def _end_leftovers(self) -> None:
        end_leftovers(self._mounted.workspace, self._state, ended_by=owner_name())

    def _tidy(self) -> None:
        mounted = self._mounted
        workspace = mounted.workspace
        names = [n for n in workspace.refs.iter_names(RefKind.SESSION) if n != mounted.name]
        names = random.sample(names, min(len(names), SESSIONS_MAX))
        storing = partial(self._put_away, workspace.url)
        for tidied in tidy_sessions(
            workspace, self._state, names, tidied_by=owner_name(), put_away=storing
        ):
            _log(tidied)

    def _put_away(self, store_url: str, name: str) -> None:
        put_away(store_url, name, self._state, self._environ)

    async def _adopt_policy(self) -> None:
        mounted = self._mounted
        async with mounted.committing:
            try:
                found = await mounted.blocking.errand(
                    lambda: mounted.workspace.refs.find(RefKind.SESSION, mounted.name)
                )
            except WorkspaceError as exc:
                log.info("sessions.not_tidied", extra={"kind": exc.kind, "reason": str(exc)})
                return
            known = mounted.session
            if found is None or found[0].session is None or known is None:
                return
            saver = mounted.chain.record.saver
            lease = found[0].session.lease
            if lease == known.session.lease and is_as_left(found[0], known, saver):
                mounted.session = OpenSession(found[0].session, *found)


def _log(tidied: Tidied) -> None:
    extra = {"session": tidied.session, "step": tidied.step, "reason": tidied.reason}
    log.info("session.tidied" if tidied.is_done else "session.not_tidied", extra=extra)
