"""Commits as a person and as a program read them."""

from __future__ import annotations

import time
from collections.abc import Iterator

from workspacefs.cli.context import short_id
from workspacefs.objects.commits import Commit
from workspacefs.objects.refs import Ref
from workspacefs.workspace.writers import START_KEY, start_ns_of


def commit_document(ref: Ref, commit: Commit) -> dict[str, object]:
    """Return what --json says of a commit."""
    who, changes = commit.provenance, commit.changes
    totals, start_ns = commit.root.subtree.totals, start_ns_of(commit)
    return {
        "commit": ref.id.hex(),
        "parents": [parent.id.hex() for parent in commit.parents],
        "message": commit.message,
        "time": time_text(commit.time_ns),
        "time_ns": commit.time_ns,
        "start": None if start_ns is None else time_text(start_ns),
        "start_ns": start_ns,
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
        "meta": dict(_meta(commit)),
        "signed_by": None if commit.signature is None else commit.signature.public_key.hex(),
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
    start_ns = start_ns_of(commit)
    if start_ns is not None:
        yield f"began    {time_text(start_ns)}"
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
    for key, value in _meta(commit):
        yield f"meta     {key}={value}"
    yield (
        f"changes  {changes.added:,} added, {changes.modified:,} modified, "
        f"{changes.removed:,} removed"
    )
    yield ""
    for line in commit.message.splitlines() or ["(no message)"]:
        yield f"    {line}"


def _meta(commit: Commit) -> Iterator[tuple[str, str]]:
    """Yield what people have said, without what has a member of its own."""
    return ((key, value) for key, value in commit.meta if key != START_KEY)


def time_text(time_ns: int) -> str:
    """Return a time as ISO 8601 in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_ns // 1_000_000_000))
