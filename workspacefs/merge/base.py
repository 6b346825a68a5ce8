"""The tree that a merge compares both sides with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from workspacefs.merge.content import MergeSource
from workspacefs.merge.scratch import Scratch
from workspacefs.merge.trees import merge_trees
from workspacefs.objects.commits import Commit
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.objects.refs import Ref
from workspacefs.workspace.merge_bases import find_merge_bases
from workspacefs.workspace.workspace import Workspace

Head = tuple[Ref, Commit]
"""A commit and where it is."""


class MergeBase(NamedTuple):
    """What both sides began from."""

    root: Entry
    source: MergeSource
    """Gives its objects, and those of both sides."""
    commits: tuple[Ref, ...]
    """One as a rule; none if the histories have nothing in common; several after merges in both
    directions: then the tree is the merge of theirs."""


def base_of(workspace: Workspace, bases: Sequence[Head], ours: Head, theirs: Head) -> MergeBase:
    """Return the tree that two commits began from, of which find_merge_bases() found `bases`.

    Several best common ancestors are merged with each other, over their own base; where they are in
    conflict, the merge has it as any has (markers, or one of the two). Without any, the base is an
    empty directory: then what both sides have and have not alike is a conflict.

    Raises:
        IntegrityError: A commit or tree is damaged or missing.
        UnavailableError: The store does not answer.
    """
    scratch = Scratch(workspace.store)
    root = _root_of(workspace, bases, ours, theirs, scratch)
    commits = tuple(ref for ref, _ in bases)
    return MergeBase(root, scratch if len(commits) > 1 else workspace.store, commits)


def _root_of(
    workspace: Workspace, bases: Sequence[Head], ours: Head, theirs: Head, scratch: Scratch
) -> Entry:
    if not bases:
        either = min(ours, theirs, key=lambda head: head[0].id)[1]  # the same for both directions
        return either.root._replace(content=Subtree())
    first, root = bases[0], bases[0][1].root
    for other in bases[1:]:
        # Best common ancestors do not descend from each other, so this ends.
        beneath = find_merge_bases(first, other, workspace.store, workspace.backend)
        root = merge_trees(
            _root_of(workspace, beneath, first, other, scratch),
            root,
            other[1].root,
            scratch,
            scratch,
            tree_params=workspace.tree_params,
            chunk_params=workspace.chunk_params,
            time_ns=max(first[1].time_ns, other[1].time_ns),
        ).root
    return root
