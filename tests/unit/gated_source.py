"""Values whose ranges arrive piece by piece, each when the test lets it.

Nothing is timed: a test waits for what must happen, and finds out by a time-out that it did not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Mapping
from typing import Final

from workspacefs.backend.contract import RangeAnswer
from workspacefs.errors import IntegrityError, KeyAbsentError

PATIENCE_S: Final = 20.0
"""After that, what should have happened has not."""


def until(is_so: Callable[[], object]) -> None:
    """Wait for something that another thread does."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.0005)


class Piece(bytes):
    """Bytes that are counted as long as anyone holds them."""

    alive = 0
    _counting = threading.RLock()
    """Several threads make them and let go of them; and a collection may come at any time."""

    def __new__(cls, data: bytes) -> Piece:
        with Piece._counting:
            Piece.alive += 1
        return super().__new__(cls, data)

    def __del__(self) -> None:
        with Piece._counting:
            Piece.alive -= 1


class Stream:
    """One range that was asked for."""

    def __init__(self, key: str, offset: int, length: int, *, is_held: bool) -> None:
        self.key = key
        self.offset = offset
        self.length = length
        self.taken = 0
        """Pieces handed out; what the reader did with all but the last one is over."""
        self.is_closed = False
        self.changed = threading.Condition()
        self._allowed = 0 if is_held else 1 << 30
        self._error: BaseException | None = None

    def let(self, pieces: int) -> None:
        """Let so many pieces more arrive."""
        with self.changed:
            self._allowed += pieces
            self.changed.notify_all()

    def let_all(self) -> None:
        """Let all arrive that there is."""
        self.let(1 << 30)

    def fail(self, error: BaseException) -> None:
        """Let it end with an error after what was let in."""
        with self.changed:
            self._error = error
            self.changed.notify_all()

    def wait_turn(self) -> None:
        """Wait until the next piece may be handed out."""
        with self.changed:
            while self._allowed == 0:
                if self._error is not None:
                    raise self._error
                assert self.changed.wait(PATIENCE_S), "nobody let the next piece in"
            self._allowed -= 1
            self.taken += 1

    def end(self) -> None:
        """Take note that nobody reads on."""
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()


class GatedSource:
    """A RangeSource; `is_held` decides whether ranges asked for from now on wait for `let`."""

    def __init__(
        self, values: Mapping[str, bytes], *, is_held: bool = False, piece_bytes: int = 64 << 10
    ) -> None:
        self.values = dict(values)
        self.is_held = is_held
        self.piece_bytes = piece_bytes
        self.errors: list[BaseException] = []
        """Raised instead of the next answers, the first one first."""
        self.mangle: Callable[[Stream, bytes], bytes] = lambda stream, piece: piece
        """Changes pieces on their way."""
        self.streams: list[Stream] = []
        self._changed = threading.Condition()

    def open_range(self, key: str, *, offset: int, length: int) -> RangeAnswer:
        """Begin a range."""
        stream = Stream(key, offset, length, is_held=self.is_held)
        with self._changed:
            self.streams.append(stream)
            self._changed.notify_all()
            error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        value = self.values.get(key)
        if value is None:
            raise KeyAbsentError(key)
        if offset > len(value):
            raise IntegrityError(f"{key} ends before {offset}", kind="store.short", key=key)
        return RangeAnswer(len(value), self._pieces(stream, value))

    def wait_for(self, count: int) -> list[Stream]:
        """Wait until so many ranges have been asked for; return all."""
        with self._changed:
            begun = self._changed.wait_for(lambda: len(self.streams) >= count, PATIENCE_S)
        assert begun, f"{len(self.streams)} ranges were asked for, not {count}"
        return self.streams

    def let_all(self) -> None:
        """Hold nothing any more."""
        self.is_held = False
        for stream in self.streams:
            stream.let_all()

    def _pieces(self, stream: Stream, value: bytes) -> Generator[bytes, None, None]:
        end = min(stream.offset + stream.length, len(value))
        try:
            for start in range(stream.offset, end, self.piece_bytes):
                stream.wait_turn()
                piece = value[start : min(start + self.piece_bytes, end)]
                yield Piece(self.mangle(stream, piece))
        finally:
            stream.end()
