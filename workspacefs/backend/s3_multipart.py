"""Storing a large value in parts that travel side by side.

This module must not know boto3, nor what conditions a server understands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol

MULTIPART_MIN_BYTES: Final = 16 << 20
"""Larger values travel in parts."""
PART_BYTES: Final = 8 << 20
PARALLEL_PARTS: Final = 4


class Upload(Protocol):
    """One multipart upload that has begun."""

    def send_part(self, number: int, data: bytearray) -> str:
        """Send a part, the first one is number 1; return its token. Any thread; may be repeated."""
        ...

    def complete(self, tokens: Sequence[str]) -> None:
        """Make the parts the value."""
        ...

    def abort(self) -> None:
        """Let the server forget the parts; never raises."""
        ...


def upload_parts(upload: Upload, parts: Sequence[bytes | memoryview]) -> None:
    """Send the parts, joined, and complete the upload; it is aborted when anything fails."""
    is_complete = False
    try:
        with ThreadPoolExecutor(PARALLEL_PARTS, thread_name_prefix="s3-part") as threads:
            futures: list[Future[str]] = []
            try:
                for number, data in enumerate(iter_slices(parts, PART_BYTES), start=1):
                    if number > PARALLEL_PARTS:  # bounded: not all slices exist at once
                        futures[number - PARALLEL_PARTS - 1].result()
                    futures.append(threads.submit(upload.send_part, number, data))
                tokens = [future.result() for future in futures]
            finally:
                for future in futures:
                    future.cancel()
        upload.complete(tokens)
        is_complete = True
    finally:
        if not is_complete:
            upload.abort()


def iter_slices(parts: Sequence[bytes | memoryview], size_bytes: int) -> Iterator[bytearray]:
    """Yield the parts, joined and cut into slices of `size_bytes`; the last one may be shorter."""
    held: list[bytes | memoryview] = []
    held_bytes = 0
    for part in parts:
        rest = memoryview(part).cast("B")
        while held_bytes + len(rest) >= size_bytes:
            cut = size_bytes - held_bytes
            yield bytearray().join((*held, rest[:cut]))
            rest, held, held_bytes = rest[cut:], [], 0
        if len(rest):
            held.append(rest)
            held_bytes += len(rest)
    if held:
        yield bytearray().join(held)
