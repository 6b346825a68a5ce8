"""`workspacefs log`: who made which commits, when and why."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from itertools import islice

from workspacefs.cli.change_text import add_change_flags, changes_of, iter_change_lines
from workspacefs.cli.commit_text import commit_document, iter_commit_lines
from workspacefs.cli.context import Context
from workspacefs.cli.parser import add_store_flags
from workspacefs.cli.revision import Place, open_place
from workspacefs.objects.commits import Commit
from workspacefs.objects.refs import Ref
from workspacefs.workspace.history import iter_history

EXAMPLE = """\
  workspacefs log                  # of the session we are in
  workspacefs log ./store main --stat -n 5"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("where", metavar="URL|PATH", nargs="?", help="default: here")
    parser.add_argument("rev", metavar="REV", nargs="?", help="where to begin (default: newest)")
    parser.add_argument("-n", "--limit", metavar="N", type=int, help="at most this many")
    parser.add_argument(
        "--first-parent", action="store_true", help="only what the branch itself went through"
    )
    add_change_flags(parser)
    add_store_flags(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """List commits, newest first."""
    place = open_place(options.where, options.rev, options, context)
    documents = []
    for number, (ref, commit) in enumerate(_iter_commits(place, options)):
        changes = changes_of(commit, place.workspace, options)
        if context.out.as_json:
            documents.append({**commit_document(ref, commit), **changes})
            continue
        if number:
            context.out.line()
        for line in iter_commit_lines(ref, commit):
            context.out.line(line)
        for line in iter_change_lines(changes):
            context.out.line(line)
    if place.is_empty():
        context.out.line(f"{place.rev} has no commits yet")
    return {"url": place.workspace.url, "rev": place.rev, "commits": documents}


def _iter_commits(place: Place, options: argparse.Namespace) -> Iterator[tuple[Ref, Commit]]:
    if place.is_empty():
        return iter(())
    return islice(
        iter_history([place.load()], place.workspace.store, first_parent=options.first_parent),
        options.limit,
    )
