"""Storing uncommitted work of a mounted session beside its head, and its durable checkpoints.

What is stored already, Mounted.saved says. Who saves, and when, is for the callers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import trio

from workspacefs.errors import RefusedError, UnavailableError
from workspacefs.ids import CommitId
from workspacefs.layers.layer import Layer
from workspacefs.objects.commits import Provenance
from workspacefs.objects.refs import Ref
from workspacefs.refs import StoredCheckpoint
from workspacefs.workspace.local_record import LocalCheckpoint, MergeState
from workspacefs.workspace.open_merge import OpenMerge
from workspacefs.workspace.publish import SealedCommit
from workspacefs.workspace.saving import (
    StoredWork,
    record_work,
    saved_work,
    store_work,
)
from workspacefs.workspace.seal import SealProgress
from workspacefs.workspace.sessions import OpenSession
from workspacefs.workspace.writers import notes_of
from workspacefs_daemon.mounted import Mounted


@dataclass(frozen=True, slots=True)
class _Moment:
    """What is being saved."""

    session: OpenSession
    frozen: list[Layer]
    """Newest first."""
    merge: MergeState | None
    news: OpenMerge
    """The same, as a commit says it."""


class Saving:
    """Stores what a session has beyond its head. Keeps nothing itself: any number may be made."""

    def __init__(self, mounted: Mounted) -> None:
        self._mounted = mounted

    async def save(
        self, provenance: Provenance, progress: SealProgress = lambda files, size_bytes: None
    ) -> StoredWork | None:
        """Store all uncommitted work as it is now, so that the session can be resumed elsewhere;
        durable in the store on return. None: that is so already. The caller holds `committing`.

        Raises:
            MovedError: The session goes on in another place.
            UnavailableError: The store does not answer.
        """
        moment = await self._begin(provenance)
        if moment is None:
            return None
        stored = await self._store(moment, provenance, progress)
        await self._record(moment, stored)
        return stored

    async def save_beside(
        self, provenance: Provenance, flush: Callable[[], Awaitable[None]]
    ) -> StoredWork | None:
        """Like save(), while forks and commits go on: `committing` is taken twice, for a moment.
        None also: a commit made since then has it all.

        Args:
            provenance: Who saves.
            flush: Called first, with `committing` held.
        """
        mounted = self._mounted
        async with mounted.committing:
            await flush()
            with trio.CancelScope(shield=True), mounted.noting_loss():
                moment = await self._begin(provenance)
        if moment is None:
            return None
        with trio.CancelScope(shield=True):
            stored = await self._store(moment, provenance, lambda files, size_bytes: None)
            async with mounted.committing:
                if mounted.session is None or mounted.session.head != moment.session.head:
                    return None
                with mounted.noting_loss():
                    await self._record(moment, stored)
        return stored

    async def store_beside(self, provenance: Provenance) -> Ref | None:
        """Store all frozen work and what is merged, for a merge; no ref names it. None: there is
        nothing beyond the head. The caller holds `committing`.

        Raises:
            UnavailableError: The store does not answer.
        """
        moment = await self._moment()
        stored = await self._store(moment, provenance, lambda files, size_bytes: None)
        return None if stored.work is None else Ref(stored.work.commit_id, stored.work.locator)

    async def record_stored(self, stored: SealedCommit) -> None:
        """Have the session's ref name a commit of work that the mount shows now, with nothing
        frozen or merged beyond it. The caller holds `committing`.

        Raises:
            MovedError, UnavailableError: As for save().
        """
        moment = await self._moment()
        work = saved_work(stored, self._mounted.chain.record.saver)
        await self._record(moment, StoredWork(work, stored.summary.stored_bytes))

    async def store_checkpoint(
        self,
        checkpoint: LocalCheckpoint,
        provenance: Provenance,
        progress: SealProgress = lambda files, size_bytes: None,
    ) -> None:
        """Store a checkpoint that was made just now; it outlives this machine on return. The
        caller holds `committing`.

        Raises:
            MovedError, UnavailableError: As for save().
            RefusedError: There is nothing in the session.
        """
        moment = await self._moment()
        session = moment.session
        stored = await self._store(moment, provenance, progress)
        at = stored.work or session.head
        if at is None:
            raise RefusedError(
                f"session {self._mounted.name} has nothing in it yet that could be stored",
                kind="checkpoint.empty",
            )
        commit_id = CommitId(at.id) if isinstance(at, Ref) else at.commit_id
        assert at.locator is not None
        made = StoredCheckpoint(
            name=checkpoint.name, message=checkpoint.message, created_ns=checkpoint.created_ns,
            commit_id=commit_id, locator=at.locator,
        )  # fmt: skip
        await self._record(moment, stored, (*session.session.checkpoints, made))

    async def drop_stored_checkpoint(self, name: str) -> None:
        """Forget a checkpoint that is in the store; the caller holds `committing`.

        Raises:
            MovedError, UnavailableError: As for save().
        """
        mounted, session = self._mounted, self._mounted.session
        assert session is not None
        kept = [one for one in session.session.checkpoints if one.name != name]
        saver = mounted.chain.record.saver
        mounted.session = await mounted.blocking.job(
            lambda: record_work(
                mounted.workspace, session, session.session.saved, saver=saver, checkpoints=kept
            )
        )

    def checkpoints_here_alone(self) -> list[str]:
        """Return the names of checkpoints that somebody made and that the store does not have."""
        session = self._mounted.session
        stored = () if session is None else session.session.checkpoints
        durable = {(one.name, one.created_ns) for one in stored}
        return [
            one.name
            for one in self._mounted.chain.record.checkpoints
            if not one.is_automatic and (one.name, one.created_ns) not in durable
        ]

    async def _begin(self, provenance: Provenance) -> _Moment | None:
        mounted = self._mounted
        await mounted.settle(moved_by=provenance.author)
        await mounted.chain.freeze_changes()
        if mounted.saved.is_all(mounted.overlay.frozen, mounted.chain.record.merge):
            return None
        return await self._moment()

    async def _moment(self) -> _Moment:
        mounted, session = self._mounted, self._mounted.session
        assert session is not None
        frozen, merge = list(mounted.overlay.frozen), mounted.chain.record.merge
        return _Moment(session, frozen, merge, await mounted.load_open_merge())

    async def _store(
        self, moment: _Moment, provenance: Provenance, progress: SealProgress
    ) -> StoredWork:
        mounted = self._mounted
        contents = mounted.saved.contents  # a commit puts others in their place
        with mounted.viewed(moment.frozen) as pending:
            return await mounted.blocking.job(
                lambda: store_work(
                    mounted.workspace,
                    moment.session,
                    pending,
                    saver=mounted.chain.record.saver,
                    provenance=provenance,
                    contents=contents,
                    find_stored=mounted.find_stored,
                    merge=moment.news,
                    notes=notes_of(pending),
                    progress=progress,
                )
            )

    async def _record(
        self,
        moment: _Moment,
        stored: StoredWork,
        checkpoints: Sequence[StoredCheckpoint] | None = None,
    ) -> None:
        mounted = self._mounted
        saver = mounted.chain.record.saver
        try:
            mounted.session = await mounted.blocking.job(
                lambda: record_work(
                    mounted.workspace,
                    moment.session,
                    stored.work,
                    saver=saver,
                    checkpoints=checkpoints,
                )
            )
        except UnavailableError as exc:
            mounted.saved.is_unclear = exc.kind == "ref.unknown"
            raise
        mounted.saved.note(moment.frozen, moment.merge)
