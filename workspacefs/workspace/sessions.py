"""Sessions as the store knows them: begun from a branch, resumed by name, moved by commits."""

from __future__ import annotations

import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from workspacefs.backend.contract import Version
from workspacefs.errors import BusyError, MovedError, NotFoundError, RefusedError
from workspacefs.ids import ROOT_FILE_ID, CommitId
from workspacefs.names import check_ref_name
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.objects.refs import Ref
from workspacefs.refs import Lease, Moved, RefKind, RefRecord, SessionRecord
from workspacefs.refs.policy import NO_POLICY, SessionPolicy
from workspacefs.workspace.workspace import DEFAULT_BRANCH, Workspace

_ATTEMPTS: Final = 8


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session and the value of its ref that we know."""

    session: SessionRecord
    record: RefRecord
    version: Version

    @property
    def head(self) -> Ref | None:
        """Its newest commit: its own, or the one that it started from."""
        return self.record.ref()

    def changed(self, **members: object) -> RefRecord:
        """Return what its ref shall hold when some members of the session change."""
        session = replace(self.session, **members)  # type: ignore[arg-type]  # members by name
        return replace(self.record, write_id="", session=session)


def open_session(
    workspace: Workspace,
    name: str,
    *,
    branch: str,
    owner: str,
    lease: Lease | None = None,
    policy: SessionPolicy = NO_POLICY,
) -> tuple[OpenSession, bool]:
    """Return the session called `name`, and whether it was begun just now.

    A new one starts where `branch` is, and has `lease` and `policy`; it is in the store on return.

    Raises:
        NotFoundError: There is no such branch (but an empty workspace has its main).
        RefusedError: The session was deleted, or is just being renamed.
    """
    check_ref_name(name, what="session")
    for _ in range(_ATTEMPTS):
        found = workspace.refs.find(RefKind.SESSION, name)
        if found is not None:
            session = _opened(*found)
            check_renamed(workspace, session.session)
            return session, False
        new = _new_record(workspace, name, branch=branch, owner=owner, lease=lease, policy=policy)
        answer = workspace.refs.compare_and_swap(RefKind.SESSION, name, expected=None, new=new)
        if isinstance(answer, Moved):
            assert new.session is not None
            return OpenSession(new.session, answer.record, answer.version), True
    raise RefusedError(f"session {name} is begun and deleted again and again", kind="session.busy")


def begin_fork(
    workspace: Workspace,
    parent: OpenSession,
    name: str,
    *,
    session_id: str,
    owner: str,
    lease: Lease,
    is_ephemeral: bool = False,
) -> bool:
    """Make a session that stands at the head of another, with `lease` and the policy of that one,
    but for what `is_ephemeral` says; in the store on return. False: there is, or was, a session of
    that name.
    """
    record = parent.record
    session = SessionRecord(
        name=name,
        session_id=session_id,
        owner=owner,
        base=record.commit_id,
        branch=parent.session.branch,
        created_ns=workspace.clock.now_ns(),
        lineage=(*parent.session.lineage, parent.session.session_id),
        lease=lease,
        policy=replace(parent.session.policy, ephemeral=is_ephemeral),
    )  # nothing is saved yet: what the parent saved last may be older than the fork
    new = replace(record, write_id="", moved_by=owner, session=session)
    answer = workspace.refs.compare_and_swap(RefKind.SESSION, name, expected=None, new=new)
    return isinstance(answer, Moved)


def check_renamed(workspace: Workspace, session: SessionRecord) -> None:
    """Refuse a session that does not stand in the place of another one yet; takes a request only
    if a rename may not be finished.
    """
    if not session.renamed_from:
        return
    found = workspace.refs.find(RefKind.SESSION, session.renamed_from)
    if found is None or found[0].session is None or is_in_place(session, found[0].session):
        return
    raise RefusedError(
        f"session {session.name} is not there yet: renaming {session.renamed_from} was not "
        f"finished. Mount {session.renamed_from}, which has all of it, or finish with: workspacefs "
        f"session rename URL {session.renamed_from} {session.name}",
        kind="session.renaming",
        session=session.name,
    )


def is_in_place(session: SessionRecord, old: SessionRecord) -> bool:
    """Tell whether a renamed session stands in the place of the one it was: that leads to it."""
    return old.is_deleted and old.renamed_to == session.name


def take_lease(
    workspace: Workspace,
    session: OpenSession,
    lease: Lease,
    *,
    steals: bool,
    changes: Mapping[str, object] | None = None,
) -> OpenSession:
    """Have a session for ourselves: nobody else commits or saves in it from now on. One that was
    archived is not any more.

    Args:
        workspace: Where it is.
        session: As it was found.
        lease: Ours. One of the same saver is ours too: this machine was killed, or is late.
        steals: Whether to take it from whoever has it.
        changes: What its policy shall say from now on, by member.

    Raises:
        BusyError: Somebody else has it (kind "session.leased").
        MovedError: It changes all the time.
    """
    name = session.session.name
    for _ in range(_ATTEMPTS):
        held = session.session.lease
        is_ours = held is not None and held.saver == lease.saver
        left = session.session.left
        wanted = replace(
            session.session,
            state="open",
            renamed_from="",
            left=None if left is not None and left.saver == lease.saver else left,
            policy=session.session.policy.changed(changes or {}),
        )
        # On a far store a write of the process before us may still be on its way, as one that gives
        # the lease back. Under another version of the ref it cannot land.
        if is_ours and workspace.backend.is_local and wanted == session.session:
            return session
        if held is not None and not is_ours and not steals:
            raise held_error(
                name,
                held,
                "If that machine is gone, take the session over with --steal: what it stored last "
                "is there, and should it still be alive, it is told and keeps its files",
            )
        new = replace(session.record, write_id="", session=replace(wanted, lease=lease))
        answer = workspace.refs.compare_and_swap(
            RefKind.SESSION, name, expected=session.version, new=new
        )
        if isinstance(answer, Moved):
            return _opened(answer.record, answer.version)
        if answer.current is None or answer.version is None:
            break
        session = _opened(answer.current, answer.version)
    raise MovedError(
        f"session {name} is moved by others all the time", kind="session.busy", session=name
    )


def held_error(name: str, held: Lease, advice: str) -> BusyError:
    """Return the error that says who has a session."""
    since = datetime.fromtimestamp(held.since_ns / 1e9, UTC)
    return BusyError(
        f"session {name} is mounted on {held.host} since {since:%Y-%m-%d %H:%M:%S} UTC. {advice}",
        kind="session.leased",
        session=name,
        host=held.host,
    )


def drop_lease(workspace: Workspace, session: OpenSession, *, has_work: bool) -> OpenSession:
    """Let others have a session, if we have it still; else do nothing.

    Args:
        workspace: Where it is.
        session: As we know it, with our lease.
        has_work: Whether there may be work on this machine that the store does not have.

    Raises:
        UnavailableError: The store does not answer. Then the lease stays, and is ours.
    """
    lease, known = session.session.lease, session
    while True:
        left = lease if has_work else known.session.left
        new = replace(
            known.record, write_id="", session=replace(known.session, lease=None, left=left)
        )
        answer = workspace.refs.compare_and_swap(
            RefKind.SESSION, session.session.name, expected=known.version, new=new
        )
        found = answer.record if isinstance(answer, Moved) else answer.current
        if found is None or found.session is None or answer.version is None:
            return session
        there = found.session
        if isinstance(answer, Moved):
            return OpenSession(there, found, answer.version)
        # That very lease, not just one of ours: the session may be mounted here again by now.
        if there.session_id != session.session.session_id or there.lease != lease:
            return session
        known = OpenSession(there, found, answer.version)


def is_taken(there: SessionRecord, ours: SessionRecord) -> bool:
    """Tell whether somebody else has a session now that we had as `ours`."""
    if there.session_id != ours.session_id or there.is_deleted:
        return True
    held = there.lease
    return held is not None and (ours.lease is None or ours.lease.saver != held.saver)


def is_as_left(found: RefRecord | None, session: OpenSession, saver: str) -> bool:
    """Tell whether a ref that is not as we know it was changed only in what is no business of a
    commit or save: its policy was, or a write of ours got no answer.

    Args:
        found: What it holds now.
        session: As we know it.
        saver: Ours.
    """
    if found is None or found.session is None or found.commit_id != session.record.commit_id:
        return False
    there = found.session
    if there.session_id != session.session.session_id or there.is_deleted:
        return False
    if there.lease is not None:
        return there.lease.saver == saver  # nobody else saves while it is ours
    # Somebody had it meanwhile, and gave it back: was anything stored?
    saved = there.saved
    return saved is None or saved.saver == saver or saved == session.session.saved


def _opened(record: RefRecord, version: Version) -> OpenSession:
    session = record.session
    if session is None or session.is_deleted:
        named = "" if session is None else session.name
        renamed = "" if session is None else session.renamed_to
        told = f"is called {renamed} now" if renamed else "was deleted; choose another name"
        raise RefusedError(f"session {named} {told}", kind="session.deleted", session=named)
    return OpenSession(session, record, version)


def session_at(workspace: Workspace, session: OpenSession, base: Ref | None) -> OpenSession:
    """Return a session as it was when `base` was its head, for forks to begin from.

    Raises:
        IntegrityError, UnavailableError: The commit cannot be read.
    """
    if base == session.head:
        return session
    record = RefRecord()
    if base is not None:
        body, locators = workspace.store.load_commit_record(base)
        record = RefRecord(
            commit_id=CommitId(base.id),
            commit_body=body,
            commit_locators=locators,
            locator=base.locator,
        )
    return replace(session, record=record)


def _new_record(
    workspace: Workspace,
    name: str,
    *,
    branch: str,
    owner: str,
    lease: Lease | None,
    policy: SessionPolicy,
) -> RefRecord:
    found = workspace.refs.find_live(RefKind.BRANCH, branch)
    if found is None and branch != DEFAULT_BRANCH:
        names = ", ".join(workspace.refs.iter_names(RefKind.BRANCH)) or "none"
        raise NotFoundError(
            f"there is no branch {branch} in {workspace.url} to start from; there are: {names}",
            kind="branch.absent",
            branch=branch,
        )
    start = found[0] if found is not None else RefRecord()
    session = SessionRecord(
        name=name,
        session_id=secrets.token_hex(8),
        owner=owner,
        base=start.commit_id,
        branch=branch,
        created_ns=workspace.clock.now_ns(),
        lease=lease,
        policy=policy,
    )
    return RefRecord(
        commit_id=start.commit_id,
        commit_body=start.commit_body,
        commit_locators=start.commit_locators,
        locator=start.locator,
        moved_by=owner,
        session=session,
    )


def root_of(
    workspace: Workspace, base: Ref | None, *, created_ns: int, uid: int, gid: int
) -> Entry:
    """Return the root directory of a commit, or of a workspace that has none yet."""
    if base is not None:
        return workspace.store.load_commit(base).root
    return Entry(
        b"", stat.S_IFDIR | 0o755, uid, gid, 0, created_ns, created_ns, ROOT_FILE_ID, 2, Subtree()
    )
