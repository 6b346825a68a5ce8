"""What the control socket of a session can ask for."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import trio

from workspacefs.client.unmount import unmount
from workspacefs.errors import RefusedError, UnavailableError, UsageError, WorkspaceError
from workspacefs.latency import BUCKETS_S
from workspacefs.names import check_ref_name
from workspacefs.objects.commits import ChangeCounts, Provenance
from workspacefs.workspace.changes import ChangeKind
from workspacefs.workspace.commit import Committed, commit_pending, land_commit
from workspacefs.workspace.difftext import iter_patch
from workspacefs.workspace.status import (
    PendingChange,
    PendingContent,
    iter_changes,
    iter_path_changes,
)
from workspacefs_daemon.control.server import SendProgress
from workspacefs_daemon.identity import owner_name
from workspacefs_daemon.mounted import Mounted

log = logging.getLogger(__name__)

_WORDS: Final = {
    ChangeKind.ADDED: "added",
    ChangeKind.MODIFIED: "modified",
    ChangeKind.REMOVED: "deleted",
    ChangeKind.RENAMED: "renamed",
    ChangeKind.TYPE: "type",
    ChangeKind.ATTRIBUTES: "metadata",
}
_PROGRESS_PERIOD_S: Final = 0.2
_FIGURES_TIMEOUT_S: Final = 3.0
_TEXT_MAX_CHARS: Final = 1 << 20
_TEXTS: Final = ("agent", "run", "tool_call", "model")
_libc: Final = ctypes.CDLL(None, use_errno=True)


class Ops:
    """Operations on one mount; see docs/protocol.md for their arguments and answers."""

    def __init__(self, mounted: Mounted, *, counts: Mapping[str, int], pid: int) -> None:
        self._mounted = mounted
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
                return await self._status(_text(args, "under"))
            case "diff":
                return await self._diff(_text(args, "under"))
            case "commit":
                return await self._commit(args, progress)
            case "umount":
                return await self._umount(is_lazy=args.get("lazy") is True)
            case _:
                raise UsageError(f"a session knows no operation {op!r}", kind="op.unknown")

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
        await self._mounted.blocking.job(lambda: far.renew(environ))
        return {}

    async def _status(self, under: str) -> dict[str, object]:
        mounted = self._mounted
        await self._flush_maps()
        with mounted.viewed() as pending:
            changes = await mounted.blocking.job(lambda: list(_below(iter_changes(pending), under)))
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
            "store": await self._store(),
        }

    async def _diff(self, under: str) -> dict[str, object]:
        mounted = self._mounted
        await self._flush_maps()
        with mounted.viewed() as pending:

            def patch() -> str:
                content = PendingContent(pending)
                changes = _below(iter_changes(pending), under)
                return "".join(iter_patch(iter_path_changes(changes, content), content))

            return {"patch": await mounted.blocking.job(patch)}

    async def _commit(
        self, args: Mapping[str, object], progress: SendProgress
    ) -> dict[str, object]:
        mounted = self._mounted
        if mounted.is_read_only or mounted.session is None:
            raise RefusedError(
                "this mount is a read-only view; mount a session to commit", kind="mount.read_only"
            )
        message = _text(args, "message").strip()
        if not message:
            raise UsageError("a commit needs a message that says why (-m)", kind="commit.message")
        into = _text(args, "into")
        if into:
            check_ref_name(into)
        meta = args.get("meta") or {}
        if not isinstance(meta, dict) or not all(isinstance(v, str) for v in meta.values()):
            raise UsageError("meta must be texts by name", kind="args.invalid")
        who = {name: _text(args, name) for name in _TEXTS}
        provenance = Provenance(
            author=owner_name(), session=mounted.name, host=socket.gethostname(), **who
        )
        began = time.monotonic()
        async with mounted.committing:
            committed = await self._seal(message, provenance, meta, into, progress)
            landed = await self._land(into, committed)
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
            "landed_on": into or None,
            "counts": {
                "added": counts.added,
                "modified": counts.modified,
                "removed": counts.removed,
            },
            "stored_bytes": committed.summary.stored_bytes if committed else 0,
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
        await self._flush_maps()
        with trio.CancelScope(shield=True):
            await mounted.settle(moved_by=owner_name())
        if not mounted.has_changes():
            return None
        done = {"files": 0, "bytes": 0}

        def note(files: int, size_bytes: int) -> None:
            done.update(files=files, bytes=size_bytes)

        await mounted.freeze()
        session = mounted.session
        assert session is not None
        with mounted.viewed(list(mounted.overlay.frozen)) as pending:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_tell_progress, progress, done)
                # Once the ref may have moved, what follows must be done too: hanging up does not
                # stop a commit half-way.
                with trio.CancelScope(shield=True), mounted.noting_unclear(), _telling_of_loss():
                    outcome = await mounted.blocking.job(
                        lambda: commit_pending(
                            mounted.workspace,
                            session,
                            pending,
                            message=message,
                            provenance=provenance,
                            meta=meta,
                            before_move=mounted.note_sealing,
                            into=into,
                            built_on=mounted.own_commits,
                            find_stored=mounted.find_stored,
                            progress=note,
                        )
                    )
                nursery.cancel_scope.cancel()
        committed = outcome if isinstance(outcome, Committed) else None
        with trio.CancelScope(shield=True):
            await mounted.rebase(outcome.sealed, committed)
        return committed

    async def _land(self, into: str, committed: Committed | None) -> bool:
        mounted = self._mounted
        session = mounted.session
        if not into or session is None or session.head is None:
            return False
        with trio.CancelScope(shield=True):
            await mounted.blocking.job(
                lambda: land_commit(
                    mounted.workspace,
                    session,
                    into,
                    moved_by=owner_name(),
                    landing=committed.landing if committed is not None else None,
                    built_on=mounted.own_commits,
                )
            )
        return True

    async def _umount(self, *, is_lazy: bool) -> dict[str, object]:
        mounted = self._mounted
        changes = mounted.has_changes()
        with trio.CancelScope(shield=True):
            await mounted.blocking.job(lambda: unmount(mounted.spec.mountpoint, is_lazy=is_lazy))
        return {"changes": changes}

    async def _flush_maps(self) -> None:
        """Have the kernel write what programs changed through shared maps: it alone has that."""
        if not self._mounted.is_read_only:
            mountpoint = self._mounted.spec.mountpoint
            await self._mounted.blocking.job(lambda: _sync_mount(mountpoint))


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


@contextmanager
def _telling_of_loss() -> Iterator[None]:
    """Say of a commit that could not be made what has become of the work: nothing."""
    try:
        yield
    except UnavailableError as exc:
        raise UnavailableError(
            f"the commit was not finished: {exc}. Nothing is lost: your files are in this mount as "
            "you left them; commit again when the store answers",
            kind=exc.kind,
            **exc.context,
        ) from exc


async def _tell_progress(progress: SendProgress, done: Mapping[str, int]) -> None:
    while True:
        await trio.sleep(_PROGRESS_PERIOD_S)
        await progress(dict(done))


def _sync_mount(mountpoint: str) -> None:
    fd = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _libc.syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise WorkspaceError(f"syncfs of {mountpoint}: {os.strerror(number)}", kind="sync")
    finally:
        os.close(fd)


def _below(changes: Iterable[PendingChange], under: str) -> Iterator[PendingChange]:
    prefix = os.fsencode(under).strip(b"/")
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


def _text(args: Mapping[str, object], name: str) -> str:
    value = args.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > _TEXT_MAX_CHARS:
        raise UsageError(f"{name} must be a text", kind="args.invalid")
    return value
