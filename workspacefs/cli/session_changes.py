"""What `workspacefs session` does to a session: its policy."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from workspacefs.cli.context import Context
from workspacefs.cli.policies import policy_changes, policy_text
from workspacefs.cli.revision import open_place
from workspacefs.client.locate import SessionAddress
from workspacefs.client.registry import living_sessions
from workspacefs.errors import UsageError
from workspacefs.workspace.policies import change_policy
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


def find_mounted(workspace: Workspace, name: str, context: Context) -> SessionAddress | None:
    """Return where a session is mounted on this machine, if it is."""
    for live in living_sessions(context.state):
        if (live.session, live.store_url) == (name, workspace.url) and not live.is_read_only:
            return SessionAddress._make(getattr(live, field) for field in SessionAddress._fields)
    return None
