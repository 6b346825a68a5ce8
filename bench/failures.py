"""What can go wrong in a run; each ends one workload on one system, never the run."""

from __future__ import annotations


class BenchError(Exception):
    """Anything that makes a measurement no result."""


class ToolError(BenchError):
    """A program failed."""


class TimeUpError(ToolError):
    """Something was given up, because it took longer than it may."""

    def __init__(self, what: str, limit_s: float) -> None:
        super().__init__(f"{what}: no end within {limit_s:.0f} s")


class WrongResultError(BenchError):
    """A workload ran, but what it left or answered is wrong; its time counts for nothing."""


class AbsentError(BenchError):
    """A system or tool is not there on this machine."""


def expect(claim: str, actual: object, wanted: object) -> None:
    """Raise WrongResultError unless both are equal."""
    if actual != wanted:
        raise WrongResultError(f"{claim}: {_short(actual)}, expected {_short(wanted)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
