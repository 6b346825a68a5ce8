"""What a proposal would land: looked at, with nothing stored."""

from __future__ import annotations

from dataclasses import dataclass

from workspacefs.merge.acceptance import proposal_base, refusal_of
from workspacefs.merge.conflicts import Conflict
from workspacefs.merge.deciding import find_landed, head_id
from workspacefs.merge.lines import Labels
from workspacefs.merge.scratch import Scratch
from workspacefs.merge.trees import merge_trees
from workspacefs.objects.commits import Commit
from workspacefs.objects.entry import Subtree
from workspacefs.objects.refs import Ref
from workspacefs.workspace.changes import PathChange, changes_between
from workspacefs.workspace.land import head_of
from workspacefs.workspace.proposals import Proposal, has_commit, read_tip
from workspacefs.workspace.workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """A proposal beside its branch as it is now."""

    tip: bytes | None
    """Id of the commit that the branch is at; None: it has none."""
    bases: tuple[Ref, ...]
    """Where the two parted."""
    changes: tuple[PathChange, ...]
    """What is proposed, against that."""
    contents: Scratch
    """Gives the content of both sides of the changes."""
    conflicts: tuple[Conflict, ...]
    """With the branch; ours is the proposal's side."""
    landed: tuple[Ref, Commit] | None
    """What the branch has of an open one: it was not marked yet; None: nothing."""


def review(workspace: Workspace, proposal: Proposal) -> Review:
    """Return what accepting a proposal would do now. Stores nothing.

    Raises:
        IntegrityError: A commit or tree is damaged or missing.
        UnavailableError: The store does not answer.
    """
    tip = read_tip(workspace, proposal.stated.branch)
    is_open = proposal.stated.is_open
    landed = find_landed(workspace, proposal, tip) if is_open else None
    if landed is not None or not is_open:
        return _of_decided(workspace, proposal, head_id(tip), landed)
    _, commit = proposal.head()
    base = proposal_base(workspace, proposal, tip)
    contents = Scratch(base.source)
    conflicts: tuple[Conflict, ...] = ()
    if has_commit(tip):
        ref, ours = head_of(tip)
        merged = merge_trees(
            base.root,
            ours.root,
            commit.root,
            contents,
            contents,
            tree_params=workspace.tree_params,
            chunk_params=workspace.chunk_params,
            time_ns=workspace.clock.now_ns(),
            labels=Labels(ours=tip.branch, theirs=proposal.id),
        )
        conflicts = refusal_of(ref, base, merged).conflicts
    return Review(
        tip=head_id(tip),
        bases=base.commits,
        changes=tuple(changes_between(base.root, commit.root, contents)),
        contents=contents,
        conflicts=conflicts,
        landed=None,
    )


def _of_decided(
    workspace: Workspace,
    proposal: Proposal,
    tip: bytes | None,
    landed: tuple[Ref, Commit] | None,
) -> Review:
    """Return what was proposed, against where it had parted from the branch then."""
    _, commit = proposal.head()
    base_id, bases = proposal.stated.base, tuple[Ref, ...]()
    base = commit.root._replace(content=Subtree())
    if base_id is not None:
        ref, older = workspace.resolve(base_id.hex())
        base, bases = older.root, (ref,)
    return Review(
        tip=tip, bases=bases, changes=tuple(changes_between(base, commit.root, workspace.store)),
        contents=Scratch(workspace.store), conflicts=(), landed=landed,
    )  # fmt: skip
