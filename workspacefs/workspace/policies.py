"""When a session's policy fires, and how a policy is changed.

The decisions are functions of what they are given: they read no clock and no store. A wall clock
that is wrong makes a policy fire early or late, and nothing else.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from workspacefs.errors import MovedError, NotFoundError
from workspacefs.refs import Moved, RefKind, RefRecord, SessionPolicy
from workspacefs.workspace.sessions import OpenSession, check_renamed
from workspacefs.workspace.workspace import Workspace

_ATTEMPTS: Final = 8
_NS: Final = 1_000_000_000


class Pause(enum.Enum):
    """Why a mounted session pauses by itself."""

    IDLE = "idle"
    TTL = "ttl"


class Stillness:
    """Since when nothing has happened, as far as a count of what happens tells."""

    def __init__(self, *, count: int, now_s: float) -> None:
        self._count = count
        self._since_s = now_s

    def seconds(self, *, count: int, now_s: float) -> float:
        """Return how long it has been still, at least: what happened since the last look may have
        happened just now.
        """
        if count != self._count:
            self._count, self._since_s = count, now_s
        return now_s - self._since_s


def pause_due(policy: SessionPolicy, *, still_s: float, mounted_s: float) -> Pause | None:
    """Return why a session is to pause now, or None.

    Args:
        policy: The session's.
        still_s: How long no program has asked for anything.
        mounted_s: How long it has been mounted.
    """
    if policy.ttl_s is not None and mounted_s >= policy.ttl_s:
        return Pause.TTL
    if policy.idle_pause_s is not None and still_s >= policy.idle_pause_s:
        return Pause.IDLE
    return None


class Step(enum.Enum):
    """What is done with a session that nobody has mounted; the value is the word for people."""

    ARCHIVE = "archive"
    DELETE = "delete"


def step_due(record: RefRecord, *, now_ns: int) -> Step | None:
    """Return what a session's policy asks for now, or None.

    Args:
        record: What its ref holds. Times are counted from when that was written.
        now_ns: Wall time here.
    """
    session = record.session
    if session is None or session.is_deleted or session.renamed_from or session.lease is not None:
        return None
    age_s, policy = (now_ns - record.moved_at_ns) / _NS, session.policy
    if policy.delete_after_s is not None and age_s >= policy.delete_after_s:
        return Step.DELETE
    is_open = session.state == "open"
    if is_open and policy.archive_after_s is not None and age_s >= policy.archive_after_s:
        return Step.ARCHIVE
    return None


def find_session(workspace: Workspace, name: str) -> OpenSession:
    """Return a session that was not deleted.

    Raises:
        NotFoundError: There is none of that name.
        RefusedError: Renaming another one to it was not finished.
    """
    found = workspace.refs.find(RefKind.SESSION, name)
    session = None if found is None else found[0].session
    if found is None or session is None or session.is_deleted:
        raise NotFoundError(
            f"there is no session {name} in {workspace.url}; workspacefs session list "
            f"{workspace.url} names those that there are",
            kind="session.absent",
            session=name,
        )
    check_renamed(workspace, session)
    return OpenSession(session, *found)


def change_policy(workspace: Workspace, name: str, changes: Mapping[str, object]) -> OpenSession:
    """Change some members of a session's policy, whoever has it mounted; durable on return.

    Raises:
        NotFoundError: There is no such session.
        UsageError: A policy cannot say that.
        MovedError: The session is moved by others all the time.
    """
    for _ in range(_ATTEMPTS):
        found = find_session(workspace, name)
        policy = found.session.policy.changed(changes)
        if policy == found.session.policy:
            return found
        answer = workspace.refs.compare_and_swap(
            RefKind.SESSION, name, expected=found.version, new=found.changed(policy=policy)
        )
        if isinstance(answer, Moved):
            assert answer.record.session is not None
            return OpenSession(answer.record.session, answer.record, answer.version)
    raise MovedError(
        f"session {name} is moved by others all the time; try again", kind="session.busy"
    )
