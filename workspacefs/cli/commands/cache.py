"""`workspacefs cache`: what far stores take on this machine, and making room."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from workspacefs.cache.directory import clear, default_limit_bytes, usage
from workspacefs.cli.context import Context, count_text, size_text
from workspacefs.cli.parser import add_store_flags
from workspacefs.cli.store_urls import absolute_url
from workspacefs.config import CACHE_SIZE_VARIABLE, parse_cache_size

EXAMPLE = """\
  workspacefs cache stats
  workspacefs cache clear                      # safe at any time, also under mounts
  workspacefs cache clear s3://bucket/prefix   # of one store"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("action", choices=("stats", "clear"))
    parser.add_argument("url", metavar="URL", nargs="?", help="only what comes from this store")
    add_store_flags(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Look, or clear."""
    root = Path(context.state.cache_dir)
    url = None
    if options.url is not None:
        url = absolute_url(options.url, context.environ, options)
    if options.action == "clear":
        freed_bytes = clear(root, url=url)
        context.out.line(f"freed {size_text(freed_bytes)}; it is fetched again when it is needed")
        return {"directory": str(root), "freed_bytes": freed_bytes}
    limit_bytes = parse_cache_size(context.environ.get(CACHE_SIZE_VARIABLE))
    limit_bytes = limit_bytes or default_limit_bytes(root)
    uses = [use for use in usage(root) if url is None or use.url == url]
    total_bytes = sum(use.size_bytes for use in uses)
    for use in uses:
        context.out.line(
            f"{use.url}\n  {size_text(use.size_bytes)} in {count_text(use.values, 'pack')}"
        )
    context.out.line(
        f"{size_text(total_bytes)} in {root}; new mounts keep it below {size_text(limit_bytes)} "
        "unless --cache-size says"
    )
    return {
        "directory": str(root),
        "size_bytes": total_bytes,
        "limit_bytes": limit_bytes,
        "stores": [
            {"url": use.url, "packs": use.values, "size_bytes": use.size_bytes} for use in uses
        ],
    }
