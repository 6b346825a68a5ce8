"""Bringing changes of others into a mounted session while programs work in it.

What the mount shows, uncommitted work included, is one side of the merge; the result is shown as a
restore shows a state: see docs/design/0010-merging.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final

import trio

from workspacefs.errors import UnavailableError, UsageError, WorkspaceError
from workspacefs.layers.layer import Layer
from workspacefs.merge.documents import conflict_document
from workspacefs.merge.incoming import CommitsOf, Forward, Incoming, Ours, Plan
from workspacefs.merge.reverting import CommitsBy, OneCommit
from workspacefs.objects.commits import ChangeCounts, Provenance
from workspacefs.objects.entry import Entry
from workspacefs.objects.refs import Ref
from workspacefs.workspace.commit import adopt_commit
from workspacefs.workspace.local_record import MergeState
from workspacefs.workspace.publish import SealedCommit
from workspacefs_daemon.checkpoints import Checkpoints
from workspacefs_daemon.committing import commit_frozen
from workspacefs_daemon.control.server import SendProgress
from workspacefs_daemon.identity import owner_name
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.publishing import (
    check_is_ours,
    check_is_session,
    flush_maps,
    given_provenance,
    text_in,
)
from workspacefs_daemon.restore_targets import OnTop
from workspacefs_daemon.restoring import Overtaken, Restored, Restoring, Safety, TellKernel
from workspacefs_daemon.saving import Saving
from workspacefs_daemon.watchers import tell_watchers, watched_paths

log = logging.getLogger(__name__)

_FREE_ROUNDS: Final = 3
"""So often the merge is done again for what programs changed meanwhile; then they wait for it."""


@dataclass(frozen=True, slots=True)
class _Round:
    """One try."""

    live: Layer
    """On top of what is merged."""
    ours: Ours
    ours_root: Entry
    plan: Plan | Forward


class MergingIn:
    """Operations of the control socket; see docs/protocol.md for their arguments and answers."""

    def __init__(self, mounted: Mounted, checkpoints: Checkpoints, tell_kernel: TellKernel) -> None:
        self._mounted = mounted
        self._checkpoints = checkpoints
        self._restoring = Restoring(mounted, tell_kernel)
        self._saving = Saving(mounted)

    async def merge_from(
        self, args: Mapping[str, object], progress: SendProgress
    ) -> dict[str, object]:
        """Bring the commits of a revision into the session."""
        mounted = self._mounted
        check_is_session(mounted)
        rev = text_in(args, "from")
        if not rev:
            session = mounted.session
            assert session is not None
            rev = session.session.branch
        message = text_in(args, "message").strip()

        def find() -> Incoming:
            return CommitsOf(mounted.resolve(rev), rev, into=mounted.name, message=message)

        return await self.bring(find, given_provenance(mounted, args), progress)

    async def revert(self, args: Mapping[str, object], progress: SendProgress) -> dict[str, object]:
        """Take back what a commit changed, or all commits of a run or of a session did."""
        mounted = self._mounted
        check_is_session(mounted)
        rev, message = text_in(args, "rev"), text_in(args, "message").strip()
        run, session = text_in(args, "of_run"), text_in(args, "of_session")
        if not (rev or run or session):
            raise UsageError("revert needs a revision, a run or a session", kind="args.invalid")

        def find() -> Incoming:
            if rev:
                return OneCommit(mounted.resolve(rev), rev, message=message)
            return CommitsBy(
                lambda who: run in ("", who.run) and session in ("", who.session),
                " of ".join(
                    f"{what} {name}" for what, name in (("run", run), ("session", session)) if name
                ),
                message=message,
            )

        return await self.bring(find, given_provenance(mounted, args), progress)

    async def bring(
        self, find: Callable[[], Incoming], who: Provenance, progress: SendProgress
    ) -> dict[str, object]:
        """Bring changes into the session, and return what came of it.

        Args:
            find: Says which; blocking.
            who: Who asks.
            progress: Hears how far a commit is.

        Raises:
            RefusedError: The session goes on in another place, or the mount would lose its top.
            IntegrityError, NoSpaceError, UnavailableError: As restores and commits do. What had
                been shown by then is kept, and said.
        """
        mounted, began = self._mounted, time.monotonic()
        check_is_ours(mounted)
        await mounted.demands.check(who, None)  # it may end in a commit
        async with mounted.committing:
            await flush_maps(mounted)
            with trio.CancelScope(shield=True), mounted.noting_loss():
                await mounted.settle(moved_by=who.author)
                incoming = await mounted.blocking.job(find)
                answer, watched = await self._bring(incoming, who, progress)
                await mounted.chain.retired.drop_unused()
        if watched:
            await mounted.blocking.job(partial(tell_watchers, mounted, watched))
        log.info(
            "merge.brought",
            extra={
                "session": mounted.name,
                "incoming": incoming.title,
                "duration_ms": round((time.monotonic() - began) * 1000, 3),
            },
        )
        return {
            "session": mounted.name,
            "from": incoming.title,
            **answer,
            "has_changes": mounted.has_news(),
            "conflicts_left": len((await mounted.load_open_merge()).conflicts),
        }

    async def _bring(
        self, incoming: Incoming, who: Provenance, progress: SendProgress
    ) -> tuple[dict[str, object], list[bytes]]:
        """Return what came of it, and which paths somebody may watch."""
        mounted = self._mounted
        safety = Safety(
            self._checkpoints.free_name(is_automatic=True), f"before merging {incoming.title}"
        )
        done, restored = await self._switch(incoming, who, safety)
        if restored is None or done is None:
            return {**_NOTHING, "is_current": True, "commit": _hex(mounted.base)}, []
        plan, watched = done.plan, watched_paths(mounted, restored.difference)
        is_forward = isinstance(plan, Forward)
        stored = plan.stored if isinstance(plan, Forward) else plan.joined.stored
        is_final = isinstance(plan, Forward) or plan.joined.is_final
        if not is_final:
            await self._name_in_store(stored)
        elif restored.kept_open:
            # What is open keeps its id, and what the merge made of it has another one here: the
            # mount does not show just that commit.
            await commit_frozen(mounted, incoming.message, who, {}, "", progress)
            is_forward = False
        else:
            await self._adopt(stored, incoming.title)
        return {
            **_NOTHING,
            "is_forward": is_forward,
            "commit": _hex(mounted.base) if is_final else None,
            "safety": safety.name,
            "kept_open": restored.kept_open,
            **_document_of(plan, restored),
        }, watched

    async def _switch(
        self, incoming: Incoming, who: Provenance, safety: Safety
    ) -> tuple[_Round | None, Restored | None]:
        """Show the session with the changes in it; None: it has them."""
        mounted = self._mounted
        for number in range(_FREE_ROUNDS + 1):
            with ExitStack() as held:
                go_on: Callable[[], None] = _nothing
                if number == _FREE_ROUNDS:
                    # Programs write on and on: what they write now is for after the merge.
                    go_on = held.enter_context(mounted.holding_writers())
                done = await self._plan(incoming, who)
                if done is None:
                    return None, None
                merge = _state_after(done)
                try:
                    restored = await self._restoring.go_to(
                        OnTop(done.ours_root, _root_of(done.plan)),
                        safety,
                        merge=merge,
                        made_beneath=done.live,
                        before_telling=go_on,
                    )
                except Overtaken:
                    continue
                return done, restored
        raise AssertionError("nobody writes in the last round")

    async def _plan(self, incoming: Incoming, who: Provenance) -> _Round | None:
        mounted = self._mounted
        await mounted.chain.freeze_changes()
        live = mounted.chain.live
        ours = await self._ours(who)
        plan = await mounted.blocking.job(partial(incoming.plan, ours, mounted.workspace, who))
        if plan is None:
            return None
        is_empty = ours.head is None and ours.work is None
        root = mounted.base_root if is_empty else ours.now[1].root
        return _Round(live, ours, root, plan)

    async def _ours(self, who: Provenance) -> Ours:
        mounted, session = self._mounted, self._mounted.session
        assert session is not None
        head = None if session.head is None else (session.head, session.record.commit())
        merge = await mounted.load_open_merge()
        work = None
        if mounted.has_news():
            stored = await self._saving.store_beside(who)
            if stored is not None:
                store = mounted.workspace.store
                work = (stored, await mounted.blocking.job(partial(store.load_commit, stored)))
        return Ours(mounted.name, head, work, merge)

    async def _adopt(self, stored: SealedCommit, title: str) -> None:
        """Have a commit that the mount shows already be the session's newest."""
        mounted, session = self._mounted, self._mounted.session
        assert session is not None
        with mounted.viewed(list(mounted.overlay.frozen)) as pending:
            try:
                with mounted.noting_unclear():
                    committed = await mounted.blocking.job(
                        lambda: adopt_commit(
                            mounted.workspace,
                            session,
                            pending,
                            stored,
                            moved_by=owner_name(),
                            before_move=mounted.chain.note_sealing,
                        )
                    )
            except UnavailableError as exc:
                raise UnavailableError(
                    f"{title} is in this mount, but the store does not know it yet: {exc}. Nothing "
                    "is lost: what it changed counts as not committed; do the same again when the "
                    "store answers",
                    kind=exc.kind,
                    **exc.context,
                ) from exc
        await mounted.rebase(committed.sealed, committed)

    async def _name_in_store(self, stored: SealedCommit) -> None:
        """Have the session's ref name what was stored for the merge: nothing else does."""
        mounted = self._mounted
        try:
            await self._saving.record_stored(stored)
        except WorkspaceError as exc:
            # The merge is done. Whatever stores the work next names it, or says that it cannot.
            log.warning(
                "merge.not_saved",
                extra={"session": mounted.name, "kind": exc.kind, "reason": str(exc)},
            )


