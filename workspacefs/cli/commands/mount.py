"""`workspacefs mount`: from a store to a directory that one can work in."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from shlex import quote
from typing import Final

from workspacefs.cli.context import Context, Output, short_id
from workspacefs.cli.parser import add_store_flags
from workspacefs.cli.policies import OF_A_MOUNT, add_policy_flags, policy_changes, time_s
from workspacefs.cli.signing_key import checked_signing_key
from workspacefs.cli.store_urls import absolute_url, is_s3
from workspacefs.client.mounting import made_mountpoint, mount_session
from workspacefs.client.registry import living_sessions
from workspacefs.client.supervisor import daemon_command
from workspacefs.config import CACHE_SIZE_VARIABLE, parse_cache_size
from workspacefs.errors import UsageError
from workspacefs.statedir import ensure_state_dir

AUTOSAVE_S: Final = 30.0
_AUTOSAVE_AS_STORE: Final = -1.0

EXAMPLE = """\
  mkdir -p /tmp/w
  workspacefs mount ./store /tmp/w --session fix-login
  workspacefs mount ./store /tmp/old --at main~3 --read-only --mkdir"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "url",
        metavar="URL",
        help="store of the workspace: ./dir, file:///dir or s3://bucket/prefix",
    )
    parser.add_argument("mountpoint", metavar="MOUNTPOINT", help="an empty directory")
    parser.add_argument(
        "--session",
        metavar="NAME",
        help="session to resume, with its uncommitted work, or to begin under this name "
        "(default: the one of this account and machine)",
    )
    parser.add_argument("--branch", default="main", help="where a new session starts (main)")
    parser.add_argument("--at", metavar="REV", help="show this revision; needs --read-only")
    parser.add_argument("--read-only", action="store_true", help="let nothing be changed")
    parser.add_argument(
        "--allow-other",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="let other accounts in, as far as modes allow (default: only when we are root)",
    )
    _add_far_flags(parser)
    parser.add_argument(
        "--metrics",
        metavar="PORT|SOCKET",
        help="serve figures for Prometheus there: a port of 127.0.0.1, or the path of a socket",
    )
    add_session_flags(parser)
    parser.add_argument("--mkdir", action="store_true", help="create the mountpoint if absent")
    parser.add_argument(
        "--foreground", action="store_true", help="stay here; Ctrl-C unmounts, nothing is lost"
    )
    add_store_flags(parser)


def _add_far_flags(parser: argparse.ArgumentParser) -> None:
    far = parser.add_argument_group("for stores that are far (s3://)")
    far.add_argument(
        "--prefetch",
        choices=("none", "metadata", "adaptive"),
        default="adaptive",
        help="what is fetched before it is asked for: nothing; names and attributes; data too, as "
        "reading goes on and as it went on an earlier mount (adaptive)",
    )
    far.add_argument(
        "--cache-size",
        metavar="SIZE",
        help="how large the cache of this account may grow, as 20G; at least 64M "
        "(default: $WORKSPACEFS_CACHE_SIZE, else 20G and at most a fifth of the disk)",
    )
    far.add_argument(
        "--early-upload",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="upload what was written before it is committed, once it is at rest, so that commits "
        "are short (default: yes)",
    )
    far.add_argument(
        "--store-timeout",
        metavar="SECONDS",
        type=_wait_s,
        default=60.0,
        help="how long a program waits for the store before it gets an error; at least 1 (60)",
    )


def add_session_flags(parser: argparse.ArgumentParser) -> None:
    """Add what mount and resume have in common, and what a policy says of a mounted session."""
    parser.add_argument(
        "--subpath",
        metavar="DIR",
        help="show this directory of the workspace, and nothing outside it (default: all)",
    )
    parser.add_argument(
        "--steal",
        action="store_true",
        help="take the session over from another machine that has it mounted, or had when it died",
    )
    parser.add_argument(
        "--autosave",
        metavar="TIME|off",
        type=_autosave_s,
        default=_AUTOSAVE_AS_STORE,
        help="how long work that is not committed may be on this machine alone, as 30s or 5m: it "
        "is stored that often, and the session can be resumed from it anywhere "
        "(default: 30s with s3:// stores, else off)",
    )
    parser.add_argument(
        "--provenance",
        choices=("on", "off"),
        default="on",
        help="note which processes change which files, for log --files (on)",
    )
    add_policy_flags(parser, OF_A_MOUNT)


