"""inotify, for tests."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from types import TracebackType

_libc = ctypes.CDLL(None, use_errno=True)
_EVENT = struct.Struct("iIII")
_IN_ALL = 0xFFF
_IN_NONBLOCK = os.O_NONBLOCK


class Watch:
    """Watches directories within the block."""

    def __init__(self, *directories: Path) -> None:
        self._directories = directories
        self._fd = -1
        self._watched: dict[int, Path] = {}

    def __enter__(self) -> Watch:
        self._fd = _libc.inotify_init1(_IN_NONBLOCK)
        for directory in self._directories:
            number = _libc.inotify_add_watch(self._fd, os.fsencode(directory), _IN_ALL)
            self._watched[number] = directory
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def read(self) -> list[tuple[Path, str]]:
        """Return directory and name ("": the directory itself) of all events until now."""
        found: list[tuple[Path, str]] = []
        while True:
            try:
                data = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                return found
            while data:
                number, _, _, length = _EVENT.unpack_from(data)
                name = data[_EVENT.size : _EVENT.size + length].rstrip(b"\0")
                found.append((self._watched[number], os.fsdecode(name)))
                data = data[_EVENT.size + length :]
