"""What `workspacefs session` does to sessions: their policies, names, archiving, tidying."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from workspacefs.cli.context import Context
from workspacefs.cli.policies import policy_changes, policy_text
from workspacefs.cli.provenance import own_name
from workspacefs.cli.revision import open_place
from workspacefs.client.ending import find_registered, wait_until_gone
from workspacefs.client.locate import SessionAddress
from workspacefs.client.putting_away import put_away
from workspacefs.client.registry import living_sessions
from workspacefs.errors import UsageError
from workspacefs.refs import RefKind
from workspacefs.workspace.archiving import PutAway, archive_session, tidy_sessions
from workspacefs.workspace.leftovers import end_leftovers
from workspacefs.workspace.policies import change_policy
from workspacefs.workspace.renaming import rename_session
from workspacefs.workspace.workspace import Workspace


def set_policy(
    where: str | None, name: str, options: argparse.Namespace, context: Context
) -> Mapping[str, object]:
    """Change a session's policy."""
    changes = policy_changes(options)
    if not changes:
        raise UsageError(
            "say what is to be set: --idle-pause, --ttl, --archive-after, --delete-after (a TIME, "
            "or off), --ephemeral or --no-ephemeral",
            kind="usage.policy",
        )
    workspace = open_place(where, None, options, context).workspace
    address = find_mounted(workspace, name, context)
    if address is not None:
        with address.connect() as connection:
            policy = connection.call("policy", {"changes": changes})["policy"]
    else:
        policy = change_policy(workspace, name, changes).session.policy.document()
    context.out.line(f"session {name}: {policy_text(policy) or 'nothing happens by itself'}")
    return {"session": name, "policy": policy}


def rename(
    where: str | None, name: str, new_name: str, options: argparse.Namespace, context: Context
) -> Mapping[str, object]:
    """Give a session that is not mounted another name."""
    workspace = open_place(where, None, options, context).workspace
    rename_session(workspace, context.state, name, new_name, renamed_by=own_name())
    context.out.line(f"session {name} is called {new_name} now")
    return {"session": new_name, "renamed_from": name}


def archive(
    where: str | None, name: str, options: argparse.Namespace, context: Context
) -> Mapping[str, object]:
    """Store all of a session, delete it from this machine, and put it out of sight."""
    workspace = open_place(where, None, options, context).workspace
    address = find_mounted(workspace, name, context)
    if address is not None:
        os.chdir("/")  # we must not be what keeps it busy
        registered = find_registered(address.mountpoint, context.state)
        with address.connect() as connection:
            connection.call("pause", {"drops_checkpoints": options.drop_checkpoints})
        wait_until_gone(address, registered, is_lazy=False)
    storing = _putting_away(workspace, context, drops_checkpoints=options.drop_checkpoints)
    found = archive_session(workspace, context.state, name, put_away=storing)
    saved = found.session.saved
    what = "with its uncommitted work" if saved is not None else "all of it committed"
    context.out.line(f"archived session {name}, {what}; nothing of it is left here")
    context.out.note(f"to go on: workspacefs resume {workspace.url} {name} DIR")
    return {"session": name, "saved": None if saved is None else saved.commit_id.hex()}


def tidy(where: str | None, options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Do what policies of a workspace's sessions ask for now."""
    workspace = open_place(where, None, options, context).workspace
    rows: list[dict[str, object]] = [
        {"session": name, "step": "delete", "done": not options.dry_run, "reason": None}
        for name in end_leftovers(
            workspace, context.state, ended_by=own_name(), is_dry=options.dry_run
        )
    ]
    for tidied in tidy_sessions(
        workspace,
        context.state,
        list(workspace.refs.iter_names(RefKind.SESSION)),
        tidied_by=own_name(),
        put_away=_putting_away(workspace, context, drops_checkpoints=False),
        is_dry=options.dry_run,
    ):
        row = {"session": tidied.session, "step": tidied.step, "done": tidied.is_done}
        rows.append({**row, "reason": tidied.reason})
    for row in rows:
        _tell_tidied(row, context)
    if not rows:
        context.out.line("nothing to be done: no session's time has come")
    return {"sessions": rows}


def _tell_tidied(row: Mapping[str, object], context: Context) -> None:
    if row["done"]:
        context.out.line(f"{row['step']}d session {row['session']}")
    elif row["reason"] is None:
        context.out.line(f"would {row['step']} session {row['session']}")
    else:
        context.out.line(f"did not {row['step']} session {row['session']}: {row['reason']}")


def _putting_away(workspace: Workspace, context: Context, *, drops_checkpoints: bool) -> PutAway:
    def do(name: str) -> None:
        put_away(
            workspace.url, name, context.state, context.environ,
            drops_checkpoints=drops_checkpoints,
        )  # fmt: skip

    return do


def find_mounted(workspace: Workspace, name: str, context: Context) -> SessionAddress | None:
    """Return where a session is mounted on this machine, if it is."""
    for live in living_sessions(context.state):
        if (live.session, live.store_url) == (name, workspace.url) and not live.is_read_only:
            return SessionAddress._make(getattr(live, field) for field in SessionAddress._fields)
    return None
