"""Committing a session's state: its own ref moves, which nobody else moves, so it cannot conflict.

Requests to the store, those in braces at the same time: {packs, log entry, look at the branch to
land on}, {session's ref, log entry of the landing}, and then land_commit's {branch}.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from workspacefs.backend.rounds import in_one_round
from workspacefs.errors import MovedError
from workspacefs.ids import CommitId
from workspacefs.objects.commits import ChangeCounts, Commit, Provenance
from workspacefs.objects.refs import Locator, Ref
from workspacefs.packs.writer import WriteSummary
from workspacefs.refs import Moved, RefKind, Stale
from workspacefs.workspace.base import KnownObjects
from workspacefs.workspace.land import (
    Landing,
    find_tip,
    land_commit,
    log_landing,
)
from workspacefs.workspace.notes import NO_NOTES, Note, store_notes
from workspacefs.workspace.open_merge import NO_MERGE, OpenMerge
from workspacefs.workspace.pending import Pending, entries_in
from workspacefs.workspace.publish import (
    PlannedMove,
    RefMove,
    SealedCommit,
    log_move,
    make_move,
    plan_move,
    seal_and_log,
    withdraw_move,
)
from workspacefs.workspace.seal import Sealed, SealProgress, seal_pending
from workspacefs.workspace.sessions import OpenSession, is_as_left, is_taken
from workspacefs.workspace.workspace import Workspace

__all__ = [
    "Committed",
    "Unchanged",
    "adopt_commit",
    "commit_pending",
    "land_commit",
    "settle_unclear",
]

_SMALL_ROWS: Final = 1000
"""Measured: storing 100 files takes 2.0 ms without threads, 6.2 ms with two."""


@dataclass(frozen=True, slots=True)
class Unchanged:
    """There was nothing to commit: the state is that of the session's head."""

    sealed: Sealed


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit on the session's ref."""

    ref: Ref
    commit: Commit
    sealed: Sealed
    summary: WriteSummary
    session: OpenSession
    """The session as it stands now."""
    landing: Landing | None = None
    """What was done already to land it: for land_commit."""


def commit_pending(
    workspace: Workspace,
    session: OpenSession,
    pending: Pending,
    *,
    message: str,
    provenance: Provenance,
    meta: Mapping[str, str],
    before_move: Callable[[CommitId], None],
    into: str = "",
    notes: Mapping[bytes, Note] = NO_NOTES,
    built_on: Collection[CommitId] = (),
    find_stored: Callable[[bytes], Locator | None] = lambda object_id: None,
    merge: OpenMerge = NO_MERGE,
    progress: SealProgress = lambda files, size_bytes: None,
) -> Committed | Unchanged:
    """Make the pending state the session's newest commit.

    On return the commit is durable in the store and the session's ref leads to it.

    Args:
        workspace: Where to.
        session: Whose ref moves, from the version that it says.
        pending: The state, over the tree of the session's head.
        message: Why, for people.
        provenance: Who and what.
        meta: Anything else, for programs.
        before_move: Called with the id when all is stored and the ref has not moved yet.
        into: Branch that the commit will be landed on by land_commit, with what is returned as
            `landing`: that is begun here, where it takes no time. What goes wrong with it is left
            for land_commit to tell.
        notes: What else is known of it; see workspace/notes.py.
        built_on: As for land_commit.
        find_stored: Tells where objects lie that were stored ahead of this commit.
        merge: What the commit descends from beside the head, and conflicts that are left. If it
            is news, there is a commit also of no changes.
        progress: Called after each stored file.

    Raises:
        MovedError: Somebody else moved the session's ref: it is in use elsewhere.
        UnavailableError: The store does not say whether the ref moved (kind "ref.unknown"); settle
            it with settle_unclear before the next commit.
    """
    known = KnownObjects()
    is_small = pending.row_count() < _SMALL_ROWS

    def find_known(object_id: bytes) -> Locator | None:
        return known.find(object_id) or find_stored(object_id)

    with workspace.new_writer(known=find_known, is_small=is_small) as writer:
        sealed = seal_pending(
            pending, workspace.store, writer, known, workspace.tree_params,
            workspace.chunk_params, progress=progress,
        )  # fmt: skip
        is_same = sealed.root == pending.root and sealed.counts == ChangeCounts()
        if is_same and not merge.is_news:
            writer.abort()
            return Unchanged(sealed)
        parent = session.head
        commit = Commit(
            root=sealed.root,
            parents=(*(() if parent is None else (parent,)), *merge.parents),
            message=message,
            time_ns=workspace.clock.now_ns(),
            provenance=provenance,
            changes=sealed.counts,
            meta=tuple(sorted(meta.items())),
            notes=store_notes(
                {**notes, **merge.notes()}, writer,
                tree_params=workspace.tree_params, chunk_params=workspace.chunk_params,
            ),
        )  # fmt: skip
        move = _move_of(session, "commit", provenance.author)
        # The branch is looked at even if the commit then fails: it costs no time.
        tip, (stored, planned) = in_one_round(
            workspace.backend,
            lambda: find_tip(workspace, into),
            lambda: seal_and_log(workspace, writer, commit, move),
        )
    before_move(CommitId(stored.ref.id))
    landing, answer = in_one_round(
        workspace.backend,
        lambda: log_landing(workspace, stored, session, tip, provenance.author, built_on),
        lambda: make_move(workspace, planned, stored.record()),
    )
    made = _move_after_all(workspace, session, planned, stored, answer)
    if isinstance(made, Stale):
        if landing is not None and landing.planned is not None:
            withdraw_move(workspace, landing.planned)
        raise _moved(session)
    assert made.record.session is not None
    moved = OpenSession(made.record.session, made.record, made.version)
    return Committed(stored.ref, stored.commit, sealed, stored.summary, moved, landing)


