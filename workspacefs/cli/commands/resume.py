"""`workspacefs resume`: go on with a session where its last work was stored."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from shlex import quote

from workspacefs.cli.commands.mount import add_session_flags, autosave_of
from workspacefs.cli.context import Context, short_id
from workspacefs.cli.parser import add_store_flags
from workspacefs.cli.policies import policy_changes
from workspacefs.cli.revision import open_place
from workspacefs.cli.signing_key import checked_signing_key
from workspacefs.cli.store_urls import absolute_url
from workspacefs.client.mounting import mount_session
from workspacefs.errors import NotFoundError
from workspacefs.refs import RefKind

EXAMPLE = """\
  workspacefs resume s3://bucket/shop fix-login /tmp/w"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("url", metavar="URL", help="store of the workspace")
    parser.add_argument("session", metavar="SESSION", help="its name; it must exist")
    parser.add_argument("mountpoint", metavar="MOUNTPOINT", help="made if absent")
    add_session_flags(parser)
    add_store_flags(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Mount a session that exists; unlike mount, never begin one."""
    url = absolute_url(options.url, context.environ, options)
    workspace = open_place(options.url, None, options, context).workspace
    found = workspace.refs.find(RefKind.SESSION, options.session)
    session = None if found is None else found[0].session
    if session is None or session.is_deleted:
        raise NotFoundError(
            f"there is no session {options.session} to resume; those that there are: "
            f"workspacefs session list {quote(options.url)}",
            kind="session.absent",
            session=options.session,
        )
    spec: dict[str, object] = {
        "store_url": url,
        "mountpoint": os.path.realpath(options.mountpoint),
        "state_dir": context.state.root,
        "session_name": options.session,
        "autosave_s": autosave_of(options, url),
        "sees_writers": options.provenance == "on",
        "steals": options.steal,
        "subpath": options.subpath,
        "policy": policy_changes(options),
        "signing_key": checked_signing_key(context.environ),
    }
    result = mount_session(spec, context.state, context.environ, makes_directory=True)
    pending = ", with uncommitted changes" if result.get("has_changes") else ""
    context.out.line(f"session {options.session} goes on at {result['mountpoint']}")
    context.out.line(f"  base {short_id(result.get('base'))} on {result['branch']}{pending}")
    return result
