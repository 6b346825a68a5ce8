"""Bringing others' changes into a session's tree, conflicts included: they are kept as notes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from workspacefs.merge.conflicts import Conflict
from workspacefs.merge.content import MergeSource
from workspacefs.merge.counts import count_forward
from workspacefs.merge.documents import conflict_document
from workspacefs.merge.lines import Labels
from workspacefs.merge.trees import merge_trees
from workspacefs.objects.commits import ChangeCounts, Commit, Provenance
from workspacefs.objects.entry import Entry
from workspacefs.objects.refs import Ref
from workspacefs.workspace.listing import TreeStore
from workspacefs.workspace.notes import CONFLICTS, NO_NOTES, Note, read_note, store_notes
from workspacefs.workspace.open_merge import OpenMerge, conflicts_of
from workspacefs.workspace.publish import SealedCommit, seal_commit, sign_commit
from workspacefs.workspace.saving import WORK_MESSAGE
from workspacefs.workspace.workspace import Workspace

_ABOUT = b"about"
SIDES = ("base", "ours", "theirs")


class Step(NamedTuple):
    """One merge: what `theirs` has and `base` has not is brought in."""

    base: Entry
    theirs: Entry
    source: MergeSource
    """Gives the objects of both."""
    labels: Labels


@dataclass(frozen=True, slots=True)
class Joined:
    """A session's tree with others' changes in it; stored, and no ref names it."""

    stored: SealedCommit
    """As a commit, with all conflicts in its notes."""
    conflicts: Mapping[int, Conflict]
    """That came with this, by number."""
    counts: ChangeCounts
    """How it differs from the session's tree until then."""
    has_conflicts: bool
    """Whether any are left: these, or earlier ones."""
    is_final: bool
    """Whether the commit can be the session's next one: nothing in it is not committed otherwise,
    and nothing is left to decide. Else it is one of work."""


def join(
    workspace: Workspace,
    ours: Entry,
    steps: Sequence[Step],
    merge: OpenMerge,
    *,
    parents: tuple[Ref, ...],
    provenance: Provenance,
    message: str = "",
    carried: Iterable[Entry] = (),
    kept: Mapping[bytes, Note] = NO_NOTES,
) -> Joined:
    """Bring the changes of all steps, one after the other, into a tree. Durable on return.

    Args:
        workspace: Where all are.
        ours: Root of the tree.
        steps: What is brought in.
        merge: Conflicts that are left of earlier.
        parents: Of the commit.
        provenance: Who does it.
        message: Of the commit if it is final; "": it is not.
        carried: Notes of conflicts that come along with what is brought in.
        kept: Other notes of the tree's work, that it still has.

    Raises:
        IntegrityError: A tree is damaged.
        UnavailableError: The store does not answer.
    """
    notes: dict[int, Note] = dict(merge.conflicts)
    notes.update(enumerate(carried, max(notes, default=0) + 1))
    found: dict[int, Conflict] = {}
    root = ours
    for number, step in enumerate(steps, 1):
        time_ns = workspace.clock.now_ns()
        with workspace.new_writer(is_small=True) as writer:
            merged = merge_trees(
                step.base,
                root,
                step.theirs,
                step.source,
                writer,
                tree_params=workspace.tree_params,
                chunk_params=workspace.chunk_params,
                time_ns=time_ns,
                labels=step.labels,
            )
            root = merged.root
            new = dict(enumerate(merged.conflicts, max(notes, default=0) + 1))
            found |= new
            notes |= {number: _note_of(conflict) for number, conflict in new.items()}
            if number < len(steps):
                writer.finish()  # the next step reads what this one made
                continue
            counts = (
                merged.counts if len(steps) == 1 else count_forward(ours, root, workspace.store)
            )
            is_final = bool(message) and not notes
            named: dict[bytes, Note] = {b"%d" % number: note for number, note in notes.items()}
            commit = Commit(
                root=root,
                parents=parents,
                message=message if is_final else WORK_MESSAGE,
                time_ns=time_ns,
                provenance=provenance,
                changes=counts,
                notes=store_notes(
                    {**kept, CONFLICTS: named},
                    writer,
                    tree_params=workspace.tree_params,
                    chunk_params=workspace.chunk_params,
                ),
            )
            if is_final:
                commit = sign_commit(workspace, commit)
            return Joined(seal_commit(writer, commit), found, counts, bool(notes), is_final)
    raise ValueError("there is no step")


def carried_conflicts(
    base: Sequence[Commit], theirs: Commit, merge: OpenMerge, store: TreeStore
) -> list[Entry]:
    """Return notes of the conflicts that a commit has and that come along when it is merged: not
    those that are known here, nor those that were in a base, which have been settled here.
    """
    known = {about_conflict(note, store) for note in merge.conflicts.values()}
    for commit in base:
        known |= {about_conflict(note, store) for note in conflicts_of(commit, store).values()}
    return [
        note
        for note in conflicts_of(theirs, store).values()
        if about_conflict(note, store) not in known
    ]


def about_conflict(note: Entry, store: TreeStore) -> bytes:
    """Return the JSON that says what a conflict is about: as conflict_document()."""
    return read_note(note, _ABOUT, store)


def _note_of(conflict: Conflict) -> dict[bytes, Note]:
    about = json.dumps(conflict_document(conflict), sort_keys=True).encode("ascii")
    note: dict[bytes, Note] = {_ABOUT: about}
    for side in SIDES:
        version = getattr(conflict, side)
        if version is not None:
            name = version.path.rpartition(b"/")[2] or b"root"
            entry = version.entry
            note[side.encode("ascii")] = {name: entry}
    return note
