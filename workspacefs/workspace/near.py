"""Names that somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near_names(name: str, names: Iterable[str], *, limit: int = 5) -> list[str]:
    """Return those of `names` that look most like `name`, the nearest first."""
    return difflib.get_close_matches(name, sorted(set(names)), n=limit, cutoff=0.5)
