"""How much random tests do: WORKSPACEFS_TEST_EFFORT=full makes them try 30 times as much."""

from __future__ import annotations

import os
from typing import Final

IS_FULL: Final = os.environ.get("WORKSPACEFS_TEST_EFFORT") == "full"


def examples(few: int) -> int:
    """Return how many examples a test shall try that tries `few` in every day's run."""
    return 30 * few if IS_FULL else few
