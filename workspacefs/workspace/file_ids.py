"""Handing out file ids that no one else hands out, without asking anyone for each."""

from __future__ import annotations

import json
import secrets
from typing import Final

from workspacefs.backend.contract import Backend
from workspacefs.clock import Clock
from workspacefs.errors import UnavailableError
from workspacefs.ids import EPOCH_BITS, EPOCH_COUNTER_BITS, FileId

_ATTEMPTS: Final = 8


def allocate_epoch(backend: Backend, clock: Clock) -> int:
    """Claim a random epoch for ever: a key that can be made only once. Survives power loss.

    Raises:
        UnavailableError: The store does not answer, or claims that every epoch is taken.
    """
    value = json.dumps({"claimed_ns": clock.now_ns()}).encode("ascii")
    for _ in range(_ATTEMPTS):
        epoch = secrets.randbits(EPOCH_BITS)
        # Random: a lost answer costs an epoch, never a double claim.
        if epoch and backend.put_if_absent(f"ids/{epoch:010x}", value) is not None:
            return epoch
    raise UnavailableError(
        f"the store at {backend.url} says that {_ATTEMPTS} random file id epochs are all taken; "
        "its conditional writes do not work",
        kind="ids.taken",
    )


class FileIdAllocator:
    """Gives file ids from epochs that it claims as needed. Not thread-safe."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._next = 0
        self._end = 0
        self.epochs: list[int] = []
        """Claimed so far."""

    def allocate(self) -> FileId:
        """Return an id that was never returned before, anywhere."""
        if self._next == self._end:
            epoch = allocate_epoch(self._backend, self._clock)
            self.epochs.append(epoch)
            self._next = epoch << EPOCH_COUNTER_BITS
            self._end = self._next + (1 << EPOCH_COUNTER_BITS)
        file_id = self._next
        self._next += 1
        return FileId(file_id)
