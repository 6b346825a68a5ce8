"""What can be made to go wrong, and with which requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from workspacefs.testing.proxy.requests import RequestInfo

SLOW_DOWN: Final = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)
"""What S3 says with status 503."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Reset the connection; the store never hears of the request."""


@dataclass(frozen=True, slots=True)
class DropAnswer:
    """Let the store do it, read its answer to the end, and close without a word of it."""


@dataclass(frozen=True, slots=True)
class CutBody:
    """Close within the answer's body, after so many bytes of it."""

    after_bytes: int
    resets: bool = False


@dataclass(frozen=True, slots=True)
class CorruptBody:
    """Flip bits of one byte of the answer's body.

    Args:
        at: Offset in the body; below zero: from its end, if its length is told.
        mask: The bits.
    """

    at: int = 0
    mask: int = 0x01


@dataclass(frozen=True, slots=True)
class WrongBody:
    """Answer with the store's headers but another body, and a length that fits it.

    Args:
        body: That body.
        status: A status to tell instead of the store's.
    """

    body: bytes
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """Answer with this status instead of the store.

    Args:
        code: The status.
        body: What to say with it.
        headers: Besides Content-Length.
        forwards: Whether the store does what was asked nevertheless.
    """

    code: int = 503
    body: bytes = SLOW_DOWN
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/xml"})
    forwards: bool = False


@dataclass(frozen=True, slots=True)
class Stall:
    """Stand still, then go on; the end of the proxy ends it too.

    Args:
        until: So many seconds, or until the event is set.
        after_bytes: After so many bytes of the answer's body; None: before the store hears of it.
    """

    until: float | threading.Event
    after_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SlowBody:
    """Pass the bodies of the request and its answer on at a rate of their own."""

    bytes_per_s: float


Action = Reset | DropAnswer | CutBody | CorruptBody | WrongBody | Status | Stall | SlowBody


@dataclass(slots=True, kw_only=True)
class Rule:
    """Takes an action with some of the requests that match.

    Rules are asked in the order in which they were added; the first one that acts ends it, those
    after it do not see the request.

    Args:
        match: Tells whether a request is meant; called on the thread of its connection.
        action: What goes wrong then.
        nth: Only with these of the matching requests, counted from 1; None: with each.
        times: At most so often.
    """

    match: Callable[[RequestInfo], bool]
    action: Action
    nth: int | Collection[int] | None = None
    times: int | None = None
    seen: int = 0
    """Matching requests so far."""
    fired: int = 0
    """How often it acted."""

    def fires(self, info: RequestInfo) -> bool:
        """Count the request; tell whether to act. One thread at a time."""
        if not self.match(info):
            return False
        self.seen += 1
        wanted = {self.nth} if isinstance(self.nth, int) else self.nth
        if wanted is not None and self.seen not in wanted:
            return False
        if self.times is not None and self.fired >= self.times:
            return False
        self.fired += 1
        return True


class CloseError(Exception):
    """The connection to the client ends here, in the ordinary way or with a reset."""

    def __init__(self, *, resets: bool = False) -> None:
        super().__init__()
        self.resets = resets


def shape(
    action: Action | None,
    piece: memoryview,
    offset: int,
    stall: Callable[[float | threading.Event], None],
) -> Iterator[memoryview]:
    """Yield what is passed on of one piece of an answer's body; waits where the action does.

    Args:
        action: With CorruptBody, `at` counts from the beginning.
        piece: Kept no longer than until the next step of the iterator.
        offset: Where the piece lies in the body.
        stall: Waits for seconds or an event.

    Raises:
        CloseError: The rest is not passed on.
    """
    match action:
        case CutBody(after_bytes=after, resets=resets) if offset + len(piece) > after:
            yield piece[: max(0, after - offset)]
            raise CloseError(resets=resets)
        case CorruptBody(at=at, mask=mask) if offset <= at < offset + len(piece):
            damaged = bytearray(piece)
            damaged[at - offset] ^= mask
            yield memoryview(damaged)
        case Stall(until=until, after_bytes=int(after)) if offset <= after < offset + len(piece):
            yield piece[: after - offset]
            stall(until)
            yield piece[after - offset :]
        case _:
            yield piece
