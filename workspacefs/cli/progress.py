"""A progress bar on standard error, when somebody looks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from workspacefs.cli.context import size_text


class Bar:
    """Counts something; silent unless shown. Use as a context manager."""

    def __init__(self, what: str, *, unit: str, is_shown: bool | None) -> None:
        shown = sys.stderr.isatty() if is_shown is None else is_shown
        # tqdm costs 30 ms to import: only for those who see it.
        self._bar: Any = (
            importlib.import_module("tqdm").tqdm(
                desc=what, unit=f" {unit}", file=sys.stderr, mininterval=0.1, leave=False
            )
            if shown
            else None
        )

    def update(self, done: int, total: int | None, note: str = "") -> None:
        """Show how far it is."""
        if self._bar is not None:
            self._bar.total = total
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(done - self._bar.n)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()


def show_files(bar: Bar, facts: Mapping[str, object]) -> None:
    """Show what a session says of files that it stores."""
    done, total, size = facts.get("files"), facts.get("files_total"), facts.get("bytes")
    if isinstance(done, int):
        note = size_text(size) if isinstance(size, int) else ""
        bar.update(done, total if isinstance(total, int) else None, note)
