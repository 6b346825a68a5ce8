"""Handing out file ids that no one else hands out, without asking anyone for each."""

from __future__ import annotations

import json
import secrets
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from workspacefs.backend.contract import Backend
from workspacefs.backend.retry import RetryPolicy
from workspacefs.clock import Clock
from workspacefs.errors import UnavailableError
from workspacefs.ids import EPOCH_BITS, EPOCH_COUNTER_BITS, FileId

_ATTEMPTS: Final = 8


def draw_epoch() -> int:
    """Return a random epoch that nobody may own yet."""
    return 1 + secrets.randbelow((1 << EPOCH_BITS) - 1)


def claim_epoch(
    backend: Backend, clock: Clock, epoch: int, *, retry: RetryPolicy | None = None
) -> bool:
    """Claim one epoch for ever: a key that can be made only once; False: someone else has it.

    Survives power loss on return. A lost answer is found out by reading back what is there.

    Raises:
        UnavailableError: The store does not answer.
    """
    # The claim is told from all others, so that it is recognised when its answer was lost.
    document = {"claimed_ns": clock.now_ns(), "claim": secrets.token_hex(16)}
    value = json.dumps(document).encode("ascii")
    key = f"ids/{epoch:010x}"
    tries = (retry or RetryPolicy()).begin()
    while True:
        try:
            if backend.put_if_absent(key, value) is not None:
                return True
            return tries.retries > 0 and backend.get(key) == value
        except UnavailableError:
            if not tries.wait():
                raise


def allocate_epoch(backend: Backend, clock: Clock) -> int:
    """Claim a random epoch for ever. Survives power loss.

    Raises:
        UnavailableError: The store does not answer, or claims that every epoch is taken.
    """
    for _ in range(_ATTEMPTS):
        epoch = draw_epoch()
        if claim_epoch(backend, clock, epoch):
            return epoch
    raise UnavailableError(
        f"the store at {backend.url} says that {_ATTEMPTS} random file id epochs are all taken; "
        "its conditional writes do not work",
        kind="ids.taken",
    )


class FileIdAllocator:
    """Gives file ids from epochs that it claims as needed. Not thread-safe.

    Args:
        backend: Where epochs are claimed.
        clock: For what is written there.
        in_background: On a store far away, give ids out while their epoch is being claimed. They
            may be told to no one else before `settle` returned.
    """

    def __init__(self, backend: Backend, clock: Clock, *, in_background: bool = False) -> None:
        self._backend = backend
        self._clock = clock
        self._in_background = in_background and not backend.is_local
        self._claims: list[tuple[int, Future[bool]]] = []
        self._next = 0
        self._end = 0
        self.epochs: list[int] = []
        """Claimed so far, or being claimed."""

    def allocate(self) -> FileId:
        """Return an id that was never returned before, anywhere."""
        if self._next == self._end:
            epoch = self._begin_epoch()
            self.epochs.append(epoch)
            self._next = epoch << EPOCH_COUNTER_BITS
            self._end = self._next + (1 << EPOCH_COUNTER_BITS)
        file_id = self._next
        self._next += 1
        return FileId(file_id)

    def settle(self) -> None:
        """Wait until all epochs are claimed; then the ids are ours for ever.

        Raises:
            UnavailableError: The store does not answer, or someone has such an epoch already (kind
                "ids.taken"; one draw in 5 * 10**11 for each that was ever claimed): all ids
                are void.
        """
        for epoch, claim in self._claims:
            if not claim.result():
                raise UnavailableError(
                    f"file id epoch {epoch:x}, drawn at random, is taken; try again",
                    kind="ids.taken",
                )
        self._claims.clear()

    def _begin_epoch(self) -> int:
        if not self._in_background:
            return allocate_epoch(self._backend, self._clock)
        epoch = draw_epoch()
        executor = ThreadPoolExecutor(1)
        self._claims.append(
            (epoch, executor.submit(claim_epoch, self._backend, self._clock, epoch))
        )
        executor.shutdown(wait=False)  # its thread ends with the claim, whoever waits for it
        return epoch
