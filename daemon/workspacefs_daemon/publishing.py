"""What makes a session's work last or stand elsewhere: commits, forks, pausing.

Each holds `Mounted.committing` while it moves the session.
"""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Final

import trio

from workspacefs.client.unmount import unmount
from workspacefs.errors import (
    NotFoundError,
    RefusedError,
    UsageError,
    WorkspaceError,
)
from workspacefs.names import check_ref_name
from workspacefs.objects.commits import ChangeCounts, Provenance
from workspacefs.workspace.commit import Committed
from workspacefs.workspace.local_record import LocalCheckpoint
from workspacefs_daemon.background.own_mount import asking_own_mount
from workspacefs_daemon.committing import commit_frozen
from workspacefs_daemon.control.server import SendProgress
from workspacefs_daemon.giving_up import giving_up
from workspacefs_daemon.identity import owner_name
from workspacefs_daemon.landing import land, landing_document
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.saving import Saving
from workspacefs_daemon.spec import mount_options
from workspacefs_daemon.telling import telling, telling_of_loss

log = logging.getLogger(__name__)

_TEXT_MAX_CHARS: Final = 1 << 20
_TEXTS: Final = ("agent", "run", "tool_call", "model")
_libc: Final = ctypes.CDLL(None, use_errno=True)


class Publishing:
    """Operations of the control socket; see docs/protocol.md for their arguments and answers."""

    def __init__(self, mounted: Mounted) -> None:
        self._mounted = mounted
        self._saving = Saving(mounted)

    async def commit(self, args: Mapping[str, object], progress: SendProgress) -> dict[str, object]:
        """Make a commit of all changes, and land it if `into` says where."""
        mounted = self._mounted
        check_is_session(mounted)
        message = text_in(args, "message").strip()
        if not message:
            raise UsageError("a commit needs a message that says why (-m)", kind="commit.message")
        into = text_in(args, "into")
        if into:
            check_ref_name(into)
        meta = args.get("meta") or {}
        if not isinstance(meta, dict) or not all(isinstance(v, str) for v in meta.values()):
            raise UsageError("meta must be texts by name", kind="args.invalid")
        provenance = given_provenance(mounted, args)
        began = time.monotonic()
        with telling_of_loss("commit"):
            await mounted.demands.check(provenance, meta)
        async with mounted.committing:
            committed = await self._seal(message, provenance, meta, into, progress)
            landed = await land(mounted, into, provenance, committed) if into else None
        counts = committed.commit.changes if committed else ChangeCounts()
        head = mounted.base
        log.info(
            "commit.published" if committed else "commit.empty",
            extra={
                "session": mounted.name,
                "commit": head.id.hex() if head else None,
                "bytes": committed.summary.stored_bytes if committed else 0,
                "duration_ms": round((time.monotonic() - began) * 1000, 3),
            },
        )
        return {
            "commit": head.id.hex() if head is not None and (committed or landed) else None,
            "is_new": committed is not None,
            **landing_document(into, landed),
            "counts": {
                "added": counts.added,
                "modified": counts.modified,
                "removed": counts.removed,
            },
            "stored_bytes": committed.summary.stored_bytes if committed else 0,
        }

    async def fork(self, args: Mapping[str, object]) -> dict[str, object]:
        """Make sessions that stand where this one does now."""
        mounted = self._mounted
        check_is_session(mounted)
        names = args.get("names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UsageError("names must be a list of texts", kind="args.invalid")
        at_name = text_in(args, "at")
        at = None if not at_name else find_checkpoint(mounted, at_name)
        began = time.monotonic()
        # A commit moves this session to another base; until it has, there is no one place to stand.
        async with mounted.committing:
            await flush_maps(mounted)
            with trio.CancelScope(shield=True):
                forked = await mounted.fork(
                    names, owner=owner_name(), at=at, is_ephemeral=args.get("ephemeral") is True
                )
        log.info(
            "session.forked",
            extra={
                "session": mounted.name,
                "forks": len(forked),
                "layers": len(mounted.overlay.layers),
                "duration_ms": round((time.monotonic() - began) * 1000, 3),
            },
        )
        return {
            "sessions": [fork._asdict() for fork in forked],
            "mount": mount_options(mounted.spec),
        }

    async def _seal(
        self,
        message: str,
        provenance: Provenance,
        meta: Mapping[str, str],
        into: str,
        progress: SendProgress,
    ) -> Committed | None:
        mounted = self._mounted
        await flush_maps(mounted)
        with trio.CancelScope(shield=True), mounted.noting_loss():
            await mounted.settle(moved_by=owner_name())
        if not mounted.has_news():
            return None
        await mounted.chain.freeze()
        return await commit_frozen(mounted, message, provenance, meta, into, progress)

    async def pause(self, args: Mapping[str, object], progress: SendProgress) -> dict[str, object]:
        """Store all work, unmount, and delete the session from this machine."""
        mounted = self._mounted
        check_is_session(mounted)
        names = self._saving.checkpoints_here_alone()
        if names and args.get("drops_checkpoints") is not True:
            raise RefusedError(
                f"session {mounted.name} has checkpoints that are on this machine alone and would "
                f"be lost ({', '.join(names[:8])}); fork what you need of them, then pause with "
                "--drop-checkpoints",
                kind="session.has_checkpoints",
                checkpoints=len(names),
            )
        provenance = own_provenance(mounted)
        async with mounted.committing:
            # Most of it while programs may still work; then what they did meanwhile.
            await flush_maps(mounted)
            async with telling(progress) as note:
                with (
                    trio.CancelScope(shield=True),
                    mounted.noting_loss(),
                    telling_of_loss("pause"),
                ):
                    await self._saving.save(provenance, note)
            with trio.CancelScope(shield=True), giving_up(mounted, "it was being paused"):
                await flush_maps(mounted)
                await mounted.blocking.job(lambda: unmount(mounted.spec.mountpoint))
                # Nobody can write any more. Until all is stored it is kept here too.
                with mounted.noting_loss(), telling_of_loss("pause"):
                    await self._saving.save(provenance)
                mounted.chain.forget_at_close()
        session = mounted.session
        assert session is not None
        saved = session.session.saved
        log.info("session.paused", extra={"session": mounted.name})
        return {
            "session": mounted.name,
            "store_url": mounted.workspace.url,
            "head": None if mounted.base is None else mounted.base.id.hex(),
            "saved": None if saved is None else saved.commit_id.hex(),
        }


async def flush_maps(mounted: Mounted) -> None:
    """Have the kernel write what programs changed through shared maps: it alone has that."""
    if not mounted.is_read_only and not mounted.is_hidden:
        mountpoint = mounted.spec.mountpoint
        await mounted.blocking.job(lambda: sync_mount(mountpoint))


def given_provenance(mounted: Mounted, args: Mapping[str, object]) -> Provenance:
    """Return who asks, as far as they said."""
    who = {name: text_in(args, name) for name in _TEXTS}
    return Provenance(author=owner_name(), session=mounted.name, host=socket.gethostname(), **who)


def own_provenance(mounted: Mounted) -> Provenance:
    """Return who saves when nobody has asked for it: the account of the session."""
    return Provenance(author=owner_name(), session=mounted.name, host=socket.gethostname())


def check_is_session(mounted: Mounted) -> None:
    """Raise RefusedError for a read-only view."""
    if mounted.is_read_only or mounted.session is None:
        raise RefusedError(
            "this mount is a read-only view; mount a session for that", kind="mount.read_only"
        )


def check_is_ours(mounted: Mounted) -> None:
    """Raise RefusedError for a session that goes on in another place."""
    if mounted.is_lost:
        raise RefusedError(
            f"session {mounted.name} goes on in another place, so nothing can be changed here; "
            "workspacefs fork makes a session of what is here",
            kind="session.lost",
        )


def find_checkpoint(mounted: Mounted, name: str) -> LocalCheckpoint:
    """Return a checkpoint of a session.

    Raises:
        NotFoundError: It has none of that name.
    """
    record = mounted.chain.record
    found = record.find_checkpoint(name)
    if found is None:
        names = ", ".join(one.name for one in record.checkpoints) or "none"
        raise NotFoundError(
            f"session {mounted.name} has no checkpoint {name}; there are: {names}",
            kind="checkpoint.absent",
            checkpoint=name,
        )
    return found


def sync_mount(mountpoint: str) -> None:
    """Have the kernel write back everything of our own mount; blocking."""
    with asking_own_mount() as ask:
        ask(lambda: _sync(mountpoint))


def _sync(mountpoint: str) -> None:
    fd = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _libc.syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise WorkspaceError(f"syncfs of {mountpoint}: {os.strerror(number)}", kind="sync")
    finally:
        os.close(fd)


def text_in(args: Mapping[str, object], name: str) -> str:
    """Return a text among arguments; an absent one is empty."""
    value = args.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > _TEXT_MAX_CHARS:
        raise UsageError(f"{name} must be a text", kind="args.invalid")
    return value
