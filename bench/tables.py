"""Numbers and rows as they stand in tables of Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

Row = Mapping[str, object]
"""One workload on one system, as kept in a document of results."""
TIMES: Final = "\N{MULTIPLICATION SIGN}"


def short(number: float) -> str:
    """Return three digits, as far as they mean something."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}" if number >= 0.001 else f"{number:.1g}"


def count(value: object) -> str:
    """Return a whole number, or a dash for none."""
    return f"{value:,.0f}" if isinstance(value, int | float) else "—"


def megabytes(value: object) -> str:
    """Return bytes as MB, or a dash for none."""
    return f"{value / 1e6:,.1f}" if isinstance(value, int) and value else "—"


def line(cells: Sequence[str]) -> str:
    """Return a row."""
    return "| " + " | ".join(cells) + " |"
