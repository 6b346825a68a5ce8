"""Going back, in a mounted session, to a checkpoint or to any commit."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from workspacefs.errors import (
    IntegrityError,
    NotFoundError,
    RefusedError,
    UsageError,
    WorkspaceError,
)
from workspacefs.layers.rows import inode_key
from workspacefs.objects.commits import Commit
from workspacefs.objects.entry import Entry
from workspacefs.objects.refs import Ref
from workspacefs.refs import StoredCheckpoint
from workspacefs.workspace.difference import Difference
from workspacefs.workspace.local_record import LocalCheckpoint, MergeState
from workspacefs.workspace.open_merge import conflicts_of, state_of
from workspacefs.workspace.pending import Pending, PendingFile
from workspacefs.workspace.receipt import Receipt, check_restored
from workspacefs.workspace.saving import load_checkpoint
from workspacefs.workspace.seal import SealProgress
from workspacefs.workspace.sessions import root_of
from workspacefs_daemon.background.own_mount import Ask, asking_own_mount
from workspacefs_daemon.checkpoints import Checkpoints
from workspacefs_daemon.control.server import SendProgress
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.publishing import (
    check_is_ours,
    check_is_session,
    flush_maps,
    own_provenance,
    text_in,
)
from workspacefs_daemon.restore_targets import Targets
from workspacefs_daemon.restoring import Restored, Restoring, Safety, TellKernel
from workspacefs_daemon.saving import Saving
from workspacefs_daemon.telling import telling

log = logging.getLogger(__name__)

_HEAD: Final = "HEAD"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is gone back to."""

    title: str
    state: LocalCheckpoint | Entry
    merge: MergeState | None = None
    """What is merged there that the session's head does not say."""
    is_stored_for_this: bool = False
    """Whether there are objects in the store that no ref names yet."""


