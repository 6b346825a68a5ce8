"""The kernel's caches, which all tests of a machine share, also those that run at the same time."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOCK = Path(tempfile.gettempdir()) / f"workspacefs-tests-{os.getuid()}.caches"
_DROP = Path("/proc/sys/vm/drop_caches")


@contextmanager
def kept_caches() -> Iterator[None]:
    """Let no other test drop them within the block."""
    with _locked(fcntl.LOCK_SH):
        yield


def drop_caches(what: str) -> bool:
    """Have the kernel forget what it can: "2" names and inodes, "3" pages too (proc(5)); False: we
    may not.
    """
    with _locked(fcntl.LOCK_EX):
        try:
            _DROP.write_text(what)
        except OSError:
            return False
    return True


@contextmanager
def _locked(operation: int) -> Iterator[None]:
    fd = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, operation)
        yield
    finally:
        os.close(fd)
