"""Whether a commit builds on another: right for any history, cheap when they parted lately."""

from __future__ import annotations

import random
import stat

import pytest

from tests.unit.recording_backend import RecordingBackend
from workspacefs.ids import ROOT_FILE_ID
from workspacefs.objects.commits import Commit
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.objects.refs import Ref
from workspacefs.workspace.ancestry import is_ancestor
from workspacefs.workspace.merge_bases import find_merge_bases

ROOT = Entry(b"", stat.S_IFDIR | 0o755, 0, 0, 0, 1, 2, ROOT_FILE_ID, 2, Subtree())
BACKEND = RecordingBackend(is_local=True)


class History:
    """Commits by number."""

    def __init__(self) -> None:
        self.commits: list[Commit] = []
        self.ancestors: list[set[int]] = []
        self.loads = 0

    def add(self, *parents: int, time_ns: int) -> int:
        """Add a commit; return its number."""
        refs = tuple(self.ref(parent) for parent in parents)
        self.commits.append(Commit(root=ROOT, parents=refs, message="", time_ns=time_ns))
        number = len(self.commits) - 1
        self.ancestors.append({number}.union(*(self.ancestors[one] for one in parents)))
        return number

    def ref(self, number: int) -> Ref:
        return Ref(number.to_bytes(32, "big"))

    def head(self, number: int) -> tuple[Ref, Commit]:
        return self.ref(number), self.commits[number]

    def load_commit(self, ref: Ref) -> Commit:
        self.loads += 1
        return self.commits[int.from_bytes(ref.id, "big")]

    def asks(self, older: int, newer: int) -> bool:
        self.loads = 0
        return is_ancestor(self.head(older), self.head(newer), self, BACKEND)

    def bases(self, ours: int, theirs: int) -> list[int]:
        self.loads = 0
        found = find_merge_bases(self.head(ours), self.head(theirs), self, BACKEND)
        return [int.from_bytes(ref.id, "big") for ref, _ in found]

    def best_common(self, ours: int, theirs: int) -> list[int]:
        """Return the best common ancestors by their definition."""
        common = self.ancestors[ours] & self.ancestors[theirs]
        return sorted(
            one
            for one in common
            if not any(one != other and one in self.ancestors[other] for other in common)
        )


@pytest.mark.parametrize("seed", range(10))
def test_merge_bases_of_any_history_with_any_clocks(seed: int) -> None:
    """All best common ancestors and no others, from either side."""
    rng = random.Random(seed)
    history = History()
    several = 0
    for number in range(40):
        parents = rng.sample(
            range(max(0, number - 6), number), min(number, rng.choice([0, 1, 2, 2, 2]))
        )
        history.add(*parents, time_ns=rng.randrange(100))

    for ours in range(40):
        for theirs in range(40):
            wanted = history.best_common(ours, theirs)
            several += len(wanted) > 1
            assert history.bases(ours, theirs) == wanted
    assert several


def test_merge_bases_cost_what_came_since_they_parted() -> None:
    """The common history is not read, however often one landed in the other."""
    history = History()
    base = history.add(time_ns=0)
    for number in range(1000):
        base = history.add(base, time_ns=number)
    main = session = base
    for number in range(50):  # each landing is a merge; the session goes on from where it was
        session = history.add(session, time_ns=2000 + 10 * number)
        other = history.add(main, time_ns=2001 + 10 * number)
        main = history.add(other, session, time_ns=2002 + 10 * number)
    ahead = history.add(session, time_ns=9000)

    assert history.bases(ahead, main) == [session]
    assert history.loads <= 210  # 150 since the session began, and their ancestors as they come
    assert history.bases(main, base) == [base]
    assert history.loads <= 210


@pytest.mark.parametrize("seed", range(10))
def test_any_history_with_any_clocks(seed: int) -> None:
    """The answer is that of the full set of ancestors, whatever times the commits claim."""
    rng = random.Random(seed)
    history = History()
    for number in range(40):
        parents = rng.sample(range(max(0, number - 6), number), min(number, rng.choice([0, 1, 2])))
        history.add(*parents, time_ns=rng.randrange(100))

    for older in range(40):
        for newer in range(40):
            assert history.asks(older, newer) == (older in history.ancestors[newer])


def test_cost_is_what_came_since_they_parted() -> None:
    """Below 1,000 common commits, a few loads tell that neither builds on the other."""
    history = History()
    base = history.add(time_ns=0)
    for number in range(1000):
        base = history.add(base, time_ns=number)
    ours = history.add(history.add(base, time_ns=2000), time_ns=2001)
    theirs = base
    for number in range(5):
        theirs = history.add(theirs, time_ns=3000 + number)

    assert not history.asks(theirs, ours)
    assert history.loads <= 12
    assert not history.asks(ours, theirs)
    assert history.loads <= 12
    assert history.asks(base, theirs)
    assert history.loads <= 12
