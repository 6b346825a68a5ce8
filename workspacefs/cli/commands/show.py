"""`workspacefs show`: one commit, and what it changed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from workspacefs.cli.change_text import add_change_flags, changes_of, iter_change_lines
from workspacefs.cli.commit_text import commit_document, iter_commit_lines
from workspacefs.cli.context import Context
from workspacefs.cli.parser import add_store_flags
from workspacefs.cli.revision import open_place

EXAMPLE = """\
  workspacefs show                 # newest commit of the session we are in
  workspacefs show ./store main~1 --patch"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("where", metavar="URL|PATH", nargs="?", help="default: here")
    parser.add_argument("rev", metavar="REV", nargs="?", help="which one (default: newest)")
    add_change_flags(parser)
    add_store_flags(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Show the commit."""
    place = open_place(options.where, options.rev, options, context)
    ref, commit = place.load()
    changes = changes_of(commit, place.workspace, options, with_names=True)
    for line in iter_commit_lines(ref, commit):
        context.out.line(line)
    for line in iter_change_lines(changes):
        context.out.line(line)
    return {"url": place.workspace.url, **commit_document(ref, commit), **changes}
