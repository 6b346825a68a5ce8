"""`workspacefs log`: who made which commits, when and why."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from itertools import islice, takewhile

from workspacefs.cli.change_text import add_change_flags, changes_of, iter_change_lines
from workspacefs.cli.commit_text import commit_document, iter_commit_lines
from workspacefs.cli.context import Context, text_of
from workspacefs.cli.moments import since_ns, until_ns
from workspacefs.cli.mount_paths import path_in_history
from workspacefs.cli.parser import add_store_flags
from workspacefs.cli.revision import Place, is_store, open_place
from workspacefs.tracing.selection import Selection
from workspacefs.tracing.touching import Touch, iter_touches

EXAMPLE = """\
  workspacefs log                  # of the session we are in
  workspacefs log ./store main --stat -n 5
  workspacefs log --path src/parser.py --since 3d --agent coder-1"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("where", metavar="URL|PATH", nargs="?", help="default: here")
    parser.add_argument("rev", metavar="REV", nargs="?", help="where to begin (default: newest)")
    parser.add_argument(
        "-n", "--limit", metavar="N", type=int, help="at most this many of those that are shown"
    )
    parser.add_argument(
        "--first-parent", action="store_true", help="only what the branch itself went through"
    )
    _add_filters(parser)
    add_change_flags(parser)
    add_store_flags(parser)


def _add_filters(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which commits", "all that is given must be true of one")
    for flag, what in (
        ("agent", "of this agent"),
        ("session", "made in this session"),
        ("run", "made in this run"),
        ("tool-call", "made by this call of a tool"),
        ("author", "of this account: user@host, or user"),
    ):
        group.add_argument(f"--{flag}", metavar="NAME", help=what)
    group.add_argument(
        "--path",
        metavar="PATH",
        action="append",
        default=[],
        help="that changed something at or below this path, or under a name that it had before; "
        "may be given again: any of them",
    )
    group.add_argument(
        "--since", metavar="TIME", type=since_ns, help="not before: 2h, 3d, or ISO 8601 (UTC)"
    )
    group.add_argument("--until", metavar="TIME", type=until_ns, help="not after")
    group.add_argument(
        "--grep", metavar="TEXT", help="with this in the message, in capitals or not"
    )


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """List commits, newest first, each as soon as it is found."""
    place = open_place(options.where, options.rev, options, context)
    documents = []
    touches = islice(_iter_chosen(place, options, context), options.limit)
    for number, touch in enumerate(touches):
        ref, commit, paths = touch
        changes = changes_of(commit, place.workspace, options)
        if context.out.as_json:
            touched = {"paths": [text_of(path) for path in paths]} if options.path else {}
            documents.append({**commit_document(ref, commit), **touched, **changes})
            continue
        if number:
            context.out.line()
        for line in iter_commit_lines(ref, commit):
            context.out.line(line)
        for line in iter_change_lines(changes):
            context.out.line(line)
        context.out.flush()
    if place.is_empty():
        context.out.line(f"{place.rev} has no commits yet")
    return {"url": place.workspace.url, "rev": place.rev, "commits": documents}


def _iter_chosen(place: Place, options: argparse.Namespace, context: Context) -> Iterator[Touch]:
    if place.is_empty():
        return
    selection = Selection(
        agent=options.agent,
        session=options.session,
        run=options.run,
        tool_call=options.tool_call,
        author=options.author,
        since_ns=options.since,
        until_ns=options.until,
        text=options.grep,
    )
    is_here = options.where is None or not is_store(options.where)
    paths = [path_in_history(path, context, is_here=is_here) for path in options.path]
    found = iter_touches(
        [place.load()], paths, place.workspace.store, first_parent=options.first_parent
    )
    for touch in takewhile(lambda touch: not selection.is_past(touch.commit), found):
        if selection.has(touch.commit) and (touch.paths or not paths):
            yield touch
