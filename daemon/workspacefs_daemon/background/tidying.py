"""What a mounted session does for its layers when there is time."""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

import trio

from workspacefs.errors import WorkspaceError
from workspacefs_daemon.mounted import Mounted

log = logging.getLogger(__name__)

_FIRST_LOOK_S: Final = 5.0


async def tidy_layers(mounted: Mounted) -> None:
    """Remove what a crash left; make one layer of many, and spare ones. Runs until cancelled."""
    chain = mounted.chain
    await trio.sleep(_FIRST_LOOK_S)
    async with mounted.committing:  # what is open stays that until the sweep is over
        sweep = partial(chain.local.pool.sweep, chain.local.owner, chain.names_of_open())
        with trio.CancelScope(shield=True):
            await mounted.blocking.job(sweep)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(chain.keep_spares)  # from here on the sweep takes none for leftovers
        await _flatten_for_ever(mounted)


async def _flatten_for_ever(mounted: Mounted) -> None:
    chain = mounted.chain
    while True:
        await chain.wait_until_deep()
        try:
            async with mounted.committing:
                with trio.CancelScope(shield=True):
                    await chain.flatten()
        except WorkspaceError as exc:
            log.warning("layers.not_flattened", extra={"kind": exc.kind, "reason": str(exc)})
