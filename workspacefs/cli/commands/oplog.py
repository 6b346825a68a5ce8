"""`workspacefs oplog`: what moved which branch or session, from where to where."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Final

from workspacefs.cli.commit_text import time_text
from workspacefs.cli.context import Context, short_id
from workspacefs.cli.parser import add_store_flags
from workspacefs.cli.revision import open_place
from workspacefs.client.locate import find_session_of
from workspacefs.workspace.operations import newest_operations

EXAMPLE = """\
  workspacefs oplog                    # of the workspace that one is in, restores included
  workspacefs oplog s3://bucket/shop -n 100
  workspacefs undo --op 5f2c1a90       # takes one back"""

_LIMIT: Final = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("where", metavar="URL|PATH", nargs="?", help="default: here")
    parser.add_argument(
        "-n", "--limit", metavar="N", type=int, default=_LIMIT, help=f"at most N ({_LIMIT})"
    )
    add_store_flags(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """List operations, newest first."""
    place = open_place(options.where, None, options, context)
    limit = max(0, options.limit)
    rows: list[dict[str, object]] = [
        {
            "operation": one.id,
            "action": one.action,
            "kind": one.kind.value,
            "name": one.name,
            "old": None if one.old is None else one.old.hex(),
            "new": None if one.new is None else one.new.hex(),
            "time_ns": one.time_ns,
            "by": one.by,
        }
        for one in newest_operations(place.workspace, limit)
    ]
    rows += _restores(options.where, context)
    rows.sort(key=_time_of, reverse=True)
    del rows[limit:]
    for row in rows:
        context.out.line(_line_of(row))
    if not rows:
        context.out.line("nothing has happened yet")
    return {"url": place.workspace.url, "operations": rows}


def _restores(where: str | None, context: Context) -> list[dict[str, object]]:
    """Return the restores of the session that one is in: they move no ref."""
    try:
        address = find_session_of(where or ".", context.state)
    except OSError:
        return []
    if address is None or address.session.startswith("@"):
        return []
    with address.connect() as session:
        answer = session.call("checkpoint", {"action": "list"})
    checkpoints = answer["checkpoints"]
    assert isinstance(checkpoints, list)
    return [
        {
            "operation": row["checkpoint"],
            "action": "restore",
            "kind": "session",
            "name": address.session,
            "old": row["base"],
            "new": row["base"],
            "time_ns": row["created_ns"],
            "by": row["message"],
        }
        for row in checkpoints
        if row["is_automatic"]
    ]


def _time_of(row: Mapping[str, object]) -> int:
    time_ns = row["time_ns"]
    assert isinstance(time_ns, int)
    return time_ns


def _line_of(row: Mapping[str, object]) -> str:
    when = time_text(_time_of(row))
    if row["action"] == "restore":
        return f"{row['operation']}  {when}  restore of session {row['name']}, {row['by']}"
    return (
        f"{str(row['operation'])[:12]}  {when}  {row['action']}: {row['kind']} {row['name']} "
        f"{short_id(row['old'])} -> {short_id(row['new'])}, by {row['by'] or 'someone'}"
    )
