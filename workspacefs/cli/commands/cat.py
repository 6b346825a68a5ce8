"""`workspacefs cat`: a file of a revision, straight from the store."""

from __future__ import annotations

import argparse
import base64
import os
from collections.abc import Mapping

from workspacefs.cli.context import Context
from workspacefs.cli.parser import add_store_flags
from workspacefs.cli.revision import open_place
from workspacefs.workspace.listing import stream_file

EXAMPLE = """\
  workspacefs cat ./store README.md
  workspacefs cat ./store@main~1 README.md"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("where", metavar="URL[@REV]", help="store, or a path inside a mount")
    parser.add_argument("path", metavar="PATH", help="from the root of the workspace")
    add_store_flags(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Print it; under --json as text, or as base64 when it is none."""
    place = open_place(options.where, None, options, context)
    ref, commit = place.load()
    pieces = stream_file(commit.root, os.fsencode(options.path), place.workspace.store)
    if not context.out.as_json:
        for piece in pieces:
            context.out.write(piece)
        return {}
    content = b"".join(pieces)
    try:
        encoding, text = "utf-8", content.decode("utf-8")
    except UnicodeDecodeError:
        encoding, text = "base64", base64.b64encode(content).decode("ascii")
    return {
        "url": place.workspace.url,
        "commit": ref.id.hex(),
        "path": options.path,
        "size": len(content),
        "encoding": encoding,
        "content": text,
    }
