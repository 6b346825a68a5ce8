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
    UnavailableError,
    UsageError,
)
from workspacefs.layers.rows import inode_key
from workspacefs.names import check_ref_name
from workspacefs.objects.entry import Entry
from workspacefs.objects.refs import Ref
from workspacefs.refs import StoredCheckpoint
from workspacefs.workspace.local import LocalCheckpoint
from workspacefs.workspace.pending import Pending, PendingFile
from workspacefs.workspace.receipt import Receipt, check_restored
from workspacefs.workspace.saving import load_checkpoint
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

    async def checkpoint(
        self, args: Mapping[str, object], progress: SendProgress
    ) -> dict[str, object]:
        """Make, list or delete checkpoints."""
        mounted = self._mounted
        check_is_session(mounted)
        match text_in(args, "action"):
            case "list":
                rows = self._rows()
                return {"session": mounted.name, "checkpoints": rows}
            case "delete":
                return await self._delete(text_in(args, "name"))
            case "create":
                return await self._make_checkpoint(args, progress)
            case "show" | "diff" as action:
                return await self._show(text_in(args, "name"), has_patch=action == "diff")
            case action:
                raise UsageError(f"checkpoints know no action {action!r}", kind="args.invalid")

    async def _show(self, name: str, *, has_patch: bool) -> dict[str, object]:
        mounted = self._mounted
        row = next((row for row in self._rows() if row["checkpoint"] == name), None)
        if row is None:
            row = _checkpoint_row(find_checkpoint(mounted, name), is_durable=False)
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

    def _rows(self) -> list[dict[str, object]]:
        here = self._mounted.chain.record.checkpoints
        stored = self._stored()
        names = {one.name for one in here}
        rows = [_checkpoint_row(one, is_durable=one.name in stored) for one in here]
        rows += [_stored_row(one) for one in stored.values() if one.name not in names]
        return sorted(rows, key=_created_of)

    def _stored(self) -> dict[str, StoredCheckpoint]:
        session = self._mounted.session
        return {} if session is None else {one.name: one for one in session.session.checkpoints}

    async def _delete(self, name: str) -> dict[str, object]:
        mounted = self._mounted
        chain = mounted.chain
        async with mounted.committing:
            here, stored = chain.record.find_checkpoint(name), self._stored().get(name)
            if here is None and stored is None:
                find_checkpoint(mounted, name)
            with trio.CancelScope(shield=True):
                if stored is not None:
                    with mounted.noting_loss():
                        await mounted.settle(moved_by=own_provenance(mounted).author)
                        await mounted.drop_stored_checkpoint(name)
                if here is not None:
                    await chain.drop_checkpoint(here)
        is_durable = stored is not None
        if here is not None:
            return {"session": mounted.name, **_checkpoint_row(here, is_durable=is_durable)}
        assert stored is not None
        return {"session": mounted.name, **_stored_row(stored)}

    async def _make_checkpoint(
        self, args: Mapping[str, object], progress: SendProgress
    ) -> dict[str, object]:
        mounted = self._mounted
        chain = mounted.chain
        name, message = text_in(args, "name"), text_in(args, "message")
        if name:
            check_ref_name(name, what="checkpoint")
        began = time.monotonic()
        async with mounted.committing:
            await flush_maps(mounted)
            if name in self._taken():
                raise BusyError(
                    f"session {mounted.name} has a checkpoint {name} already; choose another name, "
                    "or delete it first",
                    kind="checkpoint.exists",
                    checkpoint=name,
                )
            is_automatic = args.get("automatic") is True
            name = name or self._free_name(_AUTOMATIC if is_automatic else "cp{}")
            with trio.CancelScope(shield=True):
                made = await chain.checkpoint(
                    name,
                    message,
                    created_ns=mounted.workspace.clock.now_ns(),
                    is_automatic=is_automatic,
                )
            is_durable = args.get("durable") is True
            if is_durable:
                await self._store_checkpoint(made, progress)
        log.info(
            "checkpoint.made",
            extra={
                "session": mounted.name,
                "checkpoint": name,
                "duration_ms": round((time.monotonic() - began) * 1000, 3),
            },
        )
        return {"session": mounted.name, **_checkpoint_row(made, is_durable=is_durable)}

    async def _store_checkpoint(self, made: LocalCheckpoint, progress: SendProgress) -> None:
        mounted = self._mounted
        provenance = own_provenance(mounted)
        done = {"files": 0, "bytes": 0}

        def note(files: int, size_bytes: int) -> None:
            done.update(files=files, bytes=size_bytes)

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tell_progress, progress, done)
                with trio.CancelScope(shield=True), mounted.noting_loss():
                    await mounted.settle(moved_by=provenance.author)
                    await mounted.store_checkpoint(made, provenance, note)
                nursery.cancel_scope.cancel()
        except* UnavailableError as group:
            exc = group.exceptions[0]
            raise UnavailableError(
                f"checkpoint {made.name} was made and is on this machine alone: {exc}. When the "
                "store answers, delete it and make it again",
                kind="checkpoint.not_stored",
                checkpoint=made.name,
            ) from exc

    def _free_name(self, form: str) -> str:
        taken = self._taken()
        return next(name for name in map(form.format, count(1)) if name not in taken)

    def _taken(self) -> set[str]:
        here = self._mounted.chain.record.checkpoints
        return {*self._stored(), *(one.name for one in here)}

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
        stored = self._stored().get(target)
        if stored is not None and (checkpoint is None or checkpoint.base != mounted.base):
            root = await mounted.blocking.job(lambda: load_checkpoint(mounted.workspace, stored))
            return _Wanted(f"checkpoint {target}", root)
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
            names = ", ".join(str(row["checkpoint"]) for row in self._rows()) or "none"
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


def _created_of(row: Mapping[str, object]) -> int:
    created_ns = row["created_ns"]
    assert isinstance(created_ns, int)
    return created_ns


def _stored_row(checkpoint: StoredCheckpoint) -> dict[str, object]:
    return {
        "checkpoint": checkpoint.name,
        "message": checkpoint.message,
        "created_ns": checkpoint.created_ns,
        "base": None,
        "is_automatic": False,
        "is_durable": True,
    }


def _checkpoint_row(checkpoint: LocalCheckpoint, *, is_durable: bool) -> dict[str, object]:
    base = checkpoint.base
    return {
        "checkpoint": checkpoint.name,
        "message": checkpoint.message,
        "created_ns": checkpoint.created_ns,
        "base": None if base is None else base.id.hex(),
        "is_automatic": checkpoint.is_automatic,
        "is_durable": is_durable,
    }
