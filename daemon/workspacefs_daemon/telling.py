"""Telling whoever asked how far long work is, and what became of it if it was not finished."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import trio

from workspacefs.errors import UnavailableError
from workspacefs.workspace.seal import SealProgress
from workspacefs_daemon.control.server import SendProgress

_PROGRESS_PERIOD_S: Final = 0.2


@contextmanager
def telling_of_loss(what: str) -> Iterator[None]:
    """Say of a commit or pause that could not be done what has become of the work: nothing."""
    try:
        yield
    except UnavailableError as exc:
        raise UnavailableError(
            f"the {what} was not finished: {exc}. Nothing is lost: your files are as you left them "
            f"in this session; {what} again when the store answers",
            kind=exc.kind,
            **exc.context,
        ) from exc


@asynccontextmanager
async def telling(progress: SendProgress) -> AsyncIterator[SealProgress]:
    """Tell how far the block is, as it notes by what this returns: files and bytes so far."""
    done = {"files": 0, "bytes": 0}

    def note(files: int, size_bytes: int) -> None:
        done.update(files=files, bytes=size_bytes)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tell_progress, progress, done)
        yield note
        nursery.cancel_scope.cancel()


async def _tell_progress(progress: SendProgress, done: Mapping[str, int]) -> None:
    while True:
        await trio.sleep(_PROGRESS_PERIOD_S)
        await progress(dict(done))
