"""Session processes that mount nothing: they do one thing with a session, and end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from workspacefs.errors import RefusedError
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.publishing import Publishing, own_provenance
from workspacefs_daemon.saving import Saving

log = logging.getLogger(__name__)


async def put_away(mounted: Mounted, ready: Callable[[Mapping[str, object]], None]) -> None:
    """Store all of a session and let go of it; say so when it is done.

    Raises:
        RefusedError: It has checkpoints.
        UnavailableError: The store does not answer; all of it is still here then.
    """
    chain, saving = mounted.chain, Saving(mounted)
    try:
        names = saving.checkpoints_here_alone()
        if names and not mounted.spec.drops_checkpoints:
            raise RefusedError(
                f"session {mounted.name} has checkpoints that are on this machine alone and would "
                f"be lost ({', '.join(names[:8])}); fork what you need of them, then give "
                "--drop-checkpoints",
                kind="session.has_checkpoints",
                checkpoints=len(names),
            )
        async with mounted.committing:
            await saving.save(own_provenance(mounted))
        chain.forget_at_close()
    finally:
        await mounted.close()
    log.info("session.put_away", extra={"session": mounted.name})
    ready({"session": mounted.name, "session_id": mounted.session_id})


async def fork_unmounted(
    mounted: Mounted,
    args: Mapping[str, object],
    ready: Callable[[Mapping[str, object]], None],
) -> None:
    """Fork a session that nobody has mounted; say so when it is done.

    Raises:
        BusyError, NotFoundError, UsageError: As for a fork of a mounted one.
    """
    mounted.is_hidden = True  # the kernel has nothing of it
    try:
        answer = await Publishing(mounted).fork(args)
    finally:
        await mounted.close()
    ready({"session": mounted.name, "session_id": mounted.session_id, **answer})
