"""Where two histories parted: their best common ancestors, without reading all of history.

A common ancestor is best if no other one descends from it. There may be several: after two branches
were merged into each other, or none at all.
"""

from __future__ import annotations

import heapq
from functools import partial
from typing import Final

from workspacefs.backend.contract import Backend
from workspacefs.backend.rounds import in_one_round
from workspacefs.objects.commits import Commit
from workspacefs.objects.refs import Ref
from workspacefs.workspace.ancestry import is_ancestor
from workspacefs.workspace.history import CommitSource, RememberingSource

_OURS: Final = 1
_THEIRS: Final = 2
_COMMON: Final = _OURS | _THEIRS
_BENEATH: Final = 4
"""Of an ancestor of a common one."""


def find_merge_bases(
    ours: tuple[Ref, Commit],
    theirs: tuple[Ref, Commit],
    source: CommitSource,
    backend: Backend,
) -> list[tuple[Ref, Commit]]:
    """Return the best common ancestors of two commits in order of their ids; one of the two, if the
    other descends from it.

    Both histories are followed back, newest first by the time of the child that leads there, until
    all that is left to follow are ancestors of what was found. So the cost is what was committed
    since they parted. Times of commits decide only the order, never the answer.
    """
    search = _Search(source, backend)
    search.mark(*ours, _OURS)
    search.mark(*theirs, _THEIRS)
    found = search.run()
    best = [
        one
        for one in found
        if not any(
            one[0] != other[0] and is_ancestor(one, other, source, backend) for other in found
        )
    ]
    return sorted(best, key=lambda one: one[0].id)


class _Search:
    def __init__(self, source: CommitSource, backend: Backend) -> None:
        self._source = source
        self._backend = backend
        self._marks: dict[bytes, int] = {}
        self._loaded: dict[bytes, tuple[Ref, Commit]] = {}
        self._queue: list[tuple[int, int, Ref]] = []
        """Commits whose marks their parents have not got yet."""
        self._count = 0

    def mark(self, ref: Ref, commit: Commit, mark: int) -> None:
        """Begin from a commit."""
        self._loaded[ref.id] = ref, commit
        self._add(ref, mark, commit.time_ns)

    def run(self) -> list[tuple[Ref, Commit]]:
        """Return the common ancestors that are beneath none that was found on the way."""
        while any(not self._marks[ref.id] & _BENEATH for _, _, ref in self._queue):
            first = heapq.heappop(self._queue)[2]
            second = heapq.heappop(self._queue)[2] if self._queue else first
            if not self._has(first) and not self._has(second) and first is not second:
                in_one_round(self._backend, partial(self._load, second), partial(self._load, first))
            self._load(first)
            self._load(second)
            self._follow(first)
            self._follow(second)
        return [
            self._loaded[commit_id] for commit_id, marks in self._marks.items() if marks == _COMMON
        ]

    def _has(self, ref: Ref) -> bool:
        if ref.id in self._loaded:
            return True
        source = self._source
        known = source.peek_commit(ref) if isinstance(source, RememberingSource) else None
        if known is not None:
            self._loaded[ref.id] = ref, known
        return known is not None

    def _load(self, ref: Ref) -> None:
        if ref.id not in self._loaded:
            self._loaded[ref.id] = ref, self._source.load_commit(ref)

    def _follow(self, ref: Ref) -> None:
        commit, marks = self._loaded[ref.id][1], self._marks[ref.id]
        if marks & _COMMON == _COMMON:
            marks |= _BENEATH  # that is what its parents are
        for parent in commit.parents:
            self._add(parent, marks, commit.time_ns)

    def _add(self, ref: Ref, marks: int, time_ns: int) -> None:
        known = self._marks.get(ref.id, 0)
        if known | marks != known:
            self._marks[ref.id] = known | marks
            self._count += 1
            heapq.heappush(self._queue, (-time_ns, self._count, ref))
