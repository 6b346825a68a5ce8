"""Landing what a branch does not build on: a commit that joins both, if they can be joined.

Requests to the store for each try: what the histories need, {packs, log entry}, {branch}.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workspacefs.ids import CommitId
from workspacefs.merge.base import base_of
from workspacefs.merge.conflicts import Conflict
from workspacefs.merge.lines import Labels
from workspacefs.merge.trees import merge_trees
from workspacefs.objects.commits import Commit, Provenance
from workspacefs.objects.refs import Ref
from workspacefs.workspace.land import Joined, Tip, head_of
from workspacefs.workspace.publish import RefMove, SealedCommit, seal_and_log
from workspacefs.workspace.refusals import RefusedLanding, note_refusal
from workspacefs.workspace.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a commit did not land."""

    tip: Ref
    """What the branch was at."""
    bases: tuple[Ref, ...]
    conflicts: tuple[Conflict, ...]
    """In order of path; ours is the commit's side, theirs the branch's."""

    def note(
        self, workspace: Workspace, branch: str, commit: Ref, *, name: str, who: Provenance
    ) -> None:
        """Have whoever watches the workspace know, if the store takes it."""
        note_refusal(
            workspace,
            RefusedLanding(
                branch=branch,
                tip=CommitId(self.tip.id),
                commit=CommitId(commit.id),
                name=name,
                by=who.author,
                agent=who.agent,
                time_ns=workspace.clock.now_ns(),
                conflicts=tuple((one.kind.value, one.path) for one in self.conflicts),
                count=len(self.conflicts),
            ),
        )


class LandingMerge:
    """Joins one commit with a branch, as often as that moves."""

    def __init__(self, workspace: Workspace, *, name: str, provenance: Provenance) -> None:
        """Join in `workspace`.

        Args:
            workspace: Where the branch is.
            name: What the commit is called in messages: its session.
            provenance: Who lands.
        """
        self._workspace = workspace
        self._name = name
        self._provenance = provenance
        self.refusal: Refusal | None = None
        """Set when join() has returned None."""

    def join(
        self,
        head: SealedCommit,
        tip: Tip,
        bases: Sequence[tuple[Ref, Commit]],
        move: RefMove,
    ) -> Joined | None:
        """Return a stored commit that descends from both, with its move logged; None: they are in
        conflict. See land.Join.

        The branch comes first among its parents and in its tree: with `~1` and `--first-parent` it
        is what went through it.
        """
        workspace, (tip_ref, tip_commit) = self._workspace, head_of(tip)
        base = base_of(workspace, bases, (tip_ref, tip_commit), (head.ref, head.commit))
        time_ns = workspace.clock.now_ns()
        with workspace.new_writer(is_small=True) as writer:
            merged = merge_trees(
                base.root,
                tip_commit.root,
                head.commit.root,
                base.source,
                writer,
                tree_params=workspace.tree_params,
                chunk_params=workspace.chunk_params,
                time_ns=time_ns,
                labels=Labels(ours=tip.branch, theirs=self._name),
            )
            if not merged.is_clean:
                writer.abort()
                conflicts = tuple(conflict.mirrored() for conflict in merged.conflicts)
                self.refusal = Refusal(tip_ref, base.commits, conflicts)
                self.refusal.note(
                    workspace, tip.branch, head.ref, name=self._name, who=self._provenance
                )
                return None
            commit = Commit(
                root=merged.root,
                parents=(tip_ref, head.ref),
                message=f"merge {self._name} into {tip.branch}: {_first_line(head.commit.message)}",
                time_ns=time_ns,
                provenance=self._provenance,
                changes=merged.counts,
            )
            return seal_and_log(workspace, writer, commit, move)


def _first_line(message: str) -> str:
    return message.partition("\n")[0]