def autosave_of(options: argparse.Namespace, url: str) -> float | None:
    """Return the time that --autosave says, in seconds, or None for off."""
    if options.autosave == _AUTOSAVE_AS_STORE:
        return AUTOSAVE_S if is_s3(url) else None
    seconds: float | None = options.autosave
    return seconds


def _autosave_s(text: str) -> float | None:
    return None if text == "off" else time_s(text)


def _wait_s(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds, at least 1")
    return seconds


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Mount; return when the mount answers."""
    if options.at and not options.read_only:
        raise UsageError(
            "--at shows the past, which cannot be changed: add --read-only "
            "(to work from there, start a session on a branch)",
            kind="usage.at",
        )
    policy = policy_changes(options)
    if policy and options.read_only:
        raise UsageError(
            "a read-only view has no session that could pause or be deleted; leave --idle-pause, "
            "--ttl and --ephemeral out",
            kind="usage.policy",
        )
    mountpoint = os.path.realpath(options.mountpoint)
    url = absolute_url(options.url, context.environ, options)
    spec: dict[str, object] = {
        "store_url": url,
        "mountpoint": mountpoint,
        "state_dir": context.state.root,
        "session_name": options.session,
        "branch": options.branch,
        "at_rev": options.at,
        "read_only": options.read_only,
        "subpath": options.subpath,
        "allow_other": options.allow_other,
        "foreground": options.foreground,
        "metrics": _metrics_place(options.metrics),
        "prefetch": options.prefetch,
        "early_upload": options.early_upload,
        "store_timeout_s": options.store_timeout,
        "autosave_s": autosave_of(options, url),
        "sees_writers": options.provenance == "on",
        "steals": options.steal,
        "signing_key": None if options.read_only else checked_signing_key(context.environ),
        "policy": policy,
        "cache_limit_bytes": parse_cache_size(
            options.cache_size or context.environ.get(CACHE_SIZE_VARIABLE)
        ),
    }
    if options.foreground:
        with made_mountpoint(mountpoint, is_wanted=options.mkdir):
            _become_session(spec, context)
    result = mount_session(spec, context.state, context.environ, makes_directory=options.mkdir)
    shown_rev = options.at or (options.branch if options.read_only else None)
    _tell(result, context.out, at_rev=shown_rev)
    if options.session is None and not options.read_only:
        _tell_of_first(result, context)
    return result


def _metrics_place(place: str | None) -> str | None:
    return os.path.abspath(place) if place is not None and "/" in place else place


def _become_session(spec: Mapping[str, object], context: Context) -> None:
    ensure_state_dir(context.state)
    words = ["session", "--spec", json.dumps(spec), *(["--json"] if context.out.as_json else [])]
    command = daemon_command(*words)
    os.execve(command[0], command, dict(context.environ))


def _tell(result: Mapping[str, object], out: Output, *, at_rev: str | None) -> None:
    place, session = result["mountpoint"], result["session"]
    typed = quote(str(place))
    if at_rev is not None:
        out.line(f"{at_rev} is mounted at {place}, read-only")
        out.line(f"  commit {short_id(result.get('base'))}")
        out.note(f"when done: workspacefs umount {typed}")
        return
    out.line(f"session {session} is mounted at {place}")
    pending = ", with uncommitted changes" if result.get("has_changes") else ""
    out.line(f"  base {short_id(result.get('base'))} on {result['branch']}{pending}")
    out.note(
        f"next: cd {typed}, work, then: workspacefs status | diff | commit -m WHY; "
        f"workspacefs umount {typed}"
    )


def _tell_of_first(result: Mapping[str, object], context: Context) -> None:
    """Say it when the usual session is in use: whoever looks for its work must look there."""
    usual = str(result["session"]).rpartition("-")[0]
    for session in living_sessions(context.state):
        if (session.session, session.store_url) == (usual, result["store_url"]):
            context.out.note(
                f"session {usual} is in use (mounted at {session.mountpoint}), so this is another "
                "one: what is not committed there is not seen here"
            )
