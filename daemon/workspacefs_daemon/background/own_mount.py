"""Asking our own mount as programs do, so that kill -9 still ends this process, and the mount.

Whoever waits for the answer to a request that the file system's process has read cannot be killed.
The kernel gives all of them up when the mount's device is closed everywhere; but a thread of that
very process that waits so keeps its files open, the device among them, and then nothing ever ends:
neither the process nor any program that uses the mount. So whoever asks has a table of files of
its own, without the device.

Source: fs/fuse/dev.c, request_wait_answer and fuse_dev_release; close_range(2).
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

_SYS_CLOSE_RANGE: Final = 436
"""The same on all architectures."""
_CLOSE_RANGE_UNSHARE: Final = 2
_FIRST: Final = 3
_LAST: Final = 0xFFFFFFFF
_libc: Final = ctypes.CDLL(None, use_errno=True)


class Ask(Protocol):
    """Runs a call that asks the mount, and returns or raises what it does."""

    def __call__(self, call: Callable[[], T]) -> T:
        """Run it. It has no file of ours that is open, logs included, and keeps none open."""
        ...


@contextmanager
def asking_own_mount() -> Iterator[Ask]:
    """Give what asks our own mount within the block; blocking, so not for the event loop."""
    # What finishes garbage there would close files by numbers of the other table; a few calls
    # without cycles make none.
    with ThreadPoolExecutor(1, "own-mount", initializer=_leave_files) as thread:
        yield lambda call: thread.submit(call).result()


def _leave_files() -> None:
    done = _libc.syscall(
        ctypes.c_long(_SYS_CLOSE_RANGE),
        ctypes.c_uint(_FIRST),
        ctypes.c_uint(_LAST),
        ctypes.c_uint(_CLOSE_RANGE_UNSHARE),
    )
    if done != 0:  # before Linux 5.9: as it is, with the risk
        log.debug("own_mount.shares_files", extra={"errno": os.strerror(ctypes.get_errno())})
