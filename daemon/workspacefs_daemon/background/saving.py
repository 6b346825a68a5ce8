"""Autosave: uncommitted work goes to the store every few seconds, and so outlives the machine."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from workspacefs.errors import MovedError, WorkspaceError
from workspacefs.objects.commits import Provenance
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.saving import Saving

log = logging.getLogger(__name__)


async def autosave(
    mounted: Mounted,
    provenance: Provenance,
    *,
    period_s: float,
    flush: Callable[[], Awaitable[None]],
) -> None:
    """Save whatever has changed, `period_s` after the last save ended; runs until cancelled.

    Args:
        mounted: The session.
        provenance: Who saves.
        period_s: Longest time that work is on this machine alone, while the store answers.
        flush: Has the kernel write back shared maps.
    """
    saving = Saving(mounted)
    while True:
        await trio.sleep(period_s)
        if not mounted.is_unsaved():
            continue
        began = trio.current_time()
        try:
            saved = await saving.save_beside(provenance, flush)
        except MovedError as exc:
            # It will not get better: the files stay, and commit and status say what has happened.
            log.error("session.save_refused", extra={"kind": exc.kind, "reason": str(exc)})  # noqa: TRY400
            return
        except WorkspaceError as exc:
            log.warning("session.save_put_off", extra={"kind": exc.kind, "reason": str(exc)})
        else:
            if saved is not None:
                log.info(
                    "session.saved",
                    extra={
                        "session": mounted.name,
                        "bytes": saved.stored_bytes,
                        "duration_ms": round((trio.current_time() - began) * 1000, 3),
                    },
                )
