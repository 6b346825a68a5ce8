"""Keeping the cache under its limit while it is being filled."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Final

from workspacefs.cache.directory import evict

log = logging.getLogger(__name__)

_PERIOD_BYTES: Final = 64 << 20


class Evictor:
    """Looks at the whole cache each time that 64 MiB have come, and once at the beginning.

    Several processes may each have one: the limit holds for all that lies in the directory.
    Thread-safe.
    """

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self.root = root
        self.limit_bytes = limit_bytes
        self.evicted_bytes = 0
        self._since_bytes = _PERIOD_BYTES
        self._running = threading.Lock()

    def note(self, size_bytes: int) -> None:
        """Count bytes that came; evict when it is time. In the caller's thread, a few ms."""
        self._since_bytes += size_bytes
        if self._since_bytes >= min(_PERIOD_BYTES, max(self.limit_bytes // 8, 1)):
            self.run()

    def run(self) -> None:
        """Evict now, unless another thread is at it."""
        if not self._running.acquire(blocking=False):
            return
        try:
            self._since_bytes = 0
            freed_bytes = evict(self.root, self.limit_bytes)
            self.evicted_bytes += freed_bytes
        except OSError as exc:
            log.warning("cache.not_evicted", extra={"errno": exc.errno})
            return
        finally:
            self._running.release()
        if freed_bytes:
            log.info("cache.evicted", extra={"bytes": freed_bytes})
