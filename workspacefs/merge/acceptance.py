"""The commit that lands a proposal: a merge with the branch, or with some of its paths alone."""

from __future__ import annotations

from collections.abc import Sequence

from workspacefs.errors import RefusedError
from workspacefs.merge.base import MergeBase, base_of
from workspacefs.merge.counts import count_forward
from workspacefs.merge.landing import Refusal
from workspacefs.merge.lines import Labels
from workspacefs.merge.selection import select_changes
from workspacefs.merge.trees import Merged, merge_trees
from workspacefs.objects.commits import ChangeCounts, Commit, Provenance
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.objects.refs import Ref
from workspacefs.packs.writer import ObjectWriter
from workspacefs.refs import RefKind
from workspacefs.workspace.land import Joined, Tip, head_of
from workspacefs.workspace.merge_bases import find_merge_bases
from workspacefs.workspace.proposals import Proposal, has_commit
from workspacefs.workspace.publish import RefMove, seal_and_log
from workspacefs.workspace.workspace import Workspace


class Acceptance:
    """Joins one proposal with its branch, as often as that moves."""

    def __init__(
        self,
        workspace: Workspace,
        proposal: Proposal,
        *,
        reviewer: Provenance,
        message: str,
        paths: Sequence[bytes],
    ) -> None:
        self._workspace = workspace
        self._proposal = proposal
        self._reviewer = reviewer
        self._message = message.strip()
        self._paths = paths

    def join(self, tip: Tip) -> Joined | Refusal:
        """Return a stored commit that lands the proposal on a tip, with its move logged; Refusal:
        they are in conflict.

        All of it lands as a merge: the branch comes first among its parents, the proposed commit
        second. Of some paths the commit has the branch as its only parent: the rest has not landed,
        and later merges must not take it for that.

        Raises:
            RefusedError, NotFoundError: These paths cannot land alone, or nothing would change.
        """
        workspace = self._workspace
        theirs = self._selected(tip) if self._paths else self._proposal.head()[1].root
        with workspace.new_writer(is_small=True) as writer:
            merged = self._merge(tip, theirs, writer)
            if isinstance(merged, Refusal):
                writer.abort()
                ref, _ = self._proposal.head()
                merged.note(workspace, tip.branch, ref, name=self._proposal.id, who=self._reviewer)
                return merged
            commit = Commit(
                root=merged.root,
                parents=self._parents(tip),
                message=self._text(),
                time_ns=workspace.clock.now_ns(),
                provenance=self._reviewer,
                changes=merged.counts,
                meta=tuple(sorted(self._meta().items())),
            )
            move = RefMove(
                kind=RefKind.BRANCH,
                name=tip.branch,
                expected=tip.version,
                previous=tip.record,
                action="land",
                moved_by=self._reviewer.author,
            )
            return seal_and_log(workspace, writer, commit, move)

    def _merge(self, tip: Tip, theirs: Entry, writer: ObjectWriter) -> Merged | Refusal:
        workspace, base = self._workspace, self._base(tip)
        if not has_commit(tip):
            counts = count_forward(base.root, theirs, base.source)
            return Merged(root=theirs, counts=counts if self._paths else ChangeCounts())
        ref, commit = head_of(tip)
        merged = merge_trees(
            base.root,
            commit.root,
            theirs,
            base.source,
            writer,
            tree_params=workspace.tree_params,
            chunk_params=workspace.chunk_params,
            time_ns=workspace.clock.now_ns(),
            labels=Labels(ours=tip.branch, theirs=self._proposal.id),
        )
        if not merged.is_clean:
            return refusal_of(ref, base, merged)
        if self._paths and merged.root == commit.root:
            writer.abort()
            raise RefusedError(
                f"{tip.branch} has just that at these paths already; nothing would land",
                kind="proposal.nothing",
            )
        return merged

    def _selected(self, tip: Tip) -> Entry:
        """Return the root of the base with what is proposed for the paths alone; stored, so that it
        can be read as any tree.
        """
        workspace, base = self._workspace, self._base(tip)
        with workspace.new_writer(is_small=True) as writer:
            root = select_changes(
                base.root,
                self._proposal.head()[1].root,
                self._paths,
                base.source,
                writer,
                tree_params=workspace.tree_params,
            )
            writer.finish()
        return root

    def _base(self, tip: Tip) -> MergeBase:
        return proposal_base(self._workspace, self._proposal, tip)

    def _parents(self, tip: Tip) -> tuple[Ref, ...]:
        above = (head_of(tip)[0],) if has_commit(tip) else ()
        return above if self._paths else (*above, self._proposal.head()[0])

    def _text(self) -> str:
        stated = self._proposal.stated
        part = " in part" if self._paths else ""
        first = stated.message.partition("\n")[0]
        subject = f"accept {self._proposal.id} into {stated.branch}{part}: {first}"
        return f"{subject}\n\n{self._message}" if self._message else subject

    def _meta(self) -> dict[str, str]:
        meta = {"proposal": self._proposal.id, "reviewed-by": self._reviewer.author}
        if self._paths:
            meta["proposed-commit"] = self._proposal.head()[0].id.hex()
        return meta


def proposal_base(workspace: Workspace, proposal: Proposal, tip: Tip) -> MergeBase:
    """Return the tree that a proposal and a branch began from; an empty one, if nothing is on the
    branch yet.
    """
    head = proposal.head()
    if not has_commit(tip):
        return MergeBase(head[1].root._replace(content=Subtree(), nlink=2), workspace.store, ())
    at = head_of(tip)
    bases = find_merge_bases(at, head, workspace.store, workspace.backend)
    return base_of(workspace, bases, at, head)


def refusal_of(tip: Ref, base: MergeBase, merged: Merged) -> Refusal:
    """Return what stands against a proposal; ours is its side, theirs the branch's."""
    return Refusal(tip, base.commits, tuple(one.mirrored() for one in merged.conflicts))
