"""A backend that goes wrong to order: in front of a real one, by a script that a test writes."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from workspacefs.backend.contract import Backend, KeyInfo, Version
from workspacefs.errors import NoSpaceError, UnavailableError

Fault = Callable[[bytes], bytes]
"""What a faulty read answers instead of the bytes that are stored; it may raise."""


class FaultyBackend:
    """Passes everything on, except that the next operations meet the faults queued for them.

    It passes the contract suite as long as no fault is queued.
    """

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.url = inner.url
        self.is_local = inner.is_local
        self.read_faults: deque[Fault | None] = deque()
        """For the next reads, in order; None: this one is answered well."""
        self.lose_answers = 0
        """So many conditional writes take effect, but their answer is lost."""
        self.lose_requests = 0
        """So many conditional writes are lost before they take effect."""
        self.lose_reads = 0
        """So many reads are not answered."""
        self.full_after_writes: int | None = None
        """After so many writes more, the store is full."""
        self.reads: list[tuple[str, int, int | None]] = []
        """(key, offset, length) of all reads."""
        self.forgotten: list[tuple[str, int, int]] = []
        """(key, offset, length) of all copies that a reader found to be wrong."""
        self.before_write: Callable[[], None] | None = None
        """Called once, before the next conditional write: another writer's chance."""

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Answer a read. See Backend.get."""
        self.reads.append((key, offset, length))
        self._lose_read()
        data = self._inner.get(key, offset=offset, length=length)
        fault = self.read_faults.popleft() if self.read_faults else None
        return data if fault is None else fault(data)

    def get_versioned(self, key: str) -> tuple[bytes, Version]:
        """Answer a read. See Backend.get_versioned."""
        self.reads.append((key, 0, None))
        self._lose_read()
        data, version = self._inner.get_versioned(key)
        fault = self.read_faults.popleft() if self.read_faults else None
        return (data if fault is None else fault(data)), version

    def size_bytes(self, key: str) -> int:
        """Return the length of a value. See Backend.size_bytes."""
        return self._inner.size_bytes(key)

    def put(self, key: str, parts: Sequence[bytes | memoryview]) -> None:
        """Store under a key never used. See Backend.put."""
        self._fill()
        self._inner.put(key, parts)

    def put_if_absent(self, key: str, data: bytes) -> Version | None:
        """Store unless a value is there. See Backend.put_if_absent."""
        return self._conditional(lambda: self._inner.put_if_absent(key, data))

    def put_if_version(self, key: str, data: bytes, version: Version) -> Version | None:
        """Replace just the value of that token. See Backend.put_if_version."""
        return self._conditional(lambda: self._inner.put_if_version(key, data, version))

    def iter_keys(self, prefix: str, *, start_after: str = "") -> Iterator[KeyInfo]:
        """Yield keys in ascending order. See Backend.iter_keys."""
        return self._inner.iter_keys(prefix, start_after=start_after)

    def delete(self, key: str) -> None:
        """Remove a value if it is there. See Backend.delete."""
        self._inner.delete(key)

    def delete_if_version(self, key: str, version: Version) -> bool:
        """Remove just the value of that token. See Backend.delete_if_version."""
        return self._inner.delete_if_version(key, version)

    def forget_local(self, key: str, *, offset: int, length: int) -> None:
        """Pass it on, and count it. See Backend.forget_local."""
        self.forgotten.append((key, offset, length))
        self._inner.forget_local(key, offset=offset, length=length)

    def is_near(self, key: str, *, offset: int, length: int) -> bool:
        """Tell whether a range is near. See Backend.is_near."""
        return self._inner.is_near(key, offset=offset, length=length)

    def find_near(self, key: str, *, offset: int, length: int) -> bytes | None:
        """Return what the inner one has near. See Backend.find_near."""
        return self._inner.find_near(key, offset=offset, length=length)

    def free_bytes(self) -> tuple[int, int] | None:
        """Return (total, free). See Backend.free_bytes."""
        return self._inner.free_bytes()

    def _conditional(self, write: Callable[[], Version | None]) -> Version | None:
        self._fill()
        if self.before_write is not None:
            rival, self.before_write = self.before_write, None
            rival()
        if self.lose_requests:
            self.lose_requests -= 1
            raise UnavailableError("the request was lost")
        version = write()
        if self.lose_answers:
            self.lose_answers -= 1
            raise UnavailableError("the answer was lost")
        return version

    def _lose_read(self) -> None:
        if self.lose_reads:
            self.lose_reads -= 1
            raise UnavailableError("the read was not answered")

    def _fill(self) -> None:
        if self.full_after_writes is None:
            return
        if self.full_after_writes == 0:
            raise NoSpaceError(os.strerror(errno.ENOSPC))
        self.full_after_writes -= 1


def flip_byte(at: int) -> Fault:
    """Return the fault that inverts one byte, counted from the end when negative."""

    def flipped(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[at] ^= 0xFF
        return bytes(changed)

    return flipped
