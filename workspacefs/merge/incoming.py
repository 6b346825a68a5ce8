"""What a session is about to get: the changes of another commit, or some taken back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from workspacefs.merge.base import Head, base_of
from workspacefs.merge.joining import Joined, Step, carried_conflicts, join
from workspacefs.merge.lines import Labels
from workspacefs.objects.commits import Provenance
from workspacefs.objects.refs import Ref
from workspacefs.workspace.land import stored_commit
from workspacefs.workspace.listing import TreeStore
from workspacefs.workspace.merge_bases import find_merge_bases
from workspacefs.workspace.notes import WRITERS, Note, find_note
from workspacefs.workspace.open_merge import OpenMerge
from workspacefs.workspace.publish import SealedCommit
from workspacefs.workspace.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Ours:
    """A session as it is now."""

    name: str
    head: Head | None
    """Its newest commit."""
    work: Head | None
    """A commit, of no history, of what it has beyond that; None: nothing."""
    merge: OpenMerge

    def kept_notes(self, store: TreeStore) -> dict[bytes, Note]:
        """Return what is known of the work beside conflicts."""
        found = None if self.work is None else find_note(self.work[1].notes, WRITERS, store)
        return {} if found is None else {WRITERS: found}

    @property
    def now(self) -> Head:
        """All of it; there is something."""
        found = self.work or self.head
        assert found is not None
        return found


@dataclass(frozen=True, slots=True)
class Forward:
    """The session can go on from a commit as it is: that descends from all that the session has."""

    ref: Ref
    stored: SealedCommit


@dataclass(frozen=True, slots=True)
class Plan:
    """What the session will show."""

    joined: Joined
    parents: tuple[Ref, ...]
    """That its next commit gets for this, beside the head."""
    bases: tuple[Ref, ...]


class Incoming(Protocol):
    """Changes that come into a session."""

    def plan(self, ours: Ours, workspace: Workspace, who: Provenance) -> Plan | Forward | None:
        """Return what the session will show; None: it has all of it. What is returned is stored,
        and no ref names it.

        Raises:
            IntegrityError: Something stored is damaged.
            UnavailableError: The store does not answer.
        """
        ...

    @property
    def title(self) -> str:
        """What it is called in messages."""
        ...

    @property
    def message(self) -> str:
        """Of the commit that is made if nothing is left to decide."""
        ...


class CommitsOf:
    """All that another commit has and the session has not."""

    def __init__(self, theirs: Head, title: str, *, into: str, message: str = "") -> None:
        """Bring `theirs`, called `title`, into session `into`."""
        self._theirs = theirs
        self.title = title
        self.message = message or f"merge {title} into {into}"

    def plan(self, ours: Ours, workspace: Workspace, who: Provenance) -> Plan | Forward | None:
        """See Incoming."""
        theirs = self._theirs
        if ours.head is None and ours.work is None:
            return Forward(theirs[0], stored_commit(workspace, theirs[0]))
        now = ours.now
        bases = find_merge_bases(now, theirs, workspace.store, workspace.backend)
        refs = tuple(ref for ref, _ in bases)
        if refs == (theirs[0],):
            return None
        if refs == (now[0],) and ours.work is None:
            return Forward(theirs[0], stored_commit(workspace, theirs[0]))
        base = base_of(workspace, bases, now, theirs)
        labels = Labels(ours=ours.name, theirs=self.title)
        parents = (*ours.merge.parents, theirs[0])
        joined = join(
            workspace,
            now[1].root,
            [Step(base.root, theirs[1].root, base.source, labels)],
            ours.merge,
            parents=(*(() if ours.head is None else (ours.head[0],)), *parents),
            provenance=who,
            carried=carried_conflicts(
                [commit for _, commit in bases], theirs[1], ours.merge, workspace.store
            ),
            message="" if ours.work else self.message,
            kept=ours.kept_notes(workspace.store),
        )
        return Plan(joined, parents, refs)
