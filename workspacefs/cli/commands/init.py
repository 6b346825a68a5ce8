"""`workspacefs init`: a new, empty workspace."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from workspacefs.cli.context import Context
from workspacefs.cli.parser import add_store_flags
from workspacefs.cli.store_urls import absolute_url
from workspacefs.workspace.workspace import DEFAULT_BRANCH, Workspace

EXAMPLE = """\
  workspacefs init ./store
  workspacefs init s3://bucket/shop --region eu-central-1"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "url", metavar="URL", help="where to: ./dir, file:///dir or s3://bucket/prefix"
    )
    add_store_flags(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Make the workspace."""
    workspace = Workspace.create(absolute_url(options.url, context.environ, options))
    context.out.line(f"made workspace {workspace.id} at {workspace.url}")
    context.out.note(f"next: workspacefs import {options.url} DIR -m WHY")
    return {"workspace": workspace.id, "url": workspace.url, "branch": DEFAULT_BRANCH}
