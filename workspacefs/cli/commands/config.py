"""`workspacefs config`: what is settled for a workspace, and may be changed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from workspacefs.cli.context import Context
from workspacefs.cli.parser import add_store_flags
from workspacefs.cli.provenance import own_name
from workspacefs.cli.revision import open_place
from workspacefs.workspace.settings import (
    change_settings,
    keys_text,
    load_settings,
    parse_require,
)

EXAMPLE = """\
  workspacefs config ./store
  workspacefs config ./store --require agent,run,ticket   # from now on, of every commit
  workspacefs config ./store --require ''                 # nothing any more"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("where", metavar="URL|PATH", nargs="?", help="default: here")
    parser.add_argument(
        "--require",
        metavar="KEYS",
        help="what every commit must say from now on, with commas: agent, run, tool_call, model, "
        "or keys of --meta",
    )
    add_store_flags(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Change what is to be changed, and tell what is settled."""
    workspace = open_place(options.where, None, options, context).workspace
    settings, version = load_settings(workspace)
    if options.require is not None:
        wanted = settings._replace(require=parse_require(options.require))
        if wanted != settings:
            change_settings(workspace, wanted, version, changed_by=own_name())
        settings = wanted
    context.out.line(f"every commit must say: {keys_text(settings.require)}")
    return {"url": workspace.url, "require": list(settings.require)}
