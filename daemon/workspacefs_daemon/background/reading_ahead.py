"""What a mount of a far store does by itself: have at hand what will be wanted."""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

import trio

from workspacefs.errors import WorkspaceError
from workspacefs_daemon.far import FarStore
from workspacefs_daemon.mounted import Mounted

log = logging.getLogger(__name__)

_START_S: Final = 30.0
"""After this time a program has mostly read what it reads at its start."""
_LAST_WORD_S: Final = 2.0
"""Longest time that an unmount waits for hints to be stored."""
_LOOK_S: Final = 30.0


async def read_ahead(far: FarStore, mounted: Mounted) -> None:
    """Have fetched what will be wanted; store hints for the next mount. Runs until cancelled."""
    errand = mounted.blocking.errand
    root = mounted.base_root.subtree
    await errand(partial(far.read_ahead, mounted.base, root))
    try:
        await trio.sleep(_START_S)
        await errand(far.store_hints)
        await trio.sleep_forever()
    finally:
        with trio.move_on_after(_LAST_WORD_S, shield=True):
            await errand(far.store_hints)


async def keep_file_ids(mounted: Mounted) -> None:
    """Claim file ids before they are needed: files are made also while the store is away."""
    file_ids = mounted.file_ids
    while file_ids is not None:
        if file_ids.needs_spare:
            try:
                await mounted.blocking.errand(file_ids.claim_spare)
            except WorkspaceError as exc:
                log.info("ids.not_claimed", extra={"kind": exc.kind, "reason": str(exc)})
        await trio.sleep(_LOOK_S)
