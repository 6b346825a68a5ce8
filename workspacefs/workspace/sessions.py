"""Sessions as the store knows them: begun from a branch, resumed by name, moved by commits."""

from __future__ import annotations

import secrets
import stat
from dataclasses import dataclass

from workspacefs.backend.contract import Version
from workspacefs.errors import NotFoundError, RefusedError
from workspacefs.ids import ROOT_FILE_ID
from workspacefs.names import check_ref_name
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.objects.refs import Ref
from workspacefs.refs import Moved, RefKind, RefRecord, SessionRecord
from workspacefs.workspace.workspace import DEFAULT_BRANCH, Workspace


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
    workspace: Workspace, name: str, *, branch: str, owner: str
) -> tuple[OpenSession, bool]:
    """Return the session called `name`, and whether it was begun just now.

    A new one starts where `branch` is; it is in the store on return.

    Raises:
        NotFoundError: There is no such branch (but an empty workspace has its main).
        RefusedError: The session was deleted.
    """
    check_ref_name(name, what="session")
    for _ in range(8):
        found = workspace.refs.find(RefKind.SESSION, name)
        if found is not None:
            record, version = found
            if record.session is None or record.session.state != "open":
                raise RefusedError(
                    f"session {name} was deleted; choose another name", kind="session.deleted"
                )
            return OpenSession(record.session, record, version), False
        new = _new_record(workspace, name, branch=branch, owner=owner)
        answer = workspace.refs.compare_and_swap(RefKind.SESSION, name, expected=None, new=new)
        if isinstance(answer, Moved):
            assert new.session is not None
            return OpenSession(new.session, answer.record, answer.version), True
    raise RefusedError(f"session {name} is begun and deleted again and again", kind="session.busy")


def _new_record(workspace: Workspace, name: str, *, branch: str, owner: str) -> RefRecord:
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
