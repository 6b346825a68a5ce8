"""Checkpoints of a mounted session, and going back to them or to any commit."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Final

import trio

from workspacefs.errors import (
    BusyError,
    IntegrityError,
    NotFoundError,
    RefusedError,
    UsageError,
)
from workspacefs.layers.rows import inode_key
from workspacefs.names import check_ref_name
from workspacefs.objects.entry import Entry
from workspacefs.objects.refs import Ref
from workspacefs.workspace.local import LocalCheckpoint
from workspacefs.workspace.pending import Pending, PendingFile
from workspacefs.workspace.receipt import Receipt, check_restored
from workspacefs.workspace.sessions import root_of
from workspacefs_daemon.control.server import SendProgress
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.publishing import (
    check_is_session,
    find_checkpoint,
    flush_maps,
    own_provenance,
    tell_progress,
    text_in,
)
from workspacefs_daemon.restoring import Restored, Restoring
from workspacefs_daemon.vfs.switching import Notices

log = logging.getLogger(__name__)

TellKernel = Callable[[Notices], None]
_AUTOMATIC: Final = "before-restore-{}"
_HEAD: Final = "HEAD"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is gone back to."""

    title: str
    state: LocalCheckpoint | Entry
    is_stored_for_this: bool = False
    """Whether there are objects in the store that no ref names yet."""


