"""What a mounted session has frozen becomes its newest commit."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import trio

from workspacefs.objects.commits import Provenance
from workspacefs.workspace.commit import Committed, commit_pending
from workspacefs.workspace.notes import WRITERS
from workspacefs.workspace.writers import collect_writers, start_of, writers_note
from workspacefs_daemon.control.server import SendProgress
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.telling import telling, telling_of_loss


async def commit_frozen(
    mounted: Mounted,
    message: str,
    provenance: Provenance,
    meta: Mapping[str, str],
    into: str,
    progress: SendProgress,
) -> Committed | None:
    """Commit the frozen layers of a session, and what is merged; None: there is no difference to
    its head. On return the commit is durable, and the mount stands on it. The caller holds
    `committing`, and has settled what was unclear.

    Args:
        mounted: The session.
        message: Why.
        provenance: Who and what.
        meta: Anything else.
        into: Branch that it will be landed on; "": none.
        progress: Hears how far it is.

    Raises:
        MovedError: The session goes on in another place.
        UnavailableError: The store does not answer.
    """
    session = mounted.session
    assert session is not None
    merge = await mounted.load_open_merge()
    with mounted.viewed(list(mounted.overlay.frozen)) as pending:
        async with telling(progress) as note:
            # Once the ref may have moved, what follows must be done too: hanging up does not stop
            # a commit half-way.
            with (
                trio.CancelScope(shield=True),
                mounted.noting_unclear(),
                mounted.noting_loss(),
                telling_of_loss("commit"),
            ):
                writers = await mounted.blocking.job(partial(collect_writers, pending))
                outcome = await mounted.blocking.job(
                    lambda: commit_pending(
                        mounted.workspace,
                        session,
                        pending,
                        message=message,
                        provenance=provenance,
                        meta={**meta, **start_of(writers)},
                        before_move=mounted.chain.note_sealing,
                        into=into,
                        notes={WRITERS: writers_note(writers)},
                        built_on=mounted.own_commits,
                        find_stored=mounted.find_stored,
                        merge=merge,
                        progress=note,
                    )
                )
    committed = outcome if isinstance(outcome, Committed) else None
    with trio.CancelScope(shield=True):
        await mounted.rebase(outcome.sealed, committed)
    return committed
