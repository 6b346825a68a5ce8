"""References: an id, and beside it a hint where the bytes lie.

The locator is never part of hashed bytes; compaction may rewrite it. A reference whose object is
being written has no locator yet; the writer sets it once the frame is placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from workspacefs.ids import PackId


class Locator(NamedTuple):
    """Where one object lies: a run of plain bytes inside one frame of one pack."""

    pack_id: PackId
    frame_offset: int
    """Of the frame's header in the pack, bytes."""
    frame_bytes: int
    """Stored length of the frame, header included, bytes."""
    inner_offset: int
    """Of the object in the frame's plain bytes."""
    inner_bytes: int
    """Plain length of the object's record, bytes."""


class LocatorSpan(NamedTuple):
    """Stands for the references `start` to `stop` of a stored object, whose bytes a new object
    holds unchanged: only where they lie is passed on. Unknown ones stay unknown.
    """

    locators: Sequence[Locator | None]
    start: int
    stop: int


class Ref:
    """Names one stored object. Equal and hashed by id alone; `locator` may be filled in later."""

    __slots__ = ("id", "locator")

    def __init__(self, id: bytes, locator: Locator | None = None) -> None:
        self.id = id
        self.locator = locator

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id.hex()[:12]}, {self.locator})"


class ChunkRef(Ref):
    """Names one chunk of `size_bytes` plain bytes."""

    __slots__ = ("size_bytes",)

    def __init__(self, id: bytes, size_bytes: int, locator: Locator | None = None) -> None:
        super().__init__(id, locator)
        self.size_bytes = size_bytes


Child: TypeAlias = Ref | LocatorSpan
"""What an object refers to, for whoever stores it: one reference, or a span of them."""
