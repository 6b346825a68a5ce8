"""What a mount of a far store does by itself: fetch ahead, and remember what was needed."""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from workspacefs_daemon.far import FarStore
from workspacefs_daemon.mounted import Mounted

_START_S: Final = 30.0
"""After this time a program has mostly read what it reads at its start."""
_LAST_WORD_S: Final = 2.0
"""Longest time that an unmount waits for hints to be stored."""


async def read_ahead(far: FarStore, mounted: Mounted) -> None:
    """Have fetched what will be wanted; store hints for the next mount. Runs until cancelled."""
    blocking = mounted.blocking
    root = mounted.base_root.subtree
    await blocking.errand(partial(far.read_ahead, mounted.base, root))
    try:
        await trio.sleep(_START_S)
        await blocking.errand(far.store_hints)
        await trio.sleep_forever()
    finally:
        with trio.move_on_after(_LAST_WORD_S, shield=True):
            await blocking.errand(far.store_hints)
