"""Whether one commit builds on another, without reading all of history."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Set
from functools import partial

from workspacefs.backend.contract import Backend
from workspacefs.backend.rounds import in_one_round
from workspacefs.objects.commits import Commit
from workspacefs.objects.refs import Ref
from workspacefs.workspace.history import CommitSource


def is_ancestor(
    older: tuple[Ref, Commit],
    newer: tuple[Ref, Commit],
    source: CommitSource,
    backend: Backend,
) -> bool:
    """Tell whether `newer` is `older` or descends from it. See is_ancestor_of_any."""
    return is_ancestor_of_any(older, [newer], source, backend)


def is_ancestor_of_any(
    older: tuple[Ref, Commit],
    newer: Iterable[tuple[Ref, Commit]],
    source: CommitSource,
    backend: Backend,
) -> bool:
    """Tell whether one of `newer` is `older` or descends from it.

    Both histories are followed back, a commit of each in one round trip, newest first: where the
    one of `newer` meets that of `older` it need not be followed, since no commit descends from its
    own descendant. So the cost is what was committed since the two had a commit in common. Times
    of commits decide only the order, never the answer.
    """
    wanted = older[0].id
    loaded: dict[bytes, Commit] = {}
    above, below = _Frontier(newer, loaded), _Frontier([older], loaded)
    while wanted not in above.seen:
        left, right = above.pop(unless=below.seen), below.pop(unless=frozenset())
        if left is None:
            return False  # all that is left to follow are ancestors of `older`
        if right is None:
            above.add(left, source.load_commit(left))
            continue
        found, own = in_one_round(
            backend, partial(source.load_commit, right), partial(source.load_commit, left)
        )
        above.add(left, own)
        below.add(right, found)
    return True


class _Frontier:
    """Commits that are known by reference, and not loaded yet."""

    def __init__(self, heads: Iterable[tuple[Ref, Commit]], loaded: dict[bytes, Commit]) -> None:
        self.seen: set[bytes] = set()
        self._loaded = loaded
        self._queue: list[tuple[int, int, Ref]] = []
        for ref, commit in heads:
            self.seen.add(ref.id)
            self.add(ref, commit)

    def add(self, ref: Ref, commit: Commit) -> None:
        """Note a commit, its parents, and what is above those that were loaded already."""
        self._loaded[ref.id] = commit
        stack = [commit]
        while stack:
            child = stack.pop()
            for parent in child.parents:
                if parent.id in self.seen:
                    continue
                self.seen.add(parent.id)
                known = self._loaded.get(parent.id)
                if known is not None:
                    stack.append(known)
                else:
                    heapq.heappush(self._queue, (-child.time_ns, len(self.seen), parent))

    def pop(self, *, unless: Set[bytes]) -> Ref | None:
        """Return the next commit to load, passing over those in `unless`; None: there is none."""
        while self._queue:
            ref = heapq.heappop(self._queue)[2]
            if ref.id not in unless:
                return ref
        return None
