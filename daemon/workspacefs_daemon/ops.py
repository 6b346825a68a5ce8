"""What the control socket of a session can ask for."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import trio

from workspacefs.client.unmount import unmount
from workspacefs.errors import RefusedError, UsageError, WorkspaceError
from workspacefs.latency import BUCKETS_S
from workspacefs.workspace.changes import ChangeKind
from workspacefs.workspace.difftext import iter_patch
from workspacefs.workspace.status import (
    PendingChange,
    PendingContent,
    iter_changes,
    iter_path_changes,
)
from workspacefs_daemon.browsing import Browsing
from workspacefs_daemon.checkpoints import Checkpoints, checkpoint_action
from workspacefs_daemon.conflicts import Conflicts
from workspacefs_daemon.control.server import SendProgress
from workspacefs_daemon.giving_up import giving_up
from workspacefs_daemon.going_back import GoingBack
from workspacefs_daemon.merging import Merging
from workspacefs_daemon.merging_in import MergingIn
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.proposing import Proposing
from workspacefs_daemon.publishing import Publishing, flush_maps, text_in
from workspacefs_daemon.restoring import TellKernel
from workspacefs_daemon.retirement import Retirement

log = logging.getLogger(__name__)

_WORDS: Final = {
    ChangeKind.ADDED: "added",
    ChangeKind.MODIFIED: "modified",
    ChangeKind.REMOVED: "deleted",
    ChangeKind.RENAMED: "renamed",
    ChangeKind.TYPE: "type",
    ChangeKind.ATTRIBUTES: "metadata",
}
_FIGURES_TIMEOUT_S: Final = 3.0


class Ops:
    """Operations on one mount; see docs/protocol.md for their arguments and answers."""

    def __init__(
        self,
        mounted: Mounted,
        browsing: Browsing,
        retirement: Retirement,
        *,
        counts: Mapping[str, int],
        pid: int,
        tell_kernel: TellKernel,
        on_other_keys: Callable[[], None],
    ) -> None:
        """Work on `mounted`.

        Args:
            mounted: The mount.
            browsing: The histories in it.
            retirement: When it ends by itself.
            counts: Requests of the kernel so far, by kind.
            pid: Of this process.
            tell_kernel: Has the kernel forget what it was told.
            on_other_keys: Called when other keys lead to its store.
        """
        self._mounted = mounted
        self._browsing = browsing
        self._retirement = retirement
        self._on_other_keys = on_other_keys
        self._publishing = Publishing(mounted)
        self._merging = Merging(mounted)
        self._proposing = Proposing(mounted)
        self._checkpoints = Checkpoints(mounted)
        self._merging_in = MergingIn(mounted, self._checkpoints, tell_kernel)
        self._conflicts = Conflicts(mounted)
        self._going_back = GoingBack(mounted, self._checkpoints, tell_kernel)
        self._counts = counts
        self._pid = pid
        self._began_s = time.monotonic()

    async def handle(
        self, op: str, args: Mapping[str, object], progress: SendProgress
    ) -> Mapping[str, object]:
        """Do one operation and return its answer."""
        match op:
            case "ping":
                return {}
            case "info":
                return self._info()
            case "counters":
                return {"messages": dict(self._counts), "inodes": len(self._mounted.overlay.inodes)}
            case "stats":
                return await self.stats()
            case "credentials":
                return await self._credentials(args)
            case "store":
                return {"store": await self._store()}
            case "status":
                return await self._status(text_in(args, "under"))
            case "diff":
                return await self._diff(text_in(args, "under"))
            case "commit":
                with self._moving():
                    return await self._publishing.commit(args, progress)
            case "land":
                with self._moving():
                    return await self._merging.land(args)
            case "merge_from":
                with self._moving():
                    return await self._merging_in.merge_from(args, progress)
            case "revert":
                with self._moving():
                    return await self._merging_in.revert(args, progress)
            case "conflicts":
                return await self._conflicts.all()
            case "settle":
                with self._moving():
                    return await self._conflicts.settle(args)
            case "propose":
                return await self._proposing.propose(args)
            case "fork":
                return await self._publishing.fork(args)
            case "checkpoint":
                with self._moving():
                    return await self._checkpoint(args, progress)
            case "restore":
                with self._moving():
                    return await self._going_back.restore(args, progress)
            case "undo":
                with self._moving():
                    return await self._going_back.undo(args, progress)
            case "pause":
                self._retirement.check_may_pause()
                return await self._publishing.pause(args, progress)
            case "policy":
                return await self._retirement.change(args)
            case "umount":
                return await self._umount(is_lazy=args.get("lazy") is True)
            case _:
                raise UsageError(f"a session knows no operation {op!r}", kind="op.unknown")

    async def _checkpoint(
        self, args: Mapping[str, object], progress: SendProgress
    ) -> dict[str, object]:
        name = text_in(args, "name")
        match checkpoint_action(args):
            case "create":
                return await self._checkpoints.create(args, progress)
            case "list":
                return self._checkpoints.all()
            case "delete":
                return await self._checkpoints.delete(name)
            case action:
                return await self._going_back.show(name, has_patch=action == "diff")

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Let nobody see what names led to before the block, once it has ended."""
        try:
            yield
        finally:
            self._browsing.note_moved()

    def _info(self) -> dict[str, object]:
        mounted = self._mounted
        session = mounted.session
        return {
            "session": mounted.name,
            "session_id": mounted.session_id,
            "store_url": mounted.workspace.url,
            "mountpoint": mounted.spec.mountpoint,
            "branch": mounted.spec.branch if session is None else session.session.branch,
            "base": mounted.base.id.hex() if mounted.base else None,
            "read_only": mounted.is_read_only,
            "subpath": mounted.spec.subpath,
            "pid": self._pid,
            "uptime_s": round(time.monotonic() - self._began_s, 3),
            "layers": sorted(mounted.overlay.layers),
        }

    async def stats(self) -> dict[str, object]:
        """Return all figures of the mount; see docs/protocol.md."""
        mounted = self._mounted
        far = mounted.far
        return {
            **self._info(),
            "fuse": {
                "messages": dict(self._counts),
                "inodes": len(mounted.overlay.inodes),
                "past_inodes": len(self._browsing.nodes),
                "load_waits": mounted.blocking.load_waits.document(),
                "bucket_bounds_s": list(BUCKETS_S),
            },
            "reads": None if far is None else far.document(),
            "transfer": await self._transfer_figures(),
        }

    async def _transfer_figures(self) -> dict[str, object] | None:
        far = self._mounted.far
        if far is None:
            return None
        figures: dict[str, object] = {"error": "the transfer process does not answer"}
        with trio.move_on_after(_FIGURES_TIMEOUT_S):
            try:
                figures = await self._mounted.blocking.errand(
                    lambda: far.backend.document("figures")
                )
            except WorkspaceError as exc:
                return {"error": str(exc)}
        figures.pop("ok", None)
        return figures

    async def _store(self) -> dict[str, object]:
        """Return whether the store answers: `state` "ok", "away" or "unknown", and why."""
        figures = await self._transfer_figures()
        if figures is None:
            return {"state": "ok", "since_s": None, "reason": None, "retries": 0}
        found = figures.get("store")
        if isinstance(found, dict):
            return found
        reason = figures.get("error")
        return {"state": "unknown", "since_s": None, "reason": reason, "retries": 0}

    async def _credentials(self, args: Mapping[str, object]) -> dict[str, object]:
        """Reach the store with other keys from now on, and say whether it answers to them."""
        far = self._mounted.far
        environ = args.get("environ")
        if far is None:
            raise RefusedError("the store of this mount needs no keys", kind="store.local")
        if not isinstance(environ, dict) or not all(
            type(one) is str for pair in environ.items() for one in pair
        ):
            raise UsageError("environ must be texts by name", kind="args.invalid")
        try:
            await self._mounted.blocking.job(lambda: far.renew(environ))
        finally:
            self._on_other_keys()  # the old ones are no more used, whatever the store answers
        return {}

    async def _status(self, under: str) -> dict[str, object]:
        mounted = self._mounted
        prefix = mounted.spec.path_in_workspace(under)
        await flush_maps(self._mounted)
        with mounted.viewed() as pending:
            changes = await mounted.blocking.job(
                lambda: list(_below(iter_changes(pending), prefix))
            )
        totals: dict[str, int] = dict.fromkeys(_WORDS.values(), 0)
        for change in changes:
            totals[_WORDS[change.kind]] += 1
        info = self._info()
        return {
            "session": info["session"],
            "branch": info["branch"],
            "base": info["base"],
            "changes": [_change_document(change) for change in changes],
            "totals": totals,
            "conflicts": await self._conflicts.rows(),
            "is_merging": not mounted.is_read_only and mounted.chain.record.merge is not None,
            "store": await self._store(),
            "autosave_s": mounted.spec.autosave_s,
            "is_stored": not mounted.is_unsaved(),
            "is_lost": mounted.is_lost,
            "policy": self._retirement.policy.document(),
            "pause_put_off": self._retirement.put_off,
        }

    async def _diff(self, under: str) -> dict[str, object]:
        mounted = self._mounted
        prefix = mounted.spec.path_in_workspace(under)
        await flush_maps(self._mounted)
        with mounted.viewed() as pending:

            def patch() -> str:
                content = PendingContent(pending)
                changes = _below(iter_changes(pending), prefix)
                return "".join(iter_patch(iter_path_changes(changes, content), content))

            return {"patch": await mounted.blocking.job(patch)}

    async def _umount(self, *, is_lazy: bool) -> dict[str, object]:
        mounted = self._mounted
        changes = mounted.chain.has_changes()
        with trio.CancelScope(shield=True), giving_up(mounted, "it was being unmounted"):
            await mounted.blocking.job(lambda: unmount(mounted.spec.mountpoint, is_lazy=is_lazy))
            mounted.is_hidden = is_lazy
        return {"changes": changes}


