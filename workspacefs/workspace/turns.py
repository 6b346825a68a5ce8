"""Taking turns at landing, among those of one account on one machine.

Landings are decided by compare-and-swap of the branch alone. But of many who try at once on one
machine each does the same merges again and again, for one of them to win, and luck says who: so
they queue up. Nothing depends on that; whoever has waited long enough goes ahead.

A queue is a directory with a file for each who waits, named by number and locked by its owner: a
file that nobody has locked is that of a process that is gone.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from workspacefs.statedir import PRIVATE_DIR_MODE, StateDir

WAIT_MAX_S: Final = 10.0
"""A store that does not answer holds up whoever has the turn."""
_FIRST_S: Final = 0.001
_LATER_S: Final = 0.02
_ENTRANCE: Final = "entrance"
_DIGITS: Final = 12


@contextmanager
def turn(
    state: StateDir, workspace_id: str, branch: str, *, wait_max_s: float = WAIT_MAX_S
) -> Iterator[bool]:
    """Have the turn at landing on a branch within the block, first come, first served; blocking. It
    yields whether we have it: False after `wait_max_s`, and where no queue can be had at all.
    """
    queue = Path(state.run_dir) / "landing" / f"{workspace_id}-{branch.replace('/', ',')}"
    ticket, fd, is_ours = None, -1, False
    try:
        try:
            ticket, fd = _enter(queue)
            is_ours = _wait(queue, ticket, time.monotonic() + wait_max_s)
        except OSError:
            is_ours = False
        yield is_ours
    finally:
        if ticket is not None:
            with suppress(OSError):
                (queue / ticket).unlink()
            os.close(fd)


def _enter(queue: Path) -> tuple[str, int]:
    """Return our file in the queue, behind all others, and what holds its lock."""
    queue.mkdir(mode=PRIVATE_DIR_MODE, parents=True, exist_ok=True)
    new = queue / f".{secrets.token_hex(8)}"
    fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with (queue / _ENTRANCE).open("w") as entrance:
            fcntl.flock(entrance, fcntl.LOCK_EX)
            waiting = _waiting(queue)
            number = int(waiting[-1]) + 1 if waiting else 1
            ticket = f"{number:0{_DIGITS}d}"
            new.rename(queue / ticket)  # locked already: nobody takes us for dead
    except BaseException:
        os.close(fd)
        new.unlink(missing_ok=True)
        raise
    return ticket, fd


def _waiting(queue: Path) -> list[str]:
    return sorted(name for name in os.listdir(queue) if name.isdigit())


def _wait(queue: Path, ticket: str, deadline_s: float) -> bool:
    pause_s = _FIRST_S
    while any(_is_there(queue / other) for other in _waiting(queue) if other < ticket):
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LATER_S)
    return True


def _is_there(path: Path) -> bool:
    """Tell whether the owner of a file in the queue lives; remove it if not."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(fd)
