"""Cutting a byte stream into lines of bounded length. This module must not know what they say."""

from __future__ import annotations

from workspacefs.errors import UsageError
from workspacefs.protocol.messages import LINE_MAX_BYTES


class LineBuffer:
    """Holds what came in of a line that is not complete yet. Not thread-safe."""

    def __init__(self, *, limit_bytes: int = LINE_MAX_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take what came in and return the lines that are now complete, without their ends.

        Raises:
            UsageError: A line is longer than the limit; the stream is of no more use.
        """
        if b"\n" not in data:
            self._pending += data
            self._check(len(self._pending))
            return []
        first, *rest = data.split(b"\n")
        lines = [bytes(self._pending) + first, *rest]
        self._pending = bytearray(lines.pop())
        for line in lines:
            self._check(len(line))
        self._check(len(self._pending))
        return lines

    def _check(self, length: int) -> None:
        if length > self._limit_bytes:
            self._pending.clear()
            raise UsageError(
                f"a message is longer than {self._limit_bytes} bytes", kind="protocol.too_long"
            )
