"""A backend that reads values which never change through the cache, and passes on all else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from workspacefs.backend.contract import Backend, KeyInfo, RangeSource, Version
from workspacefs.cache.fetch_queue import Priority
from workspacefs.cache.fetcher import Fetcher

WAIT_S: Final = 60.0
"""Longest wait for bytes that the store must send."""


class RemoteStore(Backend, RangeSource, Protocol):
    """What is worth a cache."""


class CachingBackend:
    """`inner`, with the values below `prefix` cached. As safe as a Backend.

    Args:
        inner: Where everything is.
        fetcher: Brings ranges and keeps them.
        prefix: Keys below it are written once and never again.
        keeps_writes: Whether values are cached that are put through us: they will be read here.
        priority: Of all reads through this instance.
        wait_s: Longest wait for a range.
    """

    is_local = False

    def __init__(
        self,
        inner: RemoteStore,
        fetcher: Fetcher,
        *,
        prefix: str = "packs/",
        keeps_writes: bool,
        priority: Priority = Priority.DEMAND,
        wait_s: float = WAIT_S,
    ) -> None:
        self.inner = inner
        self.fetcher = fetcher
        self._prefix = prefix
        self._keeps_writes = keeps_writes
        self._priority = priority
        self._wait_s = wait_s

    @property
    def url(self) -> str:
        """Of the store behind. See Backend.url."""
        return self.inner.url

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return a value or exactly the range asked for. See Backend.get."""
        if not key.startswith(self._prefix):
            return self.inner.get(key, offset=offset, length=length)
        if length is None:
            length = self.size_bytes(key) - offset
            if length < 0:
                return self.inner.get(key, offset=offset)  # which says what is wrong
        return self.read(key, offset, length, wait_s=self._wait_s)

    def is_cached(self, key: str) -> bool:
        """Tell whether values of such keys are kept."""
        return key.startswith(self._prefix)

    def read(
        self, key: str, offset: int, length: int, *, wait_s: float, reads_ahead: bool = True
    ) -> bytes:
        """Return exactly a range of a cached value. See Fetcher.read."""
        return self.fetcher.read(
            key,
            offset,
            length,
            wait_s=wait_s,
            priority=self._priority,
            reads_ahead=reads_ahead,
        )

    def get_versioned(self, key: str) -> tuple[bytes, Version]:
        """Return a whole value and its token. See Backend.get_versioned."""
        return self.inner.get_versioned(key)

    def size_bytes(self, key: str) -> int:
        """Return the length of a value. See Backend.size_bytes."""
        return self.inner.size_bytes(key)

    def put(self, key: str, parts: Sequence[bytes | memoryview]) -> None:
        """Store under a key never used. See Backend.put."""
        self.inner.put(key, parts)
        if self._keeps_writes and key.startswith(self._prefix):
            self.fetcher.insert(key, parts[0] if len(parts) == 1 else b"".join(parts))

    def put_if_absent(self, key: str, data: bytes) -> Version | None:
        """Store unless a value is there. See Backend.put_if_absent."""
        return self.inner.put_if_absent(key, data)

    def put_if_version(self, key: str, data: bytes, version: Version) -> Version | None:
        """Replace just the value of that token. See Backend.put_if_version."""
        return self.inner.put_if_version(key, data, version)

    def iter_keys(self, prefix: str, *, start_after: str = "") -> Iterator[KeyInfo]:
        """Yield keys in ascending order. See Backend.iter_keys."""
        return self.inner.iter_keys(prefix, start_after=start_after)

    def delete(self, key: str) -> None:
        """Remove a value if it is there. See Backend.delete."""
        self.inner.delete(key)
        if key.startswith(self._prefix):
            self.fetcher.remove(key)

    def delete_if_version(self, key: str, version: Version) -> bool:
        """Remove just the value of that token. See Backend.delete_if_version."""
        return self.inner.delete_if_version(key, version)

    def free_bytes(self) -> tuple[int, int] | None:
        """Return what the store behind says. See Backend.free_bytes."""
        return self.inner.free_bytes()

    def forget_local(self, key: str, *, offset: int, length: int) -> None:
        """Fetch a range anew when it is asked for next. See Backend.forget_local."""
        self.fetcher.forget(key, offset, length)

    def is_near(self, key: str, *, offset: int, length: int) -> bool:
        """Tell whether a range is in the cache. See Backend.is_near."""
        return self.is_cached(key) and self.fetcher.holds(key, offset, length)

    def find_near(self, key: str, *, offset: int, length: int) -> bytes | None:
        """Return a range that is in the cache. See Backend.find_near."""
        return self.fetcher.find(key, offset, length) if self.is_cached(key) else None
