"""Giving memory back: what the C library keeps for later use must not grow with the threads.

Each thread that allocates gets an arena of its own, and a freed block of megabytes stays in it.
With 48 threads that read chunks, a session of 40 MB grew to 410 MB in one pass over a large file.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Final

log = logging.getLogger(__name__)

# Source: mallopt(3), malloc.h of glibc.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_ARENAS: Final = 2
_MMAP_BYTES: Final = 256 << 10
"""Blocks at least so large are mapped by themselves, and unmapped when they are freed."""


def bound_memory() -> None:
    """Keep this process from holding freed memory; does nothing under another C library."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        log.debug("allocator.unknown")
        return
    for option, value in (
        (_M_ARENA_MAX, _ARENAS),
        (_M_MMAP_THRESHOLD, _MMAP_BYTES),
        (_M_TRIM_THRESHOLD, 1 << 20),
    ):
        mallopt(option, value)
