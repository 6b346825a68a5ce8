"""Commits, newest first."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

from workspacefs.objects.commits import Commit
from workspacefs.objects.refs import Ref


class CommitSource(Protocol):
    """Gives commits by reference."""

    def load_commit(self, ref: Ref) -> Commit:
        """Return one commit."""
        ...


@runtime_checkable
class RememberingSource(CommitSource, Protocol):
    """Knows which commits it need not fetch."""

    def peek_commit(self, ref: Ref) -> Commit | None:
        """Return a commit that is in memory, or None."""
        ...


def iter_history(
    heads: Iterable[tuple[Ref, Commit]], source: CommitSource, *, first_parent: bool = False
) -> Iterator[tuple[Ref, Commit]]:
    """Yield the heads and all that they descend from, each once.

    The order is that of the commits' times, newest first, but never a parent before the child that
    led to it. Commits are loaded as the iteration reaches them.

    Args:
        first_parent: Follow first parents only: what the branch itself went through.
    """
    seen: set[bytes] = set()
    queue: list[tuple[int, int, Ref, Commit]] = []

    def push(ref: Ref, commit: Commit) -> None:
        heapq.heappush(queue, (-commit.time_ns, len(seen), ref, commit))

    for ref, commit in heads:
        if ref.id not in seen:
            seen.add(ref.id)
            push(ref, commit)
    while queue:
        _, _, ref, commit = heapq.heappop(queue)
        yield ref, commit
        for parent in commit.parents[:1] if first_parent else commit.parents:
            if parent.id not in seen:
                seen.add(parent.id)
                push(parent, source.load_commit(parent))
