"""Making objects reachable: a commit record, then one compare-and-swap of a ref.

Order: packs durable, operation log, re-check, ref. A crash before the last step leaves orphan packs
and an entry that describes a move that never was; never a ref that names what is not there.
"""

from __future__ import annotations

import json
import logging
import secrets
from dataclasses import dataclass
from typing import Final

from workspacefs.backend.contract import Version
from workspacefs.errors import WorkspaceError
from workspacefs.ids import CommitId
from workspacefs.objects.commits import Commit, encode_commit
from workspacefs.objects.refs import Ref
from workspacefs.packs.writer import ObjectWriter, WriteSummary
from workspacefs.refs import Moved, RefKind, RefRecord, SessionRecord, Stale
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


def seal_commit(writer: ObjectWriter, commit: Commit) -> SealedCommit:
    """Write a commit record and finish the writer; all is durable on return."""
    body, references = encode_commit(commit)
    ref = writer.add_commit(body, references)
    summary = writer.finish()
    return SealedCommit(ref, commit, body, tuple(references), summary)


def move_ref(workspace: Workspace, sealed: SealedCommit, move: RefMove) -> Moved | Stale:
    """Point a ref to a sealed commit by compare-and-swap, and log it.

    Stale is an answer: somebody else moved the ref first, and it is as they left it.

    Raises:
        UnavailableError: The store does not say whether the ref moved (kind "ref.unknown").
    """
    write_id = secrets.token_hex(16)
    # The entry goes first, so that no move is missing from the log. Entries of moves that never
    # were do no harm: an entry is true only if the ref's chain of write ids contains it.
    key = _log_operation(workspace, sealed, move, write_id)
    record = RefRecord(
        commit_id=CommitId(sealed.ref.id),
        commit_body=sealed.body,
        commit_locators=tuple(reference.locator for reference in sealed.references),
        locator=sealed.ref.locator,
        write_id=write_id,
        moved_by=move.moved_by,
        session=move.session,
    )
    answer = workspace.refs.compare_and_swap(
        move.kind, move.name, expected=move.expected, new=record
    )
    if isinstance(answer, Stale):
        _withdraw(workspace, key)
    return answer


def publish_commit(
    workspace: Workspace, writer: ObjectWriter, commit: Commit, move: RefMove
) -> tuple[Moved | Stale, SealedCommit]:
    """Seal a commit and move a ref to it. See `seal_commit` and `move_ref`."""
    sealed = seal_commit(writer, commit)
    return move_ref(workspace, sealed, move), sealed


def _log_operation(workspace: Workspace, sealed: SealedCommit, move: RefMove, write_id: str) -> str:
    now_ns = workspace.clock.now_ns()
    previous = move.previous
    old = previous.commit_id if previous is not None else None
    entry = {
        "format": 1,
        "action": move.action,
        "kind": move.kind.value,
        "name": move.name,
        "old": None if old is None else old.hex(),
        "new": sealed.ref.id.hex(),
        "previous_write_id": previous.write_id if previous is not None else None,
        "write_id": write_id,
        "time_ns": now_ns,
        "by": move.moved_by,
    }
    key = f"{OPS_PREFIX}{now_ns:020d}-{write_id}"
    line = json.dumps(entry, sort_keys=True, separators=(",", ":")).encode("ascii") + b"\n"
    workspace.backend.put(key, [line])
    return key


def _withdraw(workspace: Workspace, key: str) -> None:
    try:
        workspace.backend.delete(key)
    except WorkspaceError as exc:
        log.warning("operation.left_behind", extra={"key": key, "reason": str(exc)})
