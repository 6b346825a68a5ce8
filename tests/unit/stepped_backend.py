"""A store at whose writes a test does something: another writer's turn, or a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from workspacefs.backend.contract import Backend, KeyInfo, Version


class Crash(BaseException):
    """The process died here."""


class SteppedBackend:
    """Passes everything on; calls `before` and `after` with the number and key of each write."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.url = inner.url
        self.is_local = inner.is_local
        self.before: Callable[[int, str], None] = lambda number, key: None
        self.after: Callable[[int, str], None] = lambda number, key: None
        self.writes = 0
        self.under_way: Callable[[], object] = lambda: None
        """The write before which it crashed: it may arrive yet."""

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        return self._inner.get(key, offset=offset, length=length)

    def get_versioned(self, key: str) -> tuple[bytes, Version]:
        return self._inner.get_versioned(key)

    def size_bytes(self, key: str) -> int:
        return self._inner.size_bytes(key)

    def put(self, key: str, parts: Sequence[bytes | memoryview]) -> None:
        self._write(key, lambda: self._inner.put(key, parts))

    def put_if_absent(self, key: str, data: bytes) -> Version | None:
        return self._write(key, lambda: self._inner.put_if_absent(key, data))

    def put_if_version(self, key: str, data: bytes, version: Version) -> Version | None:
        return self._write(key, lambda: self._inner.put_if_version(key, data, version))

    def iter_keys(self, prefix: str, *, start_after: str = "") -> Iterator[KeyInfo]:
        return self._inner.iter_keys(prefix, start_after=start_after)

    def delete(self, key: str) -> None:
        self._inner.delete(key)

    def delete_if_version(self, key: str, version: Version) -> bool:
        return self._inner.delete_if_version(key, version)

    def forget_local(self, key: str, *, offset: int, length: int) -> None:
        return None

    def is_near(self, key: str, *, offset: int, length: int) -> bool:
        return self._inner.is_near(key, offset=offset, length=length)

    def find_near(self, key: str, *, offset: int, length: int) -> bytes | None:
        return self._inner.find_near(key, offset=offset, length=length)

    def free_bytes(self) -> tuple[int, int] | None:
        return None

    def _write(self, key, call):  # type: ignore[no-untyped-def]
        self.writes += 1
        number = self.writes
        try:
            self.before(number, key)
        except Crash:
            self.under_way = call
            raise
        answer = call()
        self.after(number, key)
        return answer
