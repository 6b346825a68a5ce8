"""Commits as a person and as a program read them."""

from __future__ import annotations

import time
from collections.abc import Iterator

from workspacefs.cli.context import short_id
from workspacefs.objects.commits import Commit
from workspacefs.objects.refs import Ref


def commit_document(ref: Ref, commit: Commit) -> dict[str, object]:
    """Return what --json says of a commit."""
    who, changes = commit.provenance, commit.changes
    totals = commit.root.subtree.totals
    return {
        "commit": ref.id.hex(),
        "parents": [parent.id.hex() for parent in commit.parents],
        "message": commit.message,
        "time": time_text(commit.time_ns),
        "time_ns": commit.time_ns,
        "author": who.author,
        "agent": who.agent,
        "session": who.session,
        "run": who.run,
        "tool_call": who.tool_call,
        "model": who.model,
        "host": who.host,
        "changes": {
            "added": changes.added,
            "modified": changes.modified,
            "removed": changes.removed,
        },
        "meta": dict(commit.meta),
        "files": totals.files,
        "size_bytes": totals.size_bytes,
    }


def iter_commit_lines(ref: Ref, commit: Commit) -> Iterator[str]:
    """Yield the lines that tell of a commit: who, when, why, how much."""
    who, changes = commit.provenance, commit.changes
    yield f"commit {ref.id.hex()}"
    if len(commit.parents) > 1:
        yield "parents  " + " ".join(short_id(parent.id.hex()) for parent in commit.parents)
    yield f"date     {time_text(commit.time_ns)}"
    for title, value in (
        ("author", who.author),
        ("agent", who.agent),
        ("model", who.model),
        ("session", who.session),
        ("run", who.run),
        ("call", who.tool_call),
    ):
        if value:
            yield f"{title:<9}{value}"
    for key, value in commit.meta:
        yield f"meta     {key}={value}"
    yield (
        f"changes  {changes.added:,} added, {changes.modified:,} modified, "
        f"{changes.removed:,} removed"
    )
    yield ""
    for line in commit.message.splitlines() or ["(no message)"]:
        yield f"    {line}"


def time_text(time_ns: int) -> str:
    """Return a time as ISO 8601 in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_ns // 1_000_000_000))