def adopt_commit(
    workspace: Workspace,
    session: OpenSession,
    pending: Pending,
    stored: SealedCommit,
    *,
    moved_by: str,
    before_move: Callable[[CommitId], None],
) -> Committed:
    """Make a commit that descends from the session's head, and whose tree the pending state is,
    the session's newest one. See commit_pending.

    Args:
        workspace: Where it is.
        session: Whose ref moves, from the version that it says.
        pending: The state, over the tree of the session's head.
        stored: The commit.
        moved_by: Who, for people.
        before_move: Called with its id when the ref has not moved yet.

    Raises:
        MovedError, UnavailableError: As for commit_pending.
    """
    commit_id = CommitId(stored.ref.id)
    planned = plan_move(workspace, commit_id, _move_of(session, "update", moved_by))
    log_move(workspace, planned)
    before_move(commit_id)
    answer = make_move(workspace, planned, stored.record())
    made = _move_after_all(workspace, session, planned, stored, answer)
    if isinstance(made, Stale):
        raise _moved(session)
    assert made.record.session is not None
    moved = OpenSession(made.record.session, made.record, made.version)
    return _settled(moved, pending)


def _move_of(session: OpenSession, action: str, moved_by: str) -> RefMove:
    return RefMove(
        kind=RefKind.SESSION,
        name=session.session.name,
        expected=session.version,
        previous=session.record,
        action=action,
        moved_by=moved_by,
        # The commit has it all, and work on another machine does not build on it.
        session=replace(session.session, saved=None, left=None),
    )


def _move_after_all(
    workspace: Workspace,
    session: OpenSession,
    planned: PlannedMove,
    stored: SealedCommit,
    answer: Moved | Stale,
) -> Moved | Stale:
    """Return the answer to a move; when only the policy was changed under us, move again."""
    commit_id, lease = CommitId(stored.ref.id), session.session.lease
    while isinstance(answer, Stale):
        found, version = answer.current, answer.version
        if found is None or found.session is None or version is None or lease is None:
            return answer
        if found.commit_id == commit_id and not is_taken(found.session, session.session):
            # The write got no answer and was done, and the policy was changed on top of it.
            log_move(workspace, planned)  # withdrawn, as of a move that did not take place
            return Moved(found, version)
        if found.session.lease is None or not is_as_left(found, session, lease.saver):
            return answer
        move = replace(
            planned.move,
            expected=version,
            previous=found,
            session=replace(found.session, saved=None, left=None),
        )
        planned = plan_move(workspace, commit_id, move)
        log_move(workspace, planned)
        answer = make_move(workspace, planned, stored.record())
    return answer


def settle_unclear(
    workspace: Workspace,
    session: OpenSession,
    sealing: CommitId,
    pending: Pending,
    *,
    moved_by: str,
) -> Committed | OpenSession:
    """Find out what became of a session's ref after commit_pending could not tell.

    Idempotent: after an UnavailableError ask again.

    Args:
        workspace: Where the session is.
        session: As commit_pending was given it.
        sealing: The commit that commit_pending announced last.
        pending: The very state that it was made of.
        moved_by: Who asks, for the operation log.

    Returns:
        Committed: the ref had moved; go on as after commit_pending. OpenSession: it had not and now
        cannot any more, because it was written anew; use it in the place of `session`.

    Raises:
        MovedError: Somebody else moved the session's ref.
        UnavailableError: The store still does not say.
    """
    found = settle_ref(workspace, session, sealing, moved_by=moved_by)
    return _settled(found, pending) if found.record.commit_id == sealing else found


def settle_ref(
    workspace: Workspace, session: OpenSession, sealing: CommitId, *, moved_by: str
) -> OpenSession:
    """Return a session whose ref holds `sealing`, or can no more come to hold it.

    A write of a process that is gone may still be on its way. See `settle_unclear`.
    """
    name = session.session.name
    found = workspace.refs.find(RefKind.SESSION, name)
    record, version = found if found is not None else (None, None)
    while True:
        if (
            record is None
            or version is None
            or record.session is None
            or is_taken(record.session, session.session)
        ):
            raise _moved(session)
        if record.commit_id == sealing:
            return OpenSession(record.session, record, version)
        if record.commit_id != session.record.commit_id:
            raise _moved(session)
        if version != session.version:
            # Written anew, by us with an answer that was lost, or with another policy: what was on
            # its way cannot land.
            return OpenSession(record.session, record, version)
        # The write may still be on its way. Under another version its condition does not hold.
        planned = plan_move(
            workspace,
            record.commit_id,
            RefMove(
                kind=RefKind.SESSION,
                name=name,
                expected=version,
                previous=record,
                action="settle",
                moved_by=moved_by,
                session=record.session,
            ),
        )
        log_move(workspace, planned)
        answer = make_move(workspace, planned, record)
        if isinstance(answer, Moved):
            return OpenSession(record.session, answer.record, answer.version)
        record, version = answer.current, answer.version


def _settled(session: OpenSession, pending: Pending) -> Committed:
    ref, commit = session.head, session.record.commit()
    assert ref is not None
    sealed = Sealed(commit.root, entries_in(commit.root, pending), commit.changes)
    return Committed(ref, commit, sealed, WriteSummary((), 0, 0, 0, 0), session)


def _moved(session: OpenSession) -> MovedError:
    return MovedError(
        f"session {session.session.name} was moved by someone else: it is in use in another "
        "place. Nothing is lost: your files are in this mount as you left them, which takes no "
        "changes any more. Go on with them in a session of their own: workspacefs fork PATH DIR",
        kind="session.moved",
        session=session.session.name,
    )