class GoingBack:
    """Operations of the control socket; see docs/protocol.md for their arguments and answers."""

    def __init__(self, mounted: Mounted, checkpoints: Checkpoints, tell_kernel: TellKernel) -> None:
        self._mounted = mounted
        self._checkpoints = checkpoints
        self._restoring = Restoring(mounted, tell_kernel)
        self._targets = Targets(mounted)
        self._saving = Saving(mounted)

    async def show(self, name: str, *, has_patch: bool) -> dict[str, object]:
        """Tell what has changed since a checkpoint."""
        mounted = self._mounted
        check_is_session(mounted)
        row = self._checkpoints.row(name)
        await flush_maps(mounted)
        async with mounted.committing:
            with trio.CancelScope(shield=True):
                wanted = await self._wanted(name)
                changes, patch = await self._restoring.changes_since(wanted.state)
        changed = [
            {
                "path": os.fsdecode(change.path),
                "kind": change.kind.name.lower(),
                "from": None if change.old_path is None else os.fsdecode(change.old_path),
            }
            for change in changes
        ]
        row = {"session": mounted.name, **row, "changes": changed}
        return {**row, "patch": patch} if has_patch else row

    async def restore(
        self, args: Mapping[str, object], progress: SendProgress
    ) -> dict[str, object]:
        """Show a checkpoint or a commit from now on, and look whether all of it is there."""
        mounted = self._mounted
        check_is_session(mounted)
        check_is_ours(mounted)
        target = text_in(args, "target")
        if not target:
            raise UsageError("restore needs a checkpoint or a revision", kind="args.invalid")
        with ExitStack() as held:
            answer = await self._restore(target, progress, held)
        async with mounted.committing:  # what the receipt looked at may go
            with trio.CancelScope(shield=True):
                await mounted.chain.retired.drop_unused()
        return answer

    async def _restore(
        self, target: str, progress: SendProgress, held: ExitStack
    ) -> dict[str, object]:
        mounted = self._mounted
        began = time.monotonic()
        async with mounted.committing:
            await flush_maps(mounted)
            with trio.CancelScope(shield=True):
                with mounted.noting_loss():
                    await mounted.settle(moved_by=own_provenance(mounted).author)
                wanted = await self._wanted(target)
                safety_name = self._checkpoints.free_name(is_automatic=True)
                restored = await self._restoring.go_to(
                    wanted.state,
                    Safety(safety_name, f"before restoring {wanted.title}"),
                    merge=wanted.merge,
                )
                switched_ms = round((time.monotonic() - began) * 1000, 3)
                if wanted.is_stored_for_this:
                    await self._name_in_store()
            # Begun before anyone else may close layers.
            view = held.enter_context(mounted.viewed(restored.frozen))
        receipt = await self._check(wanted, restored, view, progress)
        log.info(
            "restore.checked",
            extra={"session": mounted.name, "wrong": receipt.wrong_count, "switch_ms": switched_ms},
        )
        if receipt.wrong_count:
            looked_at = len(restored.difference.places) + receipt.counts.removed
            raise IntegrityError(
                f"the restore of {wanted.title} is incomplete: {receipt.wrong_count} of "
                f"{looked_at} paths are not as they should be ({'; '.join(receipt.wrong)}). What "
                f"was here until then is checkpoint {safety_name}: workspacefs undo brings it back",
                kind="restore.incomplete",
                wrong=receipt.wrong_count,
                safety=safety_name,
            )
        return {
            "session": mounted.name,
            "restored": wanted.title,
            "safety": safety_name,
            "duration_ms": switched_ms,
            "receipt": receipt.counts.document(kept_open=restored.kept_open),
        }

    async def _name_in_store(self) -> None:
        """Have the session's ref name what was stored for a restore: nothing else does."""
        mounted = self._mounted
        try:
            with mounted.noting_loss():
                await self._saving.save(own_provenance(mounted))
        except WorkspaceError as exc:
            # The restore is done. Whatever stores the work next names it, or says that it cannot.
            log.warning("restore.not_saved", extra={"kind": exc.kind, "reason": str(exc)})

    async def undo(self, args: Mapping[str, object], progress: SendProgress) -> dict[str, object]:
        """Go back to before the last restore, or to before the last few."""
        mounted = self._mounted
        check_is_session(mounted)
        steps = args.get("steps", 1)
        if type(steps) is not int or steps < 1:
            raise UsageError("steps must be a positive number", kind="args.invalid")
        made = [one for one in mounted.chain.record.checkpoints if one.is_automatic]
        if len(made) < steps:
            raise NotFoundError(
                f"session {mounted.name} can undo {len(made)} restores, not {steps}. A commit is "
                "taken back with: workspacefs restore HEAD~1",
                kind="undo.nothing",
            )
        wanted = made[-steps]
        if wanted.base != mounted.base:
            raise RefusedError(
                f"session {mounted.name} has committed since that restore. To go back to before it "
                f"nevertheless: workspacefs restore {wanted.name}. To take back what the last "
                "commit changed: workspacefs restore HEAD~1",
                kind="undo.committed",
                checkpoint=wanted.name,
            )
        return await self.restore({"target": wanted.name}, progress)

    async def _wanted(self, target: str) -> _Wanted:
        mounted = self._mounted
        checkpoint = mounted.chain.record.find_checkpoint(target)
        stored = self._checkpoints.find_stored(target)
        if stored is not None and (checkpoint is None or checkpoint.base != mounted.base):
            return await mounted.blocking.job(partial(self._stored, stored))
        if checkpoint is not None:
            if checkpoint.base == mounted.base:
                return _Wanted(f"checkpoint {target}", checkpoint, checkpoint.merge)
            root = await self._tree_of(checkpoint)
            return _Wanted(f"checkpoint {target}", root, is_stored_for_this=True)
        if target == _HEAD:
            return _Wanted("the session's last commit", mounted.base_root)
        try:
            ref, commit = await mounted.blocking.job(partial(mounted.resolve, target))
        except NotFoundError as exc:
            raise NotFoundError(
                f"{target} is no checkpoint of session {mounted.name} (there are: "
                f"{self._checkpoints.names()}), and no revision: {exc}",
                kind="restore.absent",
                target=target,
            ) from exc
        merge = await mounted.blocking.job(partial(self._conflicts_of, ref, commit))
        return _Wanted(f"commit {ref.id.hex()[:12]}", commit.root, merge)

    def _conflicts_of(self, ref: Ref, commit: Commit) -> MergeState | None:
        """Have the conflicts of a commit in the place of those of the head."""
        session, store = self._mounted.session, self._mounted.workspace.store
        assert session is not None
        there = conflicts_of(commit, store)
        here = conflicts_of(session.record.commit(), store) if session.head is not None else {}
        return None if there == here else MergeState(conflicts=ref if there else None)

    def _stored(self, checkpoint: StoredCheckpoint) -> _Wanted:
        workspace, session = self._mounted.workspace, self._mounted.session
        assert session is not None
        commit = load_checkpoint(workspace, checkpoint)
        head, merge = session.head, None
        if head is not None and commit.parents[:1] == (head,):
            ref, now = Ref(checkpoint.commit_id, checkpoint.locator), session.record.commit()
            merge = state_of(ref, commit, head, now, workspace.store)
        return _Wanted(f"checkpoint {checkpoint.name}", commit.root, merge)

    async def _tree_of(self, checkpoint: LocalCheckpoint) -> Entry:
        """Store a checkpoint that lies over another commit than the session now does, as a tree."""
        mounted = self._mounted
        root = await mounted.blocking.job(lambda: self._base_root(checkpoint.base))
        return await self._targets.store(checkpoint, root)

    def _base_root(self, base: Ref | None) -> Entry:
        mounted = self._mounted
        session = mounted.session
        assert session is not None
        return root_of(
            mounted.workspace, base, created_ns=session.session.created_ns,
            uid=os.geteuid(), gid=os.getegid(),
        )  # fmt: skip

    async def _check(
        self, wanted: _Wanted, restored: Restored, now: Pending, progress: SendProgress
    ) -> Receipt:
        mounted = self._mounted
        async with telling(progress) as note:
            with trio.CancelScope(shield=True), _seen(wanted.state, restored, now) as expected:
                receipt = await mounted.blocking.job(
                    partial(self._look_through_all, restored.difference, now, expected, note)
                )
        live = mounted.chain.live
        for suspect in receipt.suspects:
            # What programs have done since is not held against it.
            if not any(live.rows.get(inode_key(file_id)) for file_id in suspect.file_ids):
                receipt.blame(suspect.path, suspect.why)
        return receipt

    def _look_through_all(
        self, difference: Difference, now: Pending, expected: Pending, progress: SealProgress
    ) -> Receipt:
        with asking_own_mount() as ask:
            look_through = partial(self._look_through, ask)
            return check_restored(difference, now, expected, look_through, progress)

    def _look_through(self, ask: Ask, path: bytes, file: PendingFile | None) -> str | None:
        """Look at a path as programs see it; on a thread, as the loop answers the kernel."""
        spec = self._mounted.spec
        if spec.subpath is not None:
            top = os.fsencode(spec.subpath).strip(b"/") + b"/"
            if not path.startswith(top):
                return None  # it is not seen in this mount
            path = path.removeprefix(top)
        place = os.path.join(os.fsencode(spec.mountpoint), path)
        try:
            found = ask(lambda: os.lstat(place))
        except OSError as exc:
            is_gone = isinstance(exc, FileNotFoundError | NotADirectoryError)
            return None if file is None and is_gone else f"cannot be seen: {exc.strerror}"
        if file is None:
            return "is still seen in the mount"
        row = file.state
        is_same = (found.st_ino, found.st_mode) == (file.file_id, row.mode) and (
            file.is_dir or (found.st_size, found.st_nlink) == (row.size_bytes, row.nlink)
        )
        return None if is_same else "looks otherwise in the mount than it should"


@contextmanager
def _seen(state: LocalCheckpoint | Entry, restored: Restored, now: Pending) -> Iterator[Pending]:
    """Look at what a restore went back to, by itself."""
    if isinstance(state, Entry):
        yield Pending(state, [], {}, now.source)
        return
    wanted = restored.wanted
    snapshots = [layer.snapshot() for layer in wanted]
    try:
        yield Pending(now.root, snapshots, {layer.number: layer for layer in wanted}, now.source)
    finally:
        for snapshot in snapshots:
            snapshot.close()
