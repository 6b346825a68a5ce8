"""Making objects reachable: a commit record, then one compare-and-swap of a ref.

Order: packs and the entry in the operation log, at the same time; when both are durable, the ref. A
crash before that step leaves orphan packs and an entry that describes a move that never was; never
a ref that names what is not there. So a commit takes two writes one after the other.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from workspacefs.backend.contract import Version
from workspacefs.errors import WorkspaceError
from workspacefs.ids import CommitId, commit_id_of
from workspacefs.objects.commits import Commit, encode_commit
from workspacefs.objects.refs import Ref
from workspacefs.packs.writer import ObjectWriter, WriteSummary
from workspacefs.refs import Moved, ProposalRecord, RefKind, RefRecord, SessionRecord, Stale
from workspacefs.workspace.workspace import Workspace

log = logging.getLogger(__name__)

OPS_PREFIX: Final = "ops/"


@dataclass(frozen=True, slots=True)
class SealedCommit:
    """A commit that is durable, with all that it names; no ref leads to it yet."""

    ref: Ref
    commit: Commit
    body: bytes
    references: tuple[Ref, ...]
    """Of the body, in body order; all have locators."""
    summary: WriteSummary

    def record(self) -> RefRecord:
        """Return what a ref that leads here holds; who moved it is not said."""
        return RefRecord(
            commit_id=CommitId(self.ref.id),
            commit_body=self.body,
            commit_locators=tuple(reference.locator for reference in self.references),
            locator=self.ref.locator,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RefMove:
    """Which ref shall move, and what the operation log says of it."""

    kind: RefKind
    name: str
    expected: Version | None
    """Token of the value to replace; None: the ref must not exist."""
    previous: RefRecord | None
    """That value."""
    action: str
    """A word for the log: "import", "commit", "land" …"""
    moved_by: str
    session: SessionRecord | None = None
    """New session part; for sessions only."""
    other_name: str = ""
    """Of a branch that is renamed: the name that it had, or gets."""
    proposal: ProposalRecord | None = None
    """New proposal part; for proposals only."""


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A move with its entry for the operation log, which must be durable before the ref moves."""

    move: RefMove
    write_id: str
    key: str
    entry: bytes


def plan_move(workspace: Workspace, commit_id: CommitId | None, move: RefMove) -> PlannedMove:
    """Return the entry for moving a ref to a commit; stores nothing.

    The entry goes first, so that no move is missing from the log. Entries of moves that never were
    do no harm: an entry is true only if the ref's chain of write ids contains it.
    """
    write_id = secrets.token_hex(16)
    now_ns = workspace.clock.now_ns()
    previous = move.previous
    old = previous.commit_id if previous is not None else None
    entry: dict[str, object] = {
        "format": 1,
        "action": move.action,
        "kind": move.kind.value,
        "name": move.name,
        "old": None if old is None else old.hex(),
        "new": None if commit_id is None else commit_id.hex(),
        "previous_write_id": previous.write_id if previous is not None else None,
        "write_id": write_id,
        "time_ns": now_ns,
        "by": move.moved_by,
    }
    if move.other_name:
        entry["other"] = move.other_name
    line = json.dumps(entry, sort_keys=True, separators=(",", ":")).encode("ascii") + b"\n"
    return PlannedMove(move, write_id, f"{OPS_PREFIX}{now_ns:020d}-{write_id}", line)


def log_move(workspace: Workspace, planned: PlannedMove) -> None:
    """Write a planned move to the operation log; durable on return."""
    workspace.backend.put(planned.key, [planned.entry])


def withdraw_move(workspace: Workspace, planned: PlannedMove) -> None:
    """Take an entry out of the operation log whose move did not and will not take place."""
    try:
        workspace.backend.delete(planned.key)
    except WorkspaceError as exc:
        log.warning("operation.left_behind", extra={"key": planned.key, "reason": str(exc)})


def make_move(workspace: Workspace, planned: PlannedMove, target: RefRecord) -> Moved | Stale:
    """Move a ref as planned and logged, by compare-and-swap.

    Stale is an answer: somebody else moved the ref first, and it is as they left it. Then the entry
    is withdrawn.

    Raises:
        UnavailableError: The store does not say whether the ref moved (kind "ref.unknown"); then
            the entry stays.
    """
    move = planned.move
    answer = workspace.refs.compare_and_swap(
        move.kind,
        move.name,
        expected=move.expected,
        new=replace(
            target,
            write_id=planned.write_id,
            moved_by=move.moved_by,
            session=move.session,
            proposal=move.proposal,
        ),
    )
    if isinstance(answer, Stale):
        withdraw_move(workspace, planned)
    return answer


def seal_commit(writer: ObjectWriter, commit: Commit) -> SealedCommit:
    """Write a commit record and finish the writer; all is durable on return."""
    return _seal(writer, commit, *encode_commit(commit), beside={})


def seal_and_log(
    workspace: Workspace, writer: ObjectWriter, commit: Commit, move: RefMove
) -> tuple[SealedCommit, PlannedMove]:
    """Write a commit record and finish the writer and, at the same time, log the move to come.

    All is durable on return. The commit is signed, if the workspace has who does that; what it
    raises is raised here, and nothing that names the commit was stored.
    """
    commit = sign_commit(workspace, commit)
    body, references = encode_commit(commit)
    planned = plan_move(workspace, CommitId(commit_id_of(body)), move)
    beside = {planned.key: planned.entry}
    return _seal(writer, commit, body, references, beside=beside), planned


def publish_commit(
    workspace: Workspace, writer: ObjectWriter, commit: Commit, move: RefMove
) -> tuple[Moved | Stale, SealedCommit]:
    """Seal a commit and move a ref to it. See `seal_and_log` and `make_move`."""
    sealed, planned = seal_and_log(workspace, writer, commit, move)
    return make_move(workspace, planned, sealed.record()), sealed


def sign_commit(workspace: Workspace, commit: Commit) -> Commit:
    """Return a commit with a signature, if the workspace has who signs; for those that become part
    of a history and are not sealed with `seal_and_log`. Raises what the signer raises.
    """
    if workspace.signer is None:
        return commit
    body, _ = encode_commit(commit.unsigned())
    return replace(commit, signature=workspace.signer.sign(body))


def _seal(
    writer: ObjectWriter,
    commit: Commit,
    body: bytes,
    references: list[Ref],
    *,
    beside: Mapping[str, bytes],
) -> SealedCommit:
    ref = writer.add_commit(body, references)
    summary = writer.finish(beside=beside)
    return SealedCommit(ref, commit, body, tuple(references), summary)
