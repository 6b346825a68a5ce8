"""Taking a mount away on purpose: so noted that nobody brings the session back if its process dies
over it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from workspacefs.client.registry import give_up_session, want_session
from workspacefs.statedir import StateDir
from workspacefs_daemon.mounted import Mounted

log = logging.getLogger(__name__)


def give_up(mounted: Mounted, why: str) -> None:
    """Note that the session shall not be brought back; `why` is for people.

    A note that cannot be written (a full disk) keeps nobody from unmounting: it is needed only if
    the process is killed before it has ended cleanly.
    """
    try:
        give_up_session(StateDir(mounted.spec.state_dir), mounted.session_id, why)
    except OSError as exc:
        log.warning("session.not_noted", extra={"session": mounted.name, "errno": exc.errno})


@contextmanager
def giving_up(mounted: Mounted, why: str) -> Iterator[None]:
    """Give the session up for as long as the block runs, and for good when it succeeds."""
    give_up(mounted, why)
    try:
        yield
    except BaseException:
        want_session(StateDir(mounted.spec.state_dir), mounted.session_id)
        raise
