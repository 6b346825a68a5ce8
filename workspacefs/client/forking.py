"""Having a session forked, whether or not it is mounted."""

from __future__ import annotations

from collections.abc import Mapping

from workspacefs.client.mounting import ask_supervisor
from workspacefs.statedir import StateDir


def fork_unmounted(
    store_url: str,
    session: str,
    args: Mapping[str, object],
    state: StateDir,
    environ: Mapping[str, str],
) -> dict[str, object]:
    """Have a session process fork a session that is not mounted; return what a mounted one would
    answer.

    Args:
        store_url: As the session was mounted.
        session: Its name; it must exist.
        args: Of the operation "fork" (docs/protocol.md).
        state: Where its work is.
        environ: The caller's: keys of the store, and what a new supervisor gets.

    Raises:
        BusyError: It is mounted, or there is a session of a wanted name.
        WorkspaceError: As the session's process says.
    """
    spec: dict[str, object] = {
        "store_url": store_url,
        "mountpoint": "",
        "state_dir": state.root,
        "session_name": session,
        "prefetch": "none",
        "forks": dict(args),
    }
    return ask_supervisor(spec, state, environ)
