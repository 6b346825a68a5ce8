"""Storing a session's uncommitted work, and bringing it back on another machine.

What is saved is a tree like that of a commit, named by the session's ref beside the head, which
does not move. Requests to the store: {packs}, then {ref}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from workspacefs.errors import MovedError
from workspacefs.ids import CommitId
from workspacefs.objects.commits import Commit, Provenance
from workspacefs.objects.refs import Locator, Ref
from workspacefs.refs import Moved, RefKind, RefRecord, SavedWork, StoredCheckpoint
from workspacefs.workspace.base import KnownObjects
from workspacefs.workspace.notes import NO_NOTES, Note, store_notes
from workspacefs.workspace.open_merge import NO_MERGE, OpenMerge
from workspacefs.workspace.pending import Pending
from workspacefs.workspace.publish import SealedCommit, seal_commit
from workspacefs.workspace.seal import SealedContents, SealProgress, seal_pending
from workspacefs.workspace.sessions import OpenSession, is_as_left
from workspacefs.workspace.workspace import Workspace

_SMALL_ROWS: Final = 1000
WORK_MESSAGE: Final = "work of a session that is not committed"


@dataclass(frozen=True, slots=True)
class StoredWork:
    """Work that is in the store, with nothing that names it yet."""

    work: SavedWork | None
    """None: there is none beyond the head."""
    stored_bytes: int


def store_work(
    workspace: Workspace,
    session: OpenSession,
    pending: Pending,
    *,
    saver: str,
    provenance: Provenance,
    contents: SealedContents,
    find_stored: Callable[[bytes], Locator | None],
    merge: OpenMerge = NO_MERGE,
    notes: Mapping[bytes, Note] = NO_NOTES,
    progress: SealProgress = lambda files, size_bytes: None,
) -> StoredWork:
    """Store the work that `pending` shows beyond the session's head, for record_work to name;
    durable on return.

    Args:
        workspace: Where to.
        session: Whose work it is.
        pending: Of frozen layers, over the tree of the session's head.
        saver: Of this machine's copy of the session.
        provenance: Who and what.
        contents: What was saved before; learns what is saved now.
        find_stored: Tells where objects lie that were stored ahead of this.
        merge: What belongs to the work beside its files.
        notes: What else is known of it, for the commit that it will be.
        progress: Called after each stored file.

    Raises:
        UnavailableError: The store does not answer.
    """
    known = KnownObjects()

    def find_known(object_id: bytes) -> Locator | None:
        return known.find(object_id) or find_stored(object_id) or contents.find_chunk(object_id)

    is_small = pending.row_count() < _SMALL_ROWS
    try:
        with workspace.new_writer(known=find_known, is_small=is_small) as writer:
            sealed = seal_pending(
                pending, workspace.store, writer, known, workspace.tree_params,
                workspace.chunk_params, progress=progress, contents=contents,
            )  # fmt: skip
            if sealed.root == pending.root and not merge.is_news:
                writer.abort()
                work, stored_bytes = None, 0
            else:
                head, now_ns = session.head, workspace.clock.now_ns()
                commit = Commit(
                    root=sealed.root,
                    parents=(*(() if head is None else (head,)), *merge.parents),
                    message=WORK_MESSAGE,
                    time_ns=now_ns,
                    provenance=provenance,
                    changes=sealed.counts,
                    notes=store_notes(
                        {**notes, **merge.notes()}, writer,
                        tree_params=workspace.tree_params, chunk_params=workspace.chunk_params,
                    ),
                )  # fmt: skip
                stored = seal_commit(writer, commit)
                stored_bytes = stored.summary.stored_bytes
                work = saved_work(stored, saver)
    except BaseException:
        contents.drop()
        raise
    contents.keep()
    return StoredWork(work, stored_bytes)


def saved_work(stored: SealedCommit, saver: str) -> SavedWork:
    """Return what a session's ref says of a commit of work, stored by `saver`."""
    assert stored.ref.locator is not None
    return SavedWork(
        commit_id=CommitId(stored.ref.id),
        locator=stored.ref.locator,
        saver=saver,
        host=stored.commit.provenance.host,
        saved_ns=stored.commit.time_ns,
    )


def record_work(
    workspace: Workspace,
    session: OpenSession,
    work: SavedWork | None,
    *,
    saver: str,
    checkpoints: Sequence[StoredCheckpoint] | None = None,
) -> OpenSession:
    """Have a session's ref name the work that was stored beyond its head, which stays.

    Args:
        workspace: Where it is.
        session: As we know it.
        work: What was stored, or None: there is none beyond the head.
        saver: Of this machine's copy of the session.
        checkpoints: That are in the store, from now on; None: as before.

    Raises:
        MovedError: The session goes on in another place.
        UnavailableError: The store does not answer, or does not say whether the ref was written
            (kind "ref.unknown"); settle_saving finds out.
    """
    if checkpoints is None:
        checkpoints = session.session.checkpoints
    return _write(workspace, session, work, saver, tuple(checkpoints))


def settle_saving(workspace: Workspace, session: OpenSession, *, saver: str) -> OpenSession:
    """Return a session as its ref is, after a save of which nobody knows whether it was done. It
    is written anew, so that what is still on its way cannot land any more.

    Raises:
        MovedError, UnavailableError: As for record_work.
    """
    known = session.session
    return _write(workspace, session, known.saved, saver, known.checkpoints)


def _write(
    workspace: Workspace,
    session: OpenSession,
    work: SavedWork | None,
    saver: str,
    checkpoints: tuple[StoredCheckpoint, ...],
) -> OpenSession:
    name, known = session.session.name, session
    while True:
        new = replace(
            known.record, write_id="", moved_by=known.record.moved_by,
            session=replace(
                known.session, saved=work, lease=session.session.lease,
                left=known.session.left if work is None else None, checkpoints=checkpoints,
            ),
        )  # fmt: skip
        answer = workspace.refs.compare_and_swap(
            RefKind.SESSION, name, expected=known.version, new=new
        )
        if isinstance(answer, Moved):
            assert answer.record.session is not None
            return OpenSession(answer.record.session, answer.record, answer.version)
        found = answer.current
        if answer.version is None or not is_as_left(found, known, saver):
            raise _moved(name, found)
        assert found is not None
        assert found.session is not None
        known = OpenSession(found.session, found, answer.version)


def _moved(name: str, found: RefRecord | None) -> MovedError:
    there = None if found is None or found.session is None else found.session
    holder = None if there is None else there.lease or there.saved
    where = f" on {holder.host}" if holder is not None else ""
    return MovedError(
        f"session {name} goes on in another place{where}, so what is here cannot be stored under "
        "this name. Nothing is lost: your files are in this mount as you left them, which takes no "
        "changes any more. Go on with them in a session of their own: workspacefs fork PATH DIR",
        kind="session.moved",
        session=name,
    )


def load_checkpoint(workspace: Workspace, checkpoint: StoredCheckpoint) -> Commit:
    """Return a durable checkpoint, as a commit.

    Raises:
        IntegrityError: It is missing or damaged.
        UnavailableError: The store does not answer.
    """
    return workspace.store.load_commit(Ref(checkpoint.commit_id, checkpoint.locator))


def load_saved(workspace: Workspace, session: OpenSession) -> tuple[Ref, Commit] | None:
    """Return the work that was saved beyond a session's head, as a commit, or None.

    Raises:
        IntegrityError: It is missing or damaged.
        UnavailableError: The store does not answer.
    """
    saved = session.session.saved
    if saved is None:
        return None
    ref = Ref(saved.commit_id, saved.locator)
    return ref, workspace.store.load_commit(ref)