class GoingBack:
    """Operations of the control socket; see docs/protocol.md for their arguments and answers."""

    def __init__(self, mounted: Mounted, tell_kernel: TellKernel) -> None:
        self._mounted = mounted
        self._restoring = Restoring(mounted)
        self._tell_kernel = tell_kernel

    # -- checkpoints -----------------------------------------------------------------------

    async def checkpoint(self, args: Mapping[str, object]) -> dict[str, object]:
        """Make, list or delete checkpoints."""
        mounted = self._mounted
        check_is_session(mounted)
        chain = mounted.chain
        match text_in(args, "action"):
            case "list":
                rows = [_checkpoint_row(one) for one in chain.record.checkpoints]
                return {"session": mounted.name, "checkpoints": rows}
            case "delete":
                async with mounted.committing:
                    gone = find_checkpoint(mounted, text_in(args, "name"))
                    with trio.CancelScope(shield=True):
                        await chain.drop_checkpoint(gone)
                return {"session": mounted.name, **_checkpoint_row(gone)}
            case "create":
                return await self._make_checkpoint(args)
            case "show" | "diff" as action:
                return await self._show(text_in(args, "name"), has_patch=action == "diff")
            case action:
                raise UsageError(f"checkpoints know no action {action!r}", kind="args.invalid")

    async def _show(self, name: str, *, has_patch: bool) -> dict[str, object]:
        mounted = self._mounted
        checkpoint = find_checkpoint(mounted, name)
        await flush_maps(mounted)
        async with mounted.committing:
            with trio.CancelScope(shield=True):
                wanted = await self._wanted(name)
                changes, patch = await self._restoring.changes_since(wanted.state)
        rows = [
            {
                "path": os.fsdecode(change.path),
                "kind": change.kind.name.lower(),
                "from": None if change.old_path is None else os.fsdecode(change.old_path),
            }
            for change in changes
        ]
        row = {"session": mounted.name, **_checkpoint_row(checkpoint), "changes": rows}
        return {**row, "patch": patch} if has_patch else row

    async def _make_checkpoint(self, args: Mapping[str, object]) -> dict[str, object]:
        mounted = self._mounted
        chain = mounted.chain
        name, message = text_in(args, "name"), text_in(args, "message")
        if name:
            check_ref_name(name, what="checkpoint")
        began = time.monotonic()
        async with mounted.committing:
            await flush_maps(mounted)
            taken = {one.name for one in chain.record.checkpoints}
            if name in taken:
                raise BusyError(
                    f"session {mounted.name} has a checkpoint {name} already; choose another name, "
                    "or delete it first",
                    kind="checkpoint.exists",
                    checkpoint=name,
                )
            name = name or self._free_name("cp{}")
            with trio.CancelScope(shield=True):
                made = await chain.checkpoint(
                    name, message, created_ns=mounted.workspace.clock.now_ns()
                )
        log.info(
            "checkpoint.made",
            extra={
                "session": mounted.name,
                "checkpoint": name,
                "duration_ms": round((time.monotonic() - began) * 1000, 3),
            },
        )
        return {"session": mounted.name, **_checkpoint_row(made)}

    def _free_name(self, form: str) -> str:
        taken = {one.name for one in self._mounted.chain.record.checkpoints}
        return next(name for name in map(form.format, count(1)) if name not in taken)

    # -- restoring -------------------------------------------------------------------------

    async def restore(
        self, args: Mapping[str, object], progress: SendProgress
    ) -> dict[str, object]:
        """Show a checkpoint or a commit from now on, and look whether all of it is there."""
        mounted = self._mounted
        check_is_session(mounted)
        self._check_is_ours()
        target = text_in(args, "target")
        if not target:
            raise UsageError("restore needs a checkpoint or a revision", kind="args.invalid")
        with ExitStack() as held:
            answer = await self._restore(target, progress, held)
        async with mounted.committing:  # what the receipt looked at may go
            with trio.CancelScope(shield=True):
                await mounted.chain.drop_retired()
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
                safety_name = self._free_name(_AUTOMATIC)
                restored = await self._restoring.go_to(
                    wanted.state,
                    safety_name=safety_name,
                    safety_message=f"before restoring {wanted.title}",
                )
                if wanted.is_stored_for_this:
                    await mounted.save(own_provenance(mounted))  # so that a ref names it
            # Begun before anyone else may close layers.
            view = held.enter_context(mounted.viewed(restored.frozen))
        await mounted.blocking.job(lambda: self._tell_kernel(restored.notices))
        switched_ms = round((time.monotonic() - began) * 1000, 3)
        receipt = await self._check(wanted, restored, view, progress)
        log.info(
            "restore.checked",
            extra={"session": mounted.name, "wrong": receipt.wrong_count, "switch_ms": switched_ms},
        )
        if receipt.wrong_count:
            raise IntegrityError(
                f"the restore of {wanted.title} is incomplete: {receipt.wrong_count} of "
                f"{len(restored.difference.places) + receipt.removed} paths are not as they should "
                f"be ({'; '.join(receipt.wrong)}). What was here until then is checkpoint "
                f"{safety_name}: workspacefs undo brings it back",
                kind="restore.incomplete",
                wrong=receipt.wrong_count,
                safety=safety_name,
            )
        return {
            "session": mounted.name,
            "restored": wanted.title,
            "safety": safety_name,
            "duration_ms": switched_ms,
            "receipt": {
                "files": receipt.files,
                "directories": receipt.directories,
                "symlinks": receipt.symlinks,
                "others": receipt.others,
                "bytes": receipt.size_bytes,
                "removed": receipt.removed,
                "kept_open": restored.kept_open,
            },
        }

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

    def _check_is_ours(self) -> None:
        if self._mounted.is_lost:
            raise RefusedError(
                f"session {self._mounted.name} goes on in another place, so nothing can be changed "
                "here; workspacefs fork makes a session of what is here",
                kind="session.lost",
            )

    async def _wanted(self, target: str) -> _Wanted:
        mounted = self._mounted
        checkpoint = mounted.chain.record.find_checkpoint(target)
        if checkpoint is not None:
            if checkpoint.base == mounted.base:
                return _Wanted(f"checkpoint {target}", checkpoint)
            root = await self._tree_of(checkpoint)
            return _Wanted(f"checkpoint {target}", root, is_stored_for_this=True)
        if target == _HEAD:
            return _Wanted("the session's last commit", mounted.base_root)
        rev = target
        if mounted.base is not None and re.fullmatch(rf"{_HEAD}[~^].*", target):
            rev = mounted.base.id.hex() + target.removeprefix(_HEAD)
        try:
            ref, commit = await mounted.blocking.job(lambda: mounted.workspace.resolve(rev))
        except NotFoundError as exc:
            names = ", ".join(one.name for one in mounted.chain.record.checkpoints) or "none"
            raise NotFoundError(
                f"{target} is no checkpoint of session {mounted.name} (there are: {names}), and "
                f"no revision: {exc}",
                kind="restore.absent",
                target=target,
            ) from exc
        return _Wanted(f"commit {ref.id.hex()[:12]}", commit.root)

    async def _tree_of(self, checkpoint: LocalCheckpoint) -> Entry:
        """Store a checkpoint that lies over another commit than the session now does, as a tree."""
        mounted = self._mounted
        root = await mounted.blocking.job(lambda: self._base_root(checkpoint.base))
        return await self._restoring.store(checkpoint, root)

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
        done = {"files": 0, "bytes": 0}

        def note(files: int, size_bytes: int) -> None:
            done.update(files=files, bytes=size_bytes)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell_progress, progress, done)
            with trio.CancelScope(shield=True), _seen(wanted.state, restored, now) as expected:
                receipt = await mounted.blocking.job(
                    lambda: check_restored(
                        restored.difference, now, expected, self._look_through, note
                    )
                )
            nursery.cancel_scope.cancel()
        live = mounted.chain.live
        for suspect in receipt.suspects:
            # What programs have done since is not held against it.
            if not any(live.rows.get(inode_key(file_id)) for file_id in suspect.file_ids):
                receipt.blame(suspect.path, suspect.why)
        return receipt

    def _look_through(self, path: bytes, file: PendingFile | None) -> str | None:
        """Look at a path as programs see it; on a thread, as the loop answers the kernel."""
        spec = self._mounted.spec
        if spec.subpath is not None:
            top = os.fsencode(spec.subpath).strip(b"/") + b"/"
            if not path.startswith(top):
                return None  # it is not seen in this mount
            path = path.removeprefix(top)
        place = os.path.join(os.fsencode(spec.mountpoint), path)
        try:
            found = os.lstat(place)
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


def _checkpoint_row(checkpoint: LocalCheckpoint) -> dict[str, object]:
    base = checkpoint.base
    return {
        "checkpoint": checkpoint.name,
        "message": checkpoint.message,
        "created_ns": checkpoint.created_ns,
        "base": None if base is None else base.id.hex(),
        "is_automatic": checkpoint.is_automatic,
    }