def describe_session(mounted: Mounted, socket_path: str) -> bytes:
    """Return what the hidden attribute says: see client/locate.py."""
    return json.dumps(
        {
            "session": mounted.name,
            "session_id": mounted.session_id,
            "socket": socket_path,
            "mountpoint": mounted.spec.mountpoint,
            "store_url": mounted.workspace.url,
        }
    ).encode("ascii")


def _below(changes: Iterable[PendingChange], prefix: bytes) -> Iterator[PendingChange]:
    for change in changes:
        if not prefix or change.path == prefix or change.path.startswith(prefix + b"/"):
            yield change


def _change_document(change: PendingChange) -> dict[str, object]:
    row = change.file.row if change.file is not None else None
    document: dict[str, object] = {
        "path": os.fsdecode(change.path),
        "kind": _WORDS[change.kind],
        "is_dir": change.file.is_dir if change.file is not None else _is_dir(change),
        "old_size": change.base.size_bytes if change.base is not None else None,
        "new_size": row.size_bytes if row is not None else None,
    }
    if change.from_path is not None:
        document["from"] = os.fsdecode(change.from_path)
        document["is_edited"] = change.is_edited
    if change.kind is ChangeKind.REMOVED and change.base is not None and change.base.is_dir:
        document["files"] = change.base.subtree.totals.files
    return document


def _is_dir(change: PendingChange) -> bool:
    return change.base is not None and change.base.is_dir
