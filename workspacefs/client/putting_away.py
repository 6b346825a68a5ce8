"""Having a session that is not mounted stored, and deleted from this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from workspacefs.client.mounting import ask_supervisor
from workspacefs.statedir import StateDir

_TIMEOUT_S: Final = 6 * 3600.0
"""Much work over a slow line takes long; when the asker gives up, all of it is still here."""


def put_away(
    store_url: str,
    session: str,
    state: StateDir,
    environ: Mapping[str, str],
    *,
    drops_checkpoints: bool = False,
) -> None:
    """Have a session process store all work of a session and delete it from this machine, as a
    pause does; return when it is done.

    Args:
        store_url: As the session was mounted.
        session: Its name; nobody has it mounted.
        state: Where its work is.
        environ: The caller's: keys of the store, and what a new supervisor gets.
        drops_checkpoints: Whether to do it though it has checkpoints.

    Raises:
        BusyError: It is mounted.
        RefusedError: It has checkpoints (kind "session.has_checkpoints").
        WorkspaceError: As the session's process says.
    """
    spec: dict[str, object] = {
        "store_url": store_url,
        "mountpoint": "",
        "state_dir": state.root,
        "session_name": session,
        "prefetch": "none",
        "puts_away": True,
        "drops_checkpoints": drops_checkpoints,
    }
    ask_supervisor(spec, state, environ, timeout_s=_TIMEOUT_S)
