"""How the lines of a text end, as one attribute of the whole text."""

from __future__ import annotations

import enum


class Ending(enum.Enum):
    """What all line ends of a text are."""

    NONE = "none"
    """It has none: at most one line."""
    LF = "lf"
    CRLF = "crlf"
    MIXED = "mixed"
    """Not all are the same, or there are carriage returns that end no line."""


def find_ending(text: bytes) -> Ending:
    """Return how the lines of `text` end.

    A text that is not MIXED can be turned from one ending to the other and back without a loss.
    """
    newlines, returns = text.count(b"\n"), text.count(b"\r")
    if not returns:
        return Ending.LF if newlines else Ending.NONE
    if newlines == returns == text.count(b"\r\n"):
        return Ending.CRLF
    return Ending.MIXED


def merge_endings(base: Ending, ours: Ending, theirs: Ending) -> Ending:
    """Return what the lines of the merge end with; MIXED: the texts must be merged as they are."""
    if Ending.MIXED in (base, ours, theirs):
        return Ending.MIXED
    # A side of a single line says nothing: it is not that it wants another ending.
    ours = base if ours is Ending.NONE else ours
    theirs = base if theirs is Ending.NONE else theirs
    if ours is theirs or theirs is base:
        return ours
    if ours is base:
        return theirs
    return Ending.MIXED  # the base has no ending, and the sides have different ones
