"""The sessions that a store knows, joined with what is mounted on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from workspacefs.cli.commit_text import time_text
from workspacefs.cli.context import Context
from workspacefs.cli.revision import open_place
from workspacefs.client.registry import LiveSession, find_hidden
from workspacefs.refs import Lease, RefKind, SavedWork
from workspacefs.workspace.local_sizes import local_sizes
from workspacefs.workspace.sessions import is_in_place
from workspacefs.workspace.workspace import Workspace


def rows_of(
    options: argparse.Namespace, mounted: Sequence[LiveSession], context: Context
) -> list[dict[str, object]]:
    """Return the rows of the workspace that `options` name; see sessions_of."""
    workspace = open_place(options.where, None, options, context).workspace
    return sessions_of(workspace, mounted, context)


def sessions_of(
    workspace: Workspace, mounted: Sequence[LiveSession], context: Context
) -> list[dict[str, object]]:
    """Return one row for each session that was not deleted, in order of name."""
    hidden = find_hidden(mounted)
    here = {
        session.session: session
        for session in mounted
        if session.store_url == workspace.url
        and session.is_alive()
        and session.session_id not in hidden
    }
    local = local_sizes(context.state, workspace.id)
    rows: list[dict[str, object]] = []
    refs = list(workspace.refs.iter(RefKind.SESSION))
    by_name = {name: record.session for name, record in refs if record.session}
    # Of one that was renamed both names are there: the gravestone goes first.
    buried_first = sorted(by_name.items(), key=lambda pair: not pair[1].is_deleted)
    names = {session.session_id: name for name, session in buried_first}
    for name, record in refs:
        session = record.session
        # A rename that was not finished has made a name that nothing stands behind yet.
        old = None if session is None else by_name.get(session.renamed_from)
        is_begun = session is not None and old is not None and not is_in_place(session, old)
        if session is None or session.is_deleted or is_begun:
            continue
        live, sizes = here.get(name), local.get(session.session_id)
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
                "lineage": [
                    {"session_id": one, "session": names.get(one)} for one in session.lineage
                ],
                "state": session.state,
                "policy": session.policy.document(),
                "saved": _saved_row(session.saved),
                "lease": _lease_row(session.lease),
                "left": _lease_row(session.left),
                "layers": None if sizes is None else sizes.layers,
                "unique_bytes": None if sizes is None else sizes.unique_bytes,
                "shared_bytes": None if sizes is None else sizes.shared_bytes,
            }
        )
    return rows


def _lease_row(lease: Lease | None) -> dict[str, object] | None:
    return None if lease is None else {"host": lease.host, "time": time_text(lease.since_ns)}


def _saved_row(saved: SavedWork | None) -> dict[str, object] | None:
    if saved is None:
        return None
    return {
        "commit": saved.commit_id.hex(),
        "host": saved.host,
        "time": time_text(saved.saved_ns),
    }
