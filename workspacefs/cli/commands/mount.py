"""`workspacefs mount`: from a store to a directory that one can work in."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from shlex import quote
from typing import Final

from workspacefs import __version__
from workspacefs.cli.context import Context, Output, short_id
from workspacefs.cli.parser import add_store_flags
from workspacefs.cli.store_urls import absolute_url, is_s3
from workspacefs.client.mountinfo import find_mount
from workspacefs.client.registry import living_sessions
from workspacefs.client.supervisor import daemon_command, ensure_supervisor
from workspacefs.config import (
    CACHE_SIZE_VARIABLE,
    daemon_environment,
    parse_cache_size,
    store_environment,
)
from workspacefs.errors import UnavailableError, UsageError, WorkspaceError
from workspacefs.statedir import ensure_state_dir

EXAMPLE = """\
  mkdir -p /tmp/w
  workspacefs mount ./store /tmp/w --session fix-login
  workspacefs mount ./store /tmp/old --at main~3 --read-only --mkdir"""

MOUNT_TIMEOUT_S: Final = 300.0
"""A session that replays much uncommitted work after a crash may take this long."""
_TRIES_MAX: Final = 3
_REASON_MAX_BYTES: Final = 4096


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
    mountpoint = os.path.realpath(options.mountpoint)
    spec: dict[str, object] = {
        "store_url": absolute_url(options.url, context.environ, options),
        "mountpoint": mountpoint,
        "state_dir": context.state.root,
        "session_name": options.session,
        "branch": options.branch,
        "at_rev": options.at,
        "read_only": options.read_only,
        "allow_other": options.allow_other,
        "foreground": options.foreground,
        "metrics": _metrics_place(options.metrics),
        "prefetch": options.prefetch,
        "early_upload": options.early_upload,
        "store_timeout_s": options.store_timeout,
        "cache_limit_bytes": parse_cache_size(
            options.cache_size or context.environ.get(CACHE_SIZE_VARIABLE)
        ),
    }
    made = options.mkdir and _make_directory(mountpoint)
    said_before = _size_of(context.state.crash_file)
    try:
        if options.foreground:
            _become_session(spec, context)
        result = _mount(spec, context)
    except WorkspaceError as exc:
        if made:
            with suppress(OSError):
                os.rmdir(mountpoint)
        if exc.kind == "mount.refused":
            raise with_reason(exc, context.state.crash_file, said_before) from exc
        raise
    _check_visible(mountpoint)
    shown_rev = options.at or (options.branch if options.read_only else None)
    _tell(result, context.out, at_rev=shown_rev)
    if options.session is None and not options.read_only:
        _tell_of_first(result, context)
    return result


def _metrics_place(place: str | None) -> str | None:
    return os.path.abspath(place) if place is not None and "/" in place else place


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def with_reason(exc: WorkspaceError, crash_file: str, since: int) -> WorkspaceError:
    """Return the error with what fusermount3 wrote: it alone knows why, and only in words."""
    try:
        with open(crash_file, "rb") as file:
            file.seek(since)
            said = file.read(_REASON_MAX_BYTES).decode(errors="replace")
    except OSError:
        return exc
    lines = [line for line in said.splitlines() if line.startswith("fuse")]
    if not lines:
        return exc
    return UnavailableError(f"{lines[-1]} ({exc})", kind=exc.kind, **exc.context)


def _make_directory(path: str) -> bool:
    try:
        os.makedirs(path)
    except FileExistsError:
        return False
    except OSError as exc:
        raise UsageError(
            f"the mountpoint {path} cannot be created: {exc.strerror}", kind="mountpoint.unusable"
        ) from exc
    return True


def _become_session(spec: Mapping[str, object], context: Context) -> None:
    ensure_state_dir(context.state)
    words = ["session", "--spec", json.dumps(spec), *(["--json"] if context.out.as_json else [])]
    command = daemon_command(*words)
    os.execve(command[0], command, dict(context.environ))


def _mount(spec: Mapping[str, object], context: Context) -> dict[str, object]:
    # Over a socket that only we may read, not as an argument: it holds keys.
    args = {
        "spec": {**spec, "store_environ": store_environment(context.environ)},
        "version": __version__,
        "mount_namespace": os.stat("/proc/self/ns/mnt").st_ino,
    }
    for _ in range(_TRIES_MAX):
        environ = daemon_environment(context.environ)
        is_far = is_s3(str(spec["store_url"]))
        with ensure_supervisor(context.state, environ, is_far=is_far) as supervisor:
            try:
                return supervisor.call("mount", args, timeout_s=MOUNT_TIMEOUT_S)
            except UnavailableError as exc:
                # One that stepped back because the code changed, or was just ending: get the next.
                if exc.kind != "supervisor.outdated":
                    raise
                last = exc
    raise last


def _check_visible(mountpoint: str) -> None:
    if find_mount(mountpoint) is None:
        raise UnavailableError(
            f"the mount was made, but {mountpoint} does not show it here",
            kind="mount.not_visible",
            mountpoint=mountpoint,
        )


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
