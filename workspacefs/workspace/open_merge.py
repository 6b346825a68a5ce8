"""What a session has merged that no commit of it says, and conflicts that are left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from workspacefs.objects.commits import Commit
from workspacefs.objects.entry import Entry
from workspacefs.objects.refs import Ref
from workspacefs.trees.walk import iter_entries
from workspacefs.workspace.history import CommitSource
from workspacefs.workspace.listing import TreeStore
from workspacefs.workspace.local_record import MergeState
from workspacefs.workspace.notes import CONFLICTS, Note, find_note


class CommitStore(TreeStore, CommitSource, Protocol):
    """Gives commits, and what their trees need."""


@dataclass(frozen=True, slots=True)
class OpenMerge:
    """What the next commit of a session says beside its files and its first parent."""

    parents: tuple[Ref, ...] = ()
    """Others that it has."""
    conflicts: Mapping[int, Entry] = field(default_factory=dict)
    """Notes of each conflict that is left, by number."""
    is_news: bool = False
    """Whether the head does not say so: then there is something to commit."""

    def notes(self) -> dict[bytes, Note]:
        """Return what store_notes() takes."""
        numbered = {b"%d" % number: note for number, note in self.conflicts.items()}
        return {CONFLICTS: numbered} if numbered else {}


NO_MERGE: Final = OpenMerge()
"""There is none, and no conflict."""


def load_open_merge(head: Commit | None, state: MergeState | None, store: CommitStore) -> OpenMerge:
    """Return what a session has to settle.

    Args:
        head: Its newest commit.
        state: What its record says; None: nothing beyond the head.
        store: Gives commits and trees.

    Raises:
        IntegrityError: What is stored is damaged.
        UnavailableError: The store does not answer.
    """
    if state is None:
        return OpenMerge(conflicts={} if head is None else conflicts_of(head, store))
    found = (
        {} if state.conflicts is None else conflicts_of(store.load_commit(state.conflicts), store)
    )
    left = {number: note for number, note in found.items() if number not in state.settled}
    return OpenMerge(state.parents, left, is_news=True)


def conflicts_of(commit: Commit, store: TreeStore) -> dict[int, Entry]:
    """Return the notes of each conflict that a commit left, by number. Reads nothing if it left
    none.
    """
    if commit.notes is None or commit.notes.subtree.totals.dirs == 0:
        return {}
    found = find_note(commit.notes, CONFLICTS, store)
    if found is None:
        return {}
    entries = iter_entries(found.subtree, store)
    return {int(entry.name): entry for entry in entries if entry.name.isdigit()}


def state_of(
    ref: Ref, commit: Commit, head: Ref | None, head_commit: Commit | None, store: TreeStore
) -> MergeState | None:
    """Return the merge that was stored with uncommitted work, for the session that it is brought
    back to; None: it says nothing beyond the head.

    Args:
        ref: The work.
        commit: The same.
        head: Its first parent, if it has one: the session's newest commit.
        head_commit: The same.
        store: Gives trees.
    """
    parents = commit.parents if head is None else commit.parents[1:]
    left = conflicts_of(commit, store)
    if not parents and left == ({} if head_commit is None else conflicts_of(head_commit, store)):
        return None
    return MergeState(parents, ref if left else None)
