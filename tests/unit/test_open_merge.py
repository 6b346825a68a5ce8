"""What a session has merged, and conflicts that are left, as commits say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from workspacefs.backend.memory import MemoryBackend
from workspacefs.ids import ROOT_FILE_ID, CommitId
from workspacefs.objects.commits import Commit
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.objects.refs import Ref
from workspacefs.workspace.local_record import MergeState
from workspacefs.workspace.notes import CONFLICTS, WRITERS, Note, store_notes
from workspacefs.workspace.open_merge import conflicts_of, load_open_merge, state_of
from workspacefs.workspace.publish import seal_commit
from workspacefs.workspace.workspace import Workspace

ROOT = Entry(b"", 0o40755, 0, 0, 0, 1, 1, ROOT_FILE_ID, 2, Subtree())
EMPTY = Commit(root=ROOT, parents=(), message="m", time_ns=1)
TWO: dict[bytes, Note] = {CONFLICTS: {b"1": {b"about": b"{}"}, b"12": {b"about": b"[]"}}}


def stored(
    workspace: Workspace, notes: dict[bytes, Note], parents: Sequence[Ref] = ()
) -> tuple[Ref, Commit]:
    """Store a commit with notes."""
    with workspace.new_writer(is_small=True) as writer:
        made = store_notes(
            notes, writer,
            tree_params=workspace.tree_params, chunk_params=workspace.chunk_params,
        )  # fmt: skip
        commit = replace(EMPTY, notes=made, parents=tuple(parents))
        return seal_commit(writer, commit).ref, commit


def test_commit_without_conflicts_costs_no_read() -> None:
    """Nearly every commit says who wrote what: a session must not fetch that to commit."""
    workspace = Workspace.create(MemoryBackend("open-merge-none"))
    _, commit = stored(workspace, {WRITERS: b"w" * 1000})
    empty = Workspace.create(MemoryBackend("open-merge-empty"))

    assert commit.notes is not None
    assert conflicts_of(commit, empty.store) == {}
    assert conflicts_of(EMPTY, empty.store) == {}


def test_what_is_settled_is_not_left() -> None:
    """Conflicts of the head, or of a merge that is not committed, without those settled since."""
    workspace = Workspace.create(MemoryBackend("open-merge-settled"))
    ref, commit = stored(workspace, TWO)
    other = Ref(CommitId(b"\1" * 32))

    at_head = load_open_merge(commit, None, workspace.store)
    settled = load_open_merge(commit, MergeState((other,), ref, (12,)), workspace.store)
    gone = load_open_merge(commit, MergeState(), workspace.store)

    assert (set(at_head.conflicts), at_head.parents, at_head.is_news) == ({1, 12}, (), False)
    assert (set(settled.conflicts), settled.parents, settled.is_news) == ({1}, (other,), True)
    assert (gone.conflicts, gone.is_news) == ({}, True)
    again, _ = stored(workspace, settled.notes())
    assert set(conflicts_of(workspace.store.load_commit(again), workspace.store)) == {1}


def test_work_that_comes_back_brings_its_merge() -> None:
    """Only if it says more than the head does."""
    workspace = Workspace.create(MemoryBackend("open-merge-work"))
    head, head_commit = stored(workspace, TWO)
    other = Ref(CommitId(b"\2" * 32))
    same, same_commit = stored(workspace, TWO, [head])
    merged, merged_commit = stored(workspace, {WRITERS: b"w"}, [head, other])
    first, first_commit = stored(workspace, {}, [other])
    store = workspace.store

    assert state_of(same, same_commit, head, head_commit, store) is None
    assert state_of(merged, merged_commit, head, head_commit, store) == MergeState((other,))
    assert state_of(first, first_commit, None, None, store) == MergeState((other,))
