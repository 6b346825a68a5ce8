"""What the workspace wants commits to say, as a mounted session knows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from workspacefs.objects.commits import Provenance
from workspacefs.workspace.settings import Settings, check_required, load_settings
from workspacefs.workspace.workspace import Workspace
from workspacefs_daemon.background.hops import Blocking

_FAR_KEPT_S: Final = 60.0
"""How long what a far store said counts: a round trip less for most commits."""


class Demands:
    """Asks the store when it must."""

    def __init__(
        self,
        workspace: Workspace,
        blocking: Blocking,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workspace = workspace
        self._blocking = blocking
        self._monotonic_s = monotonic_s
        self._kept: tuple[Settings, float] | None = None

    async def check(self, provenance: Provenance, meta: Mapping[str, str] | None) -> None:
        """Raise RefusedError if a commit lacks what it must say; see check_required.

        Raises:
            UnavailableError: The store does not answer.
            IntegrityError: What it has is damaged.
        """
        check_required(await self._settings(), provenance, meta)

    async def _settings(self) -> Settings:
        now_s = self._monotonic_s()
        if self._kept is not None and now_s < self._kept[1]:
            return self._kept[0]
        settings, _ = await self._blocking.job(lambda: load_settings(self._workspace))
        # What is demanded is looked up again before it is refused for long: it may be taken back.
        if not self._workspace.backend.is_local and not settings.require:
            self._kept = settings, now_s + _FAR_KEPT_S
        return settings
