"""`workspacefs stats`: what a mount and its transfer process did so far."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from workspacefs.cli.commands.status import tell_store
from workspacefs.cli.context import Context, session_text, size_text
from workspacefs.client.locate import session_of

EXAMPLE = """\
  workspacefs stats               # of the mount we are in
  workspacefs stats /tmp/w --json"""

_BUSIEST_MAX = 8


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "path", metavar="PATH", nargs="?", help="a mountpoint, or anything inside (default: here)"
    )


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Ask the session and show its answer."""
    address = session_of(options.path or ".", context.state)
    with address.connect() as connection:
        answer = connection.call("stats")
    for line in _lines(answer):
        context.out.line(line)
    tell_store(_map(answer.get("transfer")).get("store"), context.out)
    return answer


def _lines(answer: Mapping[str, object]) -> Iterator[str]:
    fuse = _map(answer.get("fuse"))
    messages = _map(fuse.get("messages"))
    yield f"{session_text(answer['session'], answer['branch'])}, up {answer['uptime_s']:,.0f} s"
    busiest = sorted(messages.items(), key=lambda pair: -pair[1])[:_BUSIEST_MAX]
    told = ", ".join(f"{op} {count:,}" for op, count in busiest)
    yield f"requests of the kernel  {sum(messages.values()):,} ({told})"
    yield f"inodes                  {fuse.get('inodes', 0):,}"
    yield f"waits for data          {_latency(_map(fuse.get('load_waits')))}"
    reads, transfer = _map(answer.get("reads")), _map(answer.get("transfer"))
    if reads:
        yield (
            f"ranges read             {reads['near']:,} from the cache, {reads['far']:,} fetched "
            f"or waited for ({size_text(int(reads['far_bytes']))})"
        )
    if "requests" in transfer:
        yield from _transfer_lines(transfer)
    elif "error" in transfer:
        yield f"transfer process        {transfer['error']}"


def _transfer_lines(transfer: Mapping[str, object]) -> Iterator[str]:
    yield "all mounts of this store together:"
    for operation, counts in _map(_map(transfer.get("requests")).get("operations")).items():
        if counts["requests"]:
            yield (
                f"  {operation:<10} {counts['requests']:,} requests, {counts['errors']:,} errors, "
                f"{counts['retries']:,} retries; {size_text(counts['bytes_in'])} in, "
                f"{size_text(counts['bytes_out'])} out; {_latency(counts['latency'])}"
            )
    fetches, queue = _map(transfer.get("fetches")), _map(transfer.get("queue"))
    yield (
        f"  fetched    {size_text(fetches['demand_bytes'])} on demand, "
        f"{size_text(fetches['ahead_bytes'])} ahead, in {fetches['ranges']:,} ranges"
    )
    yield (
        f"  queue      {queue['queued']:,} waiting, {queue['under_way']:,} under way, "
        f"{queue['waiting']:,} programs' reads wait"
    )


def _latency(found: Mapping[str, Any]) -> str:
    count = sum(found["buckets"]) if isinstance(found.get("buckets"), list) else 0
    if not count:
        return "none"
    parts = [
        f"{name} {value * 1000:,.1f} ms"
        for name in ("p50", "p90", "p99")
        if isinstance(value := found.get(f"{name}_s"), int | float)
    ]
    return f"{count:,}: " + ", ".join(parts)


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
