"""Making sessions that begin where another one stands: records over the same frozen layers."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from workspacefs.errors import BusyError
from workspacefs.names import check_ref_name
from workspacefs.statedir import StateDir
from workspacefs.workspace.local import LocalSession
from workspacefs.workspace.local_record import IdRange, LocalRecord, new_saver
from workspacefs.workspace.sessions import OpenSession, begin_fork
from workspacefs.workspace.workspace import Workspace
from workspacefs_daemon.identity import own_lease
from workspacefs_daemon.spares import SpareLayers

_DRAWN_BYTES: Final = 3
_AT_ONCE: Final = 16


class ForkedSession(NamedTuple):
    """A session that was just made; nobody has it mounted yet."""

    session: str
    session_id: str


@dataclass(frozen=True, slots=True)
class ForkParent:
    """The session that others are made from."""

    workspace: Workspace
    state_dir: str
    name: str
    session: OpenSession
    is_ephemeral: bool
    """Whether those that are made shall be; the rest of their policy is the parent's."""
    spares: SpareLayers
    """Layers for them."""


def begin_forks(
    parent: ForkParent,
    frozen: LocalRecord,
    wanted: Sequence[tuple[str, IdRange | None]],
    *,
    owner: str,
) -> list[ForkedSession]:
    """Make sessions over the layers of `frozen`; they survive power loss on return.

    Args:
        parent: Where they come from. Its process keeps the layers until this returns.
        frozen: Its record, with the layers that nobody changes any more.
        wanted: Name ("" draws one) and file ids of each.
        owner: Who forks.

    Raises:
        BusyError: There is a session of such a name (kind "session.exists"); others of
            `wanted` may have been made.
        BusyError: One of such a name is mounted on this machine.
    """
    begin = partial(_begin, parent, frozen, owner)
    if parent.workspace.backend.is_local or len(wanted) == 1:
        return [begin(name, ids) for name, ids in wanted]
    with ThreadPoolExecutor(_AT_ONCE) as pool:  # each waits for a far store
        return list(pool.map(begin, *zip(*wanted, strict=True)))


def _begin(
    parent: ForkParent, frozen: LocalRecord, owner: str, name: str, ids: IdRange | None
) -> ForkedSession:
    name = name or f"{parent.name}.{secrets.token_hex(_DRAWN_BYTES)}"
    check_ref_name(name, what="session")
    session_id = secrets.token_hex(8)
    workspace = parent.workspace
    local = LocalSession.lock(StateDir(parent.state_dir), workspace.id, name)
    try:
        if local.load() is not None:
            raise _exists(name)
        # The record goes first: a session that the store knows and that has no layers here would
        # come up without the work.
        saver = new_saver()
        record = replace(
            frozen,
            session_id=session_id,
            own_ids=ids,
            given_ids=None,
            saver=saver,
            checkpoints=(),
            begun_from=None,
        )
        record = _save_record(local, record, parent.spares)
        if not begin_fork(
            workspace,
            parent.session,
            name,
            session_id=session_id,
            owner=owner,
            lease=own_lease(saver, now_ns=workspace.clock.now_ns()),
            is_ephemeral=parent.is_ephemeral,
        ):
            local.forget(record)
            raise _exists(name)
    finally:
        local.close()
    return ForkedSession(name, session_id)


def _save_record(local: LocalSession, record: LocalRecord, spares: SpareLayers) -> LocalRecord:
    with local.pool.holding():
        record = record.with_live(spares.take(local))
        local.save(record)
    return record


def _exists(name: str) -> BusyError:
    return BusyError(
        f"there is, or was, a session {name} already; choose another name",
        kind="session.exists",
        session=name,
    )
