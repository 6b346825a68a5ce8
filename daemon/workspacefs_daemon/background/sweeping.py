"""What a mounted session does now and then for others of its workspace that nobody has mounted."""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from workspacefs.statedir import StateDir
from workspacefs.workspace.leftovers import end_leftovers
from workspacefs_daemon.identity import owner_name
from workspacefs_daemon.mounted import Mounted

_FIRST_LOOK_S: Final = 5.0


async def sweep(mounted: Mounted) -> None:
    """Delete what ephemeral sessions have left on this machine, whose process was killed."""
    await trio.sleep(_FIRST_LOOK_S)
    state = StateDir(mounted.spec.state_dir)
    await mounted.blocking.errand(
        partial(end_leftovers, mounted.workspace, state, ended_by=owner_name())
    )
