"""Layers that a chain has let go of, until nothing reads them any more."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from workspacefs.errors import WorkspaceError
from workspacefs.layers.layer import Layer
from workspacefs.layers.rebase import is_in
from workspacefs.workspace.local import LocalSession
from workspacefs_daemon.background.durability import Durability
from workspacefs_daemon.background.hops import Blocking
from workspacefs_daemon.layer_steps import places_of
from workspacefs_daemon.vfs.overlay import Overlay

log = logging.getLogger(__name__)


class RetiredLayers:
    """Those of one mount. They are open: open files and views may still read them."""

    def __init__(
        self,
        overlay: Overlay,
        durability: Durability,
        blocking: Blocking,
        local: LocalSession | None,
    ) -> None:
        self._overlay = overlay
        self._durability = durability
        self._blocking = blocking
        self._local = local
        self._retired: list[Layer] = []
        self._left: list[Layer] = []
        """No more in the chain since it went over to another state, and not synced yet."""
        self._views = 0

    def all(self) -> list[Layer]:
        """Return all of them."""
        return [*self._retired, *self._left]

    def find(self, number: int) -> Layer | None:
        """Return one, synced ones alone, or None."""
        return next((layer for layer in self._retired if layer.number == number), None)

    @contextmanager
    def viewing(self) -> Iterator[None]:
        """Let none be closed within the block: someone looks at layers."""
        self._views += 1
        try:
            yield
        finally:
            self._views -= 1

    def take_back(self, numbers: set[int]) -> None:
        """Hear that layers are in the chain again."""
        self._retired = [layer for layer in self._retired if layer.number not in numbers]

    def leave(self, layers: Sequence[Layer]) -> None:
        """Take layers that the chain has left without a sync; retire_left() follows."""
        self._left += layers

    async def retire_left(self) -> None:
        """Let go of what leave() was given; checkpoints have it, as durable as it would have
        become.
        """
        try:
            await self._durability.sync()
        except WorkspaceError as exc:
            # They stay open, and every sync tries again.
            log.warning("layers.not_left", extra={"kind": exc.kind, "reason": str(exc)})
            return
        left, self._left = self._left, []
        await self.retire(left)

    async def retire(self, layers: Sequence[Layer]) -> None:
        """Take layers that the record does not name any more, and close what nothing reads."""
        for layer in layers:
            await self._durability.remove(layer)
        self._retired += layers
        await self.drop_unused()

    async def drop_unused(self) -> None:
        """Close and delete layers that no open file reads any more."""
        # Only a file that has lost its last name can still have its bytes there.
        unused = [
            layer
            for layer in self._retired
            if not self._views
            and not any(is_in(inode.content, {layer.number}) for inode in self._overlay.orphans)
        ]
        for layer in unused:
            self._retired.remove(layer)
            layer.close()
        await self._release(unused)

    async def close(self) -> None:
        """Close and delete all; nothing may be served any more. What was left is synced."""
        left, self._left = self._left, []
        await self.retire(left)
        for layer in self._retired:
            layer.close()
        await self._release(self._retired)

    async def _release(self, layers: Sequence[Layer]) -> None:
        assert self._local is not None or not layers
        if self._local is not None and layers:
            await self._blocking.job(partial(self._local.pool.release, places_of(layers)))
