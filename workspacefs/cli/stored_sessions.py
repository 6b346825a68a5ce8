"""The sessions that a store knows, joined with what is mounted on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from workspacefs.cli.commit_text import time_text
from workspacefs.cli.context import Context
from workspacefs.cli.revision import open_place
from workspacefs.client.registry import LiveSession, find_hidden
from workspacefs.refs import RefKind


def rows_of(
    options: argparse.Namespace, mounted: Sequence[LiveSession], context: Context
) -> list[dict[str, object]]:
    """Return one row for each session that was not deleted, in order of name."""
    workspace = open_place(options.where, None, options, context).workspace
    hidden = find_hidden(mounted)
    here = {
        session.session: session
        for session in mounted
        if session.store_url == workspace.url
        and session.is_alive()
        and session.session_id not in hidden
    }
    rows: list[dict[str, object]] = []
    for name, record in workspace.refs.iter(RefKind.SESSION):
        session = record.session
        if session is None or session.state != "open":
            continue
        live = here.get(name)
        rows.append(
            {
                "session": name,
                "session_id": session.session_id,
                "branch": session.branch,
                "base": session.base.hex() if session.base is not None else None,
                "head": record.commit_id.hex() if record.commit_id is not None else None,
                "owner": session.owner,
                "created": time_text(session.created_ns),
                "moved": time_text(record.moved_at_ns),
                "moved_by": record.moved_by,
                "mountpoint": live.mountpoint if live is not None else None,
            }
        )
    return rows
