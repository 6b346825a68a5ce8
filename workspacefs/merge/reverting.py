"""Taking back what some commits changed, as a merge: what came after them stays.

A commit is taken back by a merge whose base it is, with the tree before it as the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workspacefs.errors import NotFoundError
from workspacefs.merge.base import Head
from workspacefs.merge.incoming import Forward, Incoming, Ours, Plan
from workspacefs.merge.joining import Step, join
from workspacefs.merge.lines import Labels
from workspacefs.objects.commits import Commit, Provenance
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.workspace.history import CommitSource, iter_history
from workspacefs.workspace.workspace import Workspace


@dataclass(slots=True)
class _Stretch:
    """Commits one after the other, that are taken back at once."""

    newest: Head
    oldest: Commit


class OneCommit:
    """What one commit changed, against its first parent, is taken back."""

    def __init__(self, head: Head, title: str, *, message: str = "") -> None:
        """Take back `head`, called `title`."""
        self._head = head
        self.title = f"the revert of {title}"
        first_line = head[1].message.partition("\n")[0]
        self.message = message or f'revert "{first_line}" ({head[0].id.hex()[:12]})'

    def plan(self, ours: Ours, workspace: Workspace, who: Provenance) -> Plan | Forward | None:
        """See Incoming."""
        stretch = _Stretch(self._head, self._head[1])
        return _plan([stretch], self, ours, workspace, who)


class CommitsBy:
    """All commits of the session's history that somebody made are taken back, the newest first.

    Merges are passed over: what they brought in was made by other commits.
    """

    def __init__(
        self, is_theirs: Callable[[Provenance], bool], title: str, *, message: str = ""
    ) -> None:
        """Take back those of which `is_theirs` says yes; called `title`, as "run r1"."""
        self._is_theirs = is_theirs
        self._who = title
        self.title = f"the revert of {title}"
        self.message = message or f"revert {title}"

    def plan(self, ours: Ours, workspace: Workspace, who: Provenance) -> Plan | Forward | None:
        """See Incoming.

        Raises:
            NotFoundError: There are no such commits.
        """
        heads = [] if ours.head is None else [ours.head]
        heads += [(ref, workspace.store.load_commit(ref)) for ref in ours.merge.parents]
        stretches: list[_Stretch] = []
        for ref, commit in iter_history(heads, workspace.store):
            if len(commit.parents) > 1 or not self._is_theirs(commit.provenance):
                continue
            last = stretches[-1] if stretches else None
            if last is not None and last.oldest.parents == (ref,):
                last.oldest = commit
            else:
                stretches.append(_Stretch((ref, commit), commit))
        if not stretches:
            raise NotFoundError(
                f"no commit in the history of session {ours.name} is of {self._who}; workspacefs "
                "log says who made which",
                kind="revert.absent",
            )
        return _plan(stretches, self, ours, workspace, who)


def _plan(
    stretches: Sequence[_Stretch],
    incoming: Incoming,
    ours: Ours,
    workspace: Workspace,
    who: Provenance,
) -> Plan | None:
    labels = Labels(ours=ours.name, theirs=incoming.title)
    steps = [
        Step(one.newest[1].root, _before(one.oldest, workspace.store), workspace.store, labels)
        for one in stretches
    ]
    root = ours.now[1].root
    joined = join(
        workspace,
        root,
        steps,
        ours.merge,
        parents=(*(() if ours.head is None else (ours.head[0],)), *ours.merge.parents),
        provenance=who,
        message="" if ours.work else incoming.message,
        kept=ours.kept_notes(workspace.store),
    )
    if joined.stored.commit.root == root and not joined.conflicts:
        return None
    return Plan(joined, ours.merge.parents, tuple(one.newest[0] for one in stretches))


def _before(commit: Commit, source: CommitSource) -> Entry:
    if commit.parents:
        return source.load_commit(commit.parents[0]).root
    return commit.root._replace(content=Subtree())
