"""Sessions as the store knows them: begun from a branch, resumed by name, moved by commits."""

from __future__ import annotations

import secrets
import stat
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


def open_session(
    workspace: Workspace, name: str, *, branch: str, owner: str, lease: Lease | None = None
) -> tuple[OpenSession, bool]:
    """Return the session called `name`, and whether it was begun just now.

    A new one starts where `branch` is, and has `lease`; it is in the store on return.

    Raises:
        NotFoundError: There is no such branch (but an empty workspace has its main).
        RefusedError: The session was deleted.
    """
    check_ref_name(name, what="session")
    for _ in range(_ATTEMPTS):
        found = workspace.refs.find(RefKind.SESSION, name)
        if found is not None:
            record, version = found
            if record.session is None or record.session.state != "open":
                raise RefusedError(
                    f"session {name} was deleted; choose another name", kind="session.deleted"
                )
            return OpenSession(record.session, record, version), False
        new = _new_record(workspace, name, branch=branch, owner=owner, lease=lease)
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
) -> bool:
    """Make a session that stands at the head of another, with `lease`; in the store on return.
    False: there is, or was, a session of that name.
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
    )  # nothing is saved yet: what the parent saved last may be older than the fork
    new = replace(record, write_id="", moved_by=owner, session=session)
    answer = workspace.refs.compare_and_swap(RefKind.SESSION, name, expected=None, new=new)
    return isinstance(answer, Moved)


def take_lease(
    workspace: Workspace, session: OpenSession, lease: Lease, *, steals: bool
) -> OpenSession:
    """Have a session for ourselves: nobody else commits or saves in it from now on.

    Args:
        workspace: Where it is.
        session: As it was found.
        lease: Ours. One of the same saver is ours too: this machine was killed, or is late.
        steals: Whether to take it from whoever has it.

    Raises:
        BusyError: Somebody else has it (kind "session.leased").
        MovedError: It changes all the time.
    """
    name = session.session.name
    for _ in range(_ATTEMPTS):
        held = session.session.lease
        is_ours = held is not None and held.saver == lease.saver
        # On a far store a write of the process before us may still be on its way, as one that gives
        # the lease back. Under another version of the ref it cannot land.
        if is_ours and workspace.backend.is_local:
            return session
        if held is not None and not is_ours and not steals:
            raise held_error(
                name,
                held,
                "If that machine is gone, take the session over with --steal: what it stored last "
                "is there, and should it still be alive, it is told and keeps its files",
            )
        new = replace(session.record, write_id="", session=replace(session.session, lease=lease))
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


def drop_lease(workspace: Workspace, session: OpenSession) -> OpenSession:
    """Let others have a session, if it is as we left it; else do nothing.

    Raises:
        UnavailableError: The store does not answer. Then the lease stays, and is ours.
    """
    new = replace(session.record, write_id="", session=replace(session.session, lease=None))
    answer = workspace.refs.compare_and_swap(
        RefKind.SESSION, session.session.name, expected=session.version, new=new
    )
    return _opened(answer.record, answer.version) if isinstance(answer, Moved) else session


def _opened(record: RefRecord, version: Version) -> OpenSession:
    if record.session is None or record.session.state != "open":
        raise RefusedError("the session was deleted meanwhile", kind="session.deleted")
    return OpenSession(record.session, record, version)


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
    workspace: Workspace, name: str, *, branch: str, owner: str, lease: Lease | None
) -> RefRecord:
    found = workspace.refs.find(RefKind.BRANCH, branch)
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
