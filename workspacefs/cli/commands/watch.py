"""`workspacefs watch`: what happens to branches, tags and sessions, told as it happens."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Final

from workspacefs.backend.contract import STORE_CREDENTIALS, STORE_DENIED
from workspacefs.cli.context import Context
from workspacefs.cli.event_text import event_document, event_line
from workspacefs.cli.main import EXIT_MEMBER
from workspacefs.cli.pace import Pace
from workspacefs.cli.parser import add_store_flags
from workspacefs.cli.revision import open_place
from workspacefs.errors import UnavailableError
from workspacefs.workspace.feed import Feed
from workspacefs.workspace.feed_position import Position, decode_position
from workspacefs.workspace.workspace import Workspace

EXAMPLE = """\
  workspacefs watch                          # of the workspace that one is in, until Ctrl-C
  workspacefs watch s3://bucket/shop --json --ref main --ref 'agent-*'
  workspacefs watch ./store --json --once --from "$POSITION"    # what happened since"""

_START: Final = "start"
_INTERRUPTED: Final = 130
_SHOWN_POSITION_MAX: Final = 2000
_MIN_INTERVAL_S: Final = 0.05


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("where", metavar="URL|PATH", nargs="?", help="default: here")
    parser.add_argument(
        "--from",
        dest="position",
        metavar="POSITION",
        help="go on behind an event that was told earlier, with all that happened since; start: "
        "with all that ever happened (default: with what happens from now on)",
    )
    parser.add_argument(
        "--ref",
        metavar="NAME",
        action="append",
        default=[],
        help="only branches, tags and sessions of this name, in which * and ? stand for any "
        "characters; may be given again (default: all)",
    )
    parser.add_argument(
        "--once", action="store_true", help="tell what has happened, and end; goes with --from"
    )
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=_interval_s,
        help="look this often (default: every 0.5 s while things happen, else down to every 5 s)",
    )
    add_store_flags(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Tell events until Ctrl-C, or with --once until there are no more."""
    workspace = open_place(options.where, None, options, context).workspace
    feed = Feed(workspace, _position_of(options, workspace), names=options.ref)
    code = 0
    try:
        _follow(feed, options, context)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    text = feed.position.encode()
    if len(text) <= _SHOWN_POSITION_MAX:
        context.out.note(f"to go on from here: --from {text}")
    return {EXIT_MEMBER: code}


def _position_of(options: argparse.Namespace, workspace: Workspace) -> Position | None:
    if options.position is None:
        return None
    if options.position == _START:
        return Position(workspace.id, tuple(sorted(set(options.ref))))
    return decode_position(options.position, workspace_id=workspace.id, names=options.ref)


def _follow(feed: Feed, options: argparse.Namespace, context: Context) -> None:
    out, pace = context.out, Pace(options.interval)
    _tell(feed, context)
    if options.position is None:
        # What an empty answer could not say: where to go on.
        out.row({"event": "position", "position": feed.position.encode()})
    out.flush()
    is_away = False
    while not options.once:
        is_quiet = True
        try:
            is_quiet = not _tell(feed, context)
            is_away = False
        except UnavailableError as exc:
            if exc.kind in (STORE_DENIED, STORE_CREDENTIALS):
                raise
            if not is_away:
                out.note(f"{exc}; going on when the store answers, nothing will be missing")
            is_away = True
        time.sleep(pace.next_wait_s(is_quiet=is_quiet))


def _tell(feed: Feed, context: Context) -> int:
    """Tell what has happened; return how many events that were."""
    told = 0
    for event in feed.poll():
        told += 1
        if context.out.as_json:
            context.out.row(event_document(event, feed.position.encode()))
        else:
            context.out.line(event_line(event))
    context.out.flush()
    return told


def _interval_s(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _MIN_INTERVAL_S <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds, at least 0.05")
    return seconds
