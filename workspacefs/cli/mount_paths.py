"""Where a path that somebody types lies in the workspace."""

from __future__ import annotations

import os

from workspacefs.cli.context import Context
from workspacefs.client.locate import SessionAddress, find_session_of, path_inside


def workspace_path(path: str, address: SessionAddress) -> str:
    """Return where a path in a mount lies below the root of the workspace; "" is the root."""
    with address.connect() as connection:
        top = str(connection.call("info").get("subpath") or "")
    return os.path.join(top.strip("/"), path_inside(path, address.mountpoint)).strip("/")


def path_in_history(path: str, context: Context, *, is_here: bool) -> bytes:
    """Return the path that is meant of a revision.

    Args:
        path: A path in a mount; or one from the root of the workspace.
        context: Of the command.
        is_here: Whether the workspace is that of the mount that one is in: then a path that does
            not begin with a slash is looked for from the working directory on.
    """
    if is_here or os.path.isabs(path):
        address = find_session_of(path, context.state)
        if address is not None:
            return os.fsencode(workspace_path(path, address))
    return os.fsencode(path.strip("/"))
