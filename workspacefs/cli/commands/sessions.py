"""`workspacefs sessions`: which there are, and where they are mounted."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping

from workspacefs.cli.context import Context, session_text, short_id
from workspacefs.cli.parser import add_store_flags
from workspacefs.client.registry import (
    LiveSession,
    find_given_up,
    find_hidden,
    load_sessions,
)
from workspacefs.errors import UsageError

EXAMPLE = """\
  workspacefs sessions ./store     # all sessions of a workspace
  workspacefs sessions --local     # what is mounted on this machine"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("where", metavar="URL|PATH", nargs="?", help="store of the workspace")
    parser.add_argument(
        "--local", action="store_true", help="what is mounted here, of whatever workspace"
    )
    add_store_flags(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """List them."""
    mounted = load_sessions(context.state)
    if options.local:
        if options.where is not None:
            raise UsageError("--local lists all workspaces; give no URL with it", kind="usage.url")
        return _list_local(mounted, context)
    stored = importlib.import_module("workspacefs.cli.stored_sessions")
    rows: list[dict[str, object]] = stored.rows_of(options, mounted, context)
    if not rows:
        context.out.line("no sessions yet; workspacefs mount begins one")
    for row in rows:
        place = f"mounted at {row['mountpoint']}" if row["mountpoint"] else "not mounted here"
        context.out.line(
            f"{row['session']}\n  {place}; head {short_id(row['head'])} on {row['branch']}, "
            f"last moved {row['moved']} by {row['moved_by'] or 'someone'}"
        )
    return {"sessions": rows}


def _list_local(mounted: list[LiveSession], context: Context) -> Mapping[str, object]:
    rows = []
    hidden = find_hidden(mounted)
    for session in mounted:
        is_alive = session.is_alive()
        is_hidden = session.session_id in hidden
        why = None if is_alive else find_given_up(context.state, session.session_id)
        rows.append(
            {
                **session._asdict(),
                "is_alive": is_alive,
                "is_hidden": is_hidden,
                "given_up": why,
            }
        )
        told = f"process {session.pid}" if is_alive else "DEAD: mount or umount it again"
        if why is not None:
            told = f"DEAD: {why}; mount or umount it again"
        if is_hidden:
            told += ", out of sight: ends when no program uses it"
        mode = ", read-only" if session.is_read_only else ""
        context.out.line(
            f"{session.mountpoint}\n  {session_text(session.session, session.branch)} of "
            f"{session.store_url} ({told}{mode})"
        )
    if not rows:
        context.out.line("nothing is mounted from this state directory")
    return {"sessions": rows}
