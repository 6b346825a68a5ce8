"""`workspacefs init`: a new, empty workspace."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from workspacefs.cli.context import Context
from workspacefs.cli.parser import add_store_flags
from workspacefs.cli.provenance import own_name
from workspacefs.cli.store_urls import absolute_url
from workspacefs.workspace.settings import Settings, change_settings, parse_require
from workspacefs.workspace.workspace import DEFAULT_BRANCH, Workspace

EXAMPLE = """\
  workspacefs init ./store
  workspacefs init s3://bucket/shop --region eu-central-1"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "url", metavar="URL", help="where to: ./dir, file:///dir or s3://bucket/prefix"
    )
    parser.add_argument(
        "--require",
        metavar="KEYS",
        default="",
        help="what every commit must say, with commas: agent, run, tool_call, model, or keys of "
        "--meta; workspacefs config changes it",
    )
    add_store_flags(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Make the workspace."""
    require = parse_require(options.require)
    workspace = Workspace.create(absolute_url(options.url, context.environ, options))
    if require:
        change_settings(workspace, Settings(require), None, changed_by=own_name())
    context.out.line(f"made workspace {workspace.id} at {workspace.url}")
    context.out.note(f"next: workspacefs import {options.url} DIR -m WHY")
    return {
        "workspace": workspace.id,
        "url": workspace.url,
        "branch": DEFAULT_BRANCH,
        "require": list(require),
    }
