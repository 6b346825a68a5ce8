"""A backend in the memory of this process, for tests: the contract and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from blake3 import blake3

from workspacefs.backend.contract import KeyInfo, Version, check_key
from workspacefs.errors import BusyError, IntegrityError, KeyAbsentError, WorkspaceError

_stores: dict[str, dict[str, bytes]] = {}
_lock = threading.Lock()


class MemoryBackend:
    """Values in a dictionary; instances of one name share it as long as the process lives."""

    is_local = True

    def __init__(self, name: str) -> None:
        self.url = f"memory:{name}"
        with _lock:
            self._values = _stores.setdefault(name, {})

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return a value or exactly the range asked for. See Backend.get."""
        value = self._value(key)
        end = len(value) if length is None else offset + length
        if offset < 0 or offset > end or end > len(value):
            raise IntegrityError(
                f"{key} has {len(value)} bytes where bytes {offset} to {end} were expected",
                kind="store.short",
                key=key,
            )
        return value[offset:end]

    def get_versioned(self, key: str) -> tuple[bytes, Version]:
        """Return a whole value and its token. See Backend.get_versioned."""
        value = self._value(key)
        return value, _version_of(value)

    def size_bytes(self, key: str) -> int:
        """Return the length of a value. See Backend.size_bytes."""
        return len(self._value(key))

    def put(self, key: str, parts: Sequence[bytes | memoryview]) -> None:
        """Store under a key never used. See Backend.put."""
        if self.put_if_absent(key, b"".join(parts)) is None:
            raise BusyError(f"{key} is stored already", kind="store.exists", key=key)

    def put_if_absent(self, key: str, data: bytes) -> Version | None:
        """Store unless a value is there. See Backend.put_if_absent."""
        check_key(key)
        with _lock:
            if key in self._values:
                return None
            self._values[key] = bytes(data)
        return _version_of(data)

    def put_if_version(self, key: str, data: bytes, version: Version) -> Version | None:
        """Replace just the value of that token. See Backend.put_if_version."""
        check_key(key)
        with _lock:
            current = self._values.get(key)
            if current is None or _version_of(current) != version:
                return None
            self._values[key] = bytes(data)
        return _version_of(data)

    def iter_keys(self, prefix: str, *, start_after: str = "") -> Iterator[KeyInfo]:
        """Yield keys in ascending order. See Backend.iter_keys."""
        with _lock:
            found = [
                KeyInfo(key, len(value), _version_of(value))
                for key, value in self._values.items()
                if key.startswith(prefix) and key > start_after
            ]
        yield from sorted(found, key=lambda info: info.key)

    def delete(self, key: str) -> None:
        """Remove a value if it is there. See Backend.delete."""
        check_key(key)
        with _lock:
            self._values.pop(key, None)

    def delete_if_version(self, key: str, version: Version) -> bool:
        """Remove just the value of that token. See Backend.delete_if_version."""
        check_key(key)
        with _lock:
            current = self._values.get(key)
            if current is None or _version_of(current) != version:
                return False
            del self._values[key]
        return True

    def forget_local(self, key: str, *, offset: int, length: int) -> None:
        """Do nothing: there are no copies. See Backend.forget_local."""

    def is_near(self, key: str, *, offset: int, length: int) -> bool:
        """Return True. See Backend.is_near."""
        return True

    def find_near(self, key: str, *, offset: int, length: int) -> bytes | None:
        """Return a range if it is there. See Backend.find_near."""
        try:
            return self.get(key, offset=offset, length=length)
        except (KeyAbsentError, WorkspaceError):
            return None

    def free_bytes(self) -> tuple[int, int] | None:
        """Return None: memory has no disk."""
        return None

    def _value(self, key: str) -> bytes:
        check_key(key)
        value = self._values.get(key)
        if value is None:
            raise KeyAbsentError(key)
        return value


def _version_of(value: bytes) -> Version:
    return Version(blake3(value).hexdigest())
