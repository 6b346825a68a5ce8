"""Values on their way to the store, several at the same time.

Knows nothing of what is in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeAlias

from workspacefs.backend.contract import Backend

Value: TypeAlias = tuple[str, Sequence[bytes | memoryview]]
"""A key, and the parts of what is stored under it."""


class Uploads:
    """Stores values, up to `at_once` at the same time; with 0, each in the caller's thread.

    Memory: the values under way. What an upload raised is raised by the next call, and by every
    call after that. Not thread-safe.
    """

    def __init__(self, backend: Backend, *, at_once: int) -> None:
        self._backend = backend
        self._at_once = at_once
        self._executor: ThreadPoolExecutor | None = None
        self._under_way: set[Future[None]] = set()
        self._failure: BaseException | None = None

    def begin(self, value: Value) -> None:
        """Store a value in the background; waits while `at_once` others are under way."""
        if not self._at_once:
            self._put(value)
            return
        self._wait(leave=self._at_once - 1)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._at_once)
        self._under_way.add(self._executor.submit(self._backend.put, *value))

    def finish(self, values: Sequence[Value]) -> None:
        """Store the last values at the same time; all are durable on return.

        One of them goes from the caller's thread: a writer with little to store needs no other.
        """
        # A thread costs a local store more than the wait that it saves, unless one runs already.
        is_worth_it = self._executor is not None or not self._backend.is_local
        for value in values[:-1]:
            if is_worth_it:
                self.begin(value)
            else:
                self._put(value)
        if values:
            self._wait(leave=max(self._at_once - 1, 0))
            self._put(values[-1])
        self._wait(leave=0)

    def shut_down(self) -> None:
        """Wait for what is under way, whatever comes of it; nothing may be stored after that."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def _put(self, value: Value) -> None:
        self._raise_failure()
        try:
            self._backend.put(*value)
        except BaseException as exc:
            self._failure = exc
            raise

    def _wait(self, *, leave: int) -> None:
        """Wait until no more than `leave` uploads are under way; raises what one of them raised."""
        while len(self._under_way) > leave:
            done, self._under_way = wait(self._under_way, return_when=FIRST_COMPLETED)
            for future in done:
                self._failure = self._failure or future.exception()
            self._raise_failure()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