_NOTHING: Final[Mapping[str, object]] = {
    "commit": None,
    "is_current": False,
    "is_forward": False,
    "safety": None,
    "kept_open": 0,
    "bases": [],
    "counts": {"added": 0, "modified": 0, "removed": 0},
    "conflicts": [],
}


def _document_of(plan: Plan | Forward, restored: Restored) -> dict[str, object]:
    if isinstance(plan, Forward):
        changes = restored.difference
        counts = ChangeCounts(modified=len(changes.places), removed=len(changes.gone))
        return {"counts": asdict(counts)}
    return {
        "bases": [base.id.hex() for base in plan.bases],
        "counts": asdict(plan.joined.counts),
        "conflicts": [
            {"number": number, **conflict_document(conflict)}
            for number, conflict in plan.joined.conflicts.items()
        ],
    }


def _state_after(done: _Round) -> MergeState | None:
    """Return what is merged once the mount shows it, until a commit says so."""
    plan = done.plan
    if isinstance(plan, Forward):
        return MergeState((plan.stored.ref,))
    joined = plan.joined
    state = MergeState(plan.parents, joined.stored.ref if joined.has_conflicts else None)
    return None if state == MergeState() and not done.ours.merge.is_news else state


def _root_of(plan: Plan | Forward) -> Entry:
    return plan.stored.commit.root if isinstance(plan, Forward) else plan.joined.stored.commit.root


def _hex(ref: Ref | None) -> str | None:
    return None if ref is None else ref.id.hex()


def _nothing() -> None:
    return None
