"""The end of a mount that nobody asked for: the session pauses because it is idle, or because its
time is over. And what an end means for a session that shall not outlive its mount.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

import trio

from workspacefs.client.unmount import unmount
from workspacefs.errors import (
    BusyError,
    NotFoundError,
    RefusedError,
    UsageError,
    WorkspaceError,
)
from workspacefs.refs.policy import NO_POLICY, SessionPolicy
from workspacefs.workspace.leftovers import note_ephemeral
from workspacefs.workspace.policies import Pause, Stillness, change_policy, pause_due
from workspacefs.workspace.session_deletion import end_ephemeral
from workspacefs.workspace.sessions import is_as_left
from workspacefs_daemon.identity import owner_name
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.publishing import check_is_session, flush_maps, own_provenance
from workspacefs_daemon.saving import Saving

log = logging.getLogger(__name__)

_NO_USE: Final = frozenset(("statfs", "forget", "getattr", "getxattr", "opendir", "releasedir"))
"""Messages that df, monitors, the kernel's memory and our own syncfs cause as well as programs.
Whoever works with files causes others too."""

_DELETION_S: Final = 10.0
"""Longest time that an unmount waits for the store to hear that an ephemeral session ended."""


class Retirement:
    """When a mounted session pauses by itself, and how. Made and used on the event loop."""

    def __init__(self, mounted: Mounted, counts: Mapping[str, int]) -> None:
        """Watch a mount that begins now; `counts` are messages of the kernel by name."""
        self._mounted = mounted
        self._saving = Saving(mounted)
        self._counts = counts
        self._began_s = trio.current_time()
        self._stillness = Stillness(count=self._uses(), now_s=self._began_s)
        self._pauses = False
        self.put_off: str | None = None
        """Why the session goes on though it was due to pause."""

    @property
    def policy(self) -> SessionPolicy:
        """The session's policy, as far as this mount has heard."""
        session = self._mounted.session
        return NO_POLICY if session is None else session.session.policy

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Write down, before the mount is made within the block, what a kill must not undo."""
        chain = self._mounted.chain
        if chain.is_read_only:
            yield
            return
        note_ephemeral(chain.local, is_so=self.policy.ephemeral)
        try:
            yield
        except BaseException:
            note_ephemeral(chain.local, is_so=False)  # it was never mounted, so it has not ended
            raise

    def check_may_pause(self) -> None:
        """Refuse to pause an ephemeral session when somebody asks for it: it would be deleted."""
        if self.policy.ephemeral:
            raise RefusedError(
                f"session {self._mounted.name} is ephemeral: it is deleted when its mount ends. To "
                "keep it, first: workspacefs session set "
                f"{self._mounted.spec.mountpoint} {self._mounted.name} --no-ephemeral",
                kind="session.ephemeral",
            )

    def _uses(self) -> int:
        return sum(count for name, count in self._counts.items() if name not in _NO_USE)

    def due(self) -> Pause | None:
        """Return why the session is to pause now, or None."""
        now_s = trio.current_time()
        still_s = self._stillness.seconds(count=self._uses(), now_s=now_s)
        if self._mounted.is_lost:
            return None  # nothing can be stored: only this machine has what is here
        return pause_due(self.policy, still_s=still_s, mounted_s=now_s - self._began_s)

    async def pause(self) -> None:
        """Store all work and unmount, if it is still due then; finish() does the rest. A session
        whose time is over is taken out of sight though programs use it, and goes on for them.

        Raises:
            BusyError: Programs use it, or have begun to.
            RefusedError: It has checkpoints, which would be lost.
            MovedError: The session goes on in another place.
            UnavailableError: The store does not answer.
        """
        mounted = self._mounted
        is_kept = not self.policy.ephemeral
        if is_kept:
            self._check_checkpoints()
            # Most of it while commits and forks go on; then what was done meanwhile.
            await self._saving.save_beside(own_provenance(mounted), partial(flush_maps, mounted))
        async with mounted.committing:
            if is_kept:
                await flush_maps(mounted)
                with trio.CancelScope(shield=True), mounted.noting_loss():
                    await self._saving.save(own_provenance(mounted))
            why = self.due()
            if why is None:
                raise BusyError("programs have gone on meanwhile", kind="session.in_use")
            if is_kept:
                self._check_checkpoints()  # one may have been made while we waited
            with trio.CancelScope(shield=True):
                await self._unmount(is_forced=why is Pause.TTL)
        log.info("session.pausing", extra={"session": mounted.name, "why": why.value})

    def _check_checkpoints(self) -> None:
        names = self._saving.checkpoints_here_alone()
        if names:
            raise RefusedError(
                f"it has checkpoints that are on this machine alone ({', '.join(names[:8])}); fork "
                "what you need of them and delete them, or pause with --drop-checkpoints",
                kind="session.has_checkpoints",
                checkpoints=len(names),
            )

    async def _unmount(self, *, is_forced: bool) -> None:
        mounted, mountpoint = self._mounted, self._mounted.spec.mountpoint
        self._pauses = True  # first: the last answer to the kernel may end the mount at once
        try:
            await mounted.blocking.job(lambda: unmount(mountpoint))
        except BusyError:
            if not is_forced:
                self._pauses = False
                raise
            mounted.is_hidden = True
            with suppress(NotFoundError):
                await mounted.blocking.job(lambda: unmount(mountpoint, is_lazy=True))
        except BaseException:
            self._pauses = False
            raise

    async def finish(self) -> None:
        """Do what is left to do when the mount is gone, and nothing is served any more."""
        mounted = self._mounted
        if mounted.is_lost:
            return
        if self.policy.ephemeral:
            await self._delete()
        elif self._pauses and not self._saving.checkpoints_here_alone():
            await self._store_rest()

    async def _store_rest(self) -> None:
        mounted = self._mounted
        try:
            async with mounted.committing:
                with mounted.noting_loss():
                    await self._saving.save(own_provenance(mounted))
        except WorkspaceError as exc:
            # What the store lacks is here, and is found by the next mount of the session.
            log.warning("session.kept_here", extra={"kind": exc.kind, "reason": str(exc)})
        else:
            mounted.chain.forget_at_close()
            log.info("session.paused", extra={"session": mounted.name})

    async def _delete(self) -> None:
        mounted, session = self._mounted, self._mounted.session
        assert session is not None
        is_gone = False
        with trio.move_on_after(_DELETION_S):
            try:
                is_gone = await mounted.blocking.errand(
                    lambda: end_ephemeral(mounted.workspace, session, ended_by=owner_name())
                )
            except WorkspaceError as exc:
                log.warning("session.not_deleted", extra={"kind": exc.kind, "reason": str(exc)})
            else:
                if not is_gone:
                    return
        # With the lease goes who may delete it: if the store has not answered, we still may.
        mounted.session = None
        if is_gone:
            mounted.chain.forget_at_close()
            log.info("session.deleted", extra={"session": mounted.name, "why": "ephemeral"})

    async def change(self, args: Mapping[str, object]) -> dict[str, object]:
        """Change the session's policy; an operation of the control socket."""
        mounted = self._mounted
        check_is_session(mounted)
        changes = args.get("changes")
        if not isinstance(changes, dict):
            raise UsageError("changes must be an object", kind="args.invalid")
        async with mounted.committing:
            with trio.CancelScope(shield=True):
                found = await mounted.blocking.job(
                    partial(change_policy, mounted.workspace, mounted.name, changes)
                )
                known = mounted.session
                assert known is not None
                # Else a commit is unclear, or we were robbed: whoever writes next finds out.
                if is_as_left(found.record, known, mounted.chain.record.saver):
                    mounted.session = found
                is_ephemeral = found.session.policy.ephemeral
                await mounted.blocking.job(
                    lambda: note_ephemeral(mounted.chain.local, is_so=is_ephemeral)
                )
        return {"session": mounted.name, "policy": found.session.policy.document()}
