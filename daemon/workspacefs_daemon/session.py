"""A session process: opens what it shall show, mounts it, serves it, and leaves it clean."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pyfuse3
import trio

from workspacefs.allocator import bound_memory
from workspacefs.client.unmount import unmount
from workspacefs.errors import BusyError, NotFoundError, WorkspaceError
from workspacefs.statedir import StateDir
from workspacefs_daemon.adoption import Adoption
from workspacefs_daemon.background.hops import Blocking
from workspacefs_daemon.background.reading_ahead import keep_file_ids, read_ahead
from workspacefs_daemon.background.retiring import retire
from workspacefs_daemon.background.saving import autosave
from workspacefs_daemon.background.sweeping import Sweeper
from workspacefs_daemon.background.tidying import tidy_layers
from workspacefs_daemon.background.uploading import upload_early
from workspacefs_daemon.bindings.fuse.hidden import HiddenOperations
from workspacefs_daemon.bindings.fuse.mount import mount, raise_read_ahead, serve
from workspacefs_daemon.bindings.fuse.notices import tell_kernel
from workspacefs_daemon.bindings.fuse.operations import Operations, SubpathOperations
from workspacefs_daemon.browsing import Browsing, find_top
from workspacefs_daemon.control.server import serve_control
from workspacefs_daemon.giving_up import give_up
from workspacefs_daemon.metrics import listen_metrics, serve_metrics
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.mountpoints import clear_mountpoint
from workspacefs_daemon.opening import open_mounted
from workspacefs_daemon.ops import Ops, describe_session
from workspacefs_daemon.publishing import flush_maps, own_provenance
from workspacefs_daemon.recovery import open_frozen_layer, open_layer
from workspacefs_daemon.retirement import Retirement
from workspacefs_daemon.spec import SessionSpec
from workspacefs_daemon.unmounted import fork_unmounted, put_away

log = logging.getLogger(__name__)

_GC_THRESHOLDS: Final = (50_000, 20, 50)
"""Inodes and rows make no cycles; a full collection over a million inodes takes a second."""


def warm_up() -> None:
    """Go once through what every session does first, opening nothing that stays open.

    The zygote calls this before it forks. Measured: the first event loop of a process takes
    5.5 ms, the next one 2.3 ms, in a fork too.
    """

    async def begin() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.lowlevel.checkpoint)

    trio.run(begin)


def get_ready() -> None:
    """Go once through what takes longest, in a process that waits for its order: what it touches
    now, it need not copy from its parent later.
    """

    async def begin() -> None:
        await Blocking().job(lambda: None)

    trio.run(begin)
    try:
        with TemporaryDirectory(prefix="workspacefs-") as directory:
            layer, journal = open_layer(Path(directory) / "layer", 1)
            journal.close()
            layer.close()
            open_frozen_layer(layer.directory, 1).close()
    except (OSError, WorkspaceError) as exc:  # it will take longer then, and that is all
        log.info("session.not_ready_ahead", extra={"reason": str(exc)})


def run_session(
    spec: SessionSpec,
    ready: Callable[[Mapping[str, object]], None],
    failed: Callable[[BaseException], None],
    *,
    environ: Mapping[str, str],
) -> None:
    """Serve one mount from beginning to end; see zygote.RunSession.

    Args:
        spec: What to mount.
        ready: Called when it answers.
        failed: Called with what went wrong.
        environ: What a new supervisor would be started with, if one is needed.
    """
    gc.set_threshold(*_GC_THRESHOLDS)
    bound_memory()
    mounted = open_mounted(spec, environ)
    if spec.puts_away:
        trio.run(put_away, mounted, ready)
    elif spec.forks is not None:
        trio.run(fork_unmounted, mounted, spec.forks, ready)
    else:
        trio.run(_serve, mounted, ready, environ)


async def _serve(
    mounted: Mounted,
    ready: Callable[[Mapping[str, object]], None],
    environ: Mapping[str, str],
) -> None:
    spec = mounted.spec
    socket_path = StateDir(spec.state_dir).session_socket(mounted.session_id)
    description = describe_session(mounted, socket_path)
    browsing = Browsing(mounted)
    operations = _operations(mounted, browsing, describe=lambda: description)
    retirement = Retirement(mounted, operations.counts)
    adoption = Adoption(mounted, environ)
    ops = Ops(
        mounted,
        browsing,
        retirement,
        counts=operations.counts,
        pid=os.getpid(),
        tell_kernel=lambda notices: tell_kernel(notices, mounted.fs.namespace.top_id),
        on_other_keys=adoption.renew,
    )
    metrics = None if spec.metrics is None else listen_metrics(spec.metrics)
    try:
        await _find_top(mounted)
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_control, socket_path, ops)
            with retirement.beginning(), clear_mountpoint(spec):
                mount(operations, spec, mounted.name)
            try:
                nursery.start_soon(mounted.durability.run, mounted.chain.want_spares_if_changed)
                if not mounted.is_read_only:
                    nursery.start_soon(beside, partial(tidy_layers, mounted))
                    nursery.start_soon(beside, partial(retire, retirement))
                    nursery.start_soon(beside, Sweeper(mounted, environ).run)
                nursery.start_soon(_unmount_on_signal, spec.mountpoint, mounted)
                nursery.start_soon(_announce, mounted, operations, socket_path, ready, adoption)
                if metrics is not None:
                    nursery.start_soon(beside, partial(serve_metrics, metrics, ops.stats))
                if mounted.far is not None:
                    nursery.start_soon(beside, partial(read_ahead, mounted.far, mounted))
                    nursery.start_soon(beside, partial(keep_file_ids, mounted))
                if spec.autosave_s is not None and not mounted.is_read_only:
                    nursery.start_soon(
                        beside,
                        partial(
                            autosave,
                            mounted,
                            own_provenance(mounted),
                            period_s=spec.autosave_s,
                            flush=partial(flush_maps, mounted),
                        ),
                    )
                if mounted.early is not None:
                    nursery.start_soon(beside, partial(upload_early, mounted.early, mounted))
                await serve(operations, mounted.blocking)
            finally:
                pyfuse3.close(unmount=True)
            nursery.cancel_scope.cancel()
        if not mounted.is_read_only:
            with trio.CancelScope(shield=True):
                await retirement.finish()
    finally:
        browsing.close()
        with trio.CancelScope(shield=True):
            await mounted.close()


def _operations(
    mounted: Mounted, browsing: Browsing, *, describe: Callable[[], bytes]
) -> Operations:
    fs = mounted.fs
    hidden = HiddenOperations(
        browsing, mounted.blocking, top=lambda: fs.top, began_ns=mounted.services.now_ns()
    )
    kind = Operations if mounted.spec.subpath is None else SubpathOperations
    return kind(fs, mounted.blocking, describe=describe, hidden=hidden)


async def _find_top(mounted: Mounted) -> None:
    """Let the mount show what it is to show."""
    subpath = mounted.spec.subpath
    top = await find_top(mounted.overlay, subpath, mounted.blocking)
    if top is None:
        raise NotFoundError(
            f"there is no directory {subpath} in {mounted.name}; mount without --subpath and make "
            "it, or name one that is there (links are not followed)",
            kind="subpath.absent",
            subpath=subpath,
        )
    mounted.fs.show(top)


async def beside(task: Callable[[], Awaitable[None]]) -> None:
    """Run something that the mount can do without: when it fails, the files stay."""
    try:
        await task()
    except Exception:  # a task root: its end must not be the mount's
        log.exception("session.task_failed")


async def _announce(
    mounted: Mounted,
    operations: Operations,
    socket_path: str,
    ready: Callable[[Mapping[str, object]], None],
    adoption: Adoption,
) -> None:
    """Say that the mount answers, once it does; then see to it that it is brought back."""
    spec = mounted.spec
    await operations.has_begun.wait()
    session = mounted.session
    ready(
        {
            "session": mounted.name,
            "session_id": mounted.session_id,
            "socket": socket_path,
            "mountpoint": spec.mountpoint,
            "store_url": mounted.workspace.url,
            "branch": spec.branch if session is None else session.session.branch,
            "base": mounted.base.id.hex() if mounted.base else None,
            "has_changes": mounted.chain.has_changes(),
        }
    )
    await beside(partial(mounted.blocking.job, partial(raise_read_ahead, spec.mountpoint)))
    if spec.restarts:
        await beside(adoption.run)


async def _unmount_on_signal(mountpoint: str, mounted: Mounted) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            give_up(mounted, "its process was told to end")
            try:
                await mounted.blocking.job(lambda: unmount(mountpoint))
            except BusyError:
                # Whoever has files open keeps them until this process ends; what they wrote stays.
                with suppress(NotFoundError):
                    await mounted.blocking.job(lambda: unmount(mountpoint, is_lazy=True))
                pyfuse3.terminate()
            except NotFoundError:
                pyfuse3.terminate()
            except WorkspaceError:
                log.exception("session.unmount_failed")
                pyfuse3.terminate()
