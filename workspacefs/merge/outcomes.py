"""What the rows of all identities became, computed when first asked for."""

from __future__ import annotations

from workspacefs.ids import FileId
from workspacefs.merge.content import ContentMerger
from workspacefs.merge.identity import Identities
from workspacefs.merge.rows import Outcome, RowMerger


class Outcomes:
    """Outcome by identity."""

    def __init__(self, identities: Identities, rows: RowMerger) -> None:
        self._identities = identities
        self._rows = rows
        self._by_key: dict[FileId, Outcome] = {}

    def get(self, key: FileId) -> Outcome:
        """Return what became of a row."""
        outcome = self._by_key.get(key)
        if outcome is None:
            outcome = self._by_key[key] = self._rows.merge(*self._identities[key].entries())
        return outcome

    def load_text(self, key: FileId, contents: ContentMerger) -> bytes | None:
        """Return the bytes of a merged regular file; None if it is no text.

        What was merged by line is merged again: it is kept nowhere.
        """
        base, ours, theirs = self._identities[key].entries()
        if ours is not None and theirs is not None:
            merged = contents.merge(base, ours, theirs)
            if merged.text is not None:
                return merged.text
        return contents.load_text(self.get(key).entry)

    def set(self, key: FileId, outcome: Outcome) -> None:
        """Have another outcome from now on."""
        self._by_key[key] = outcome
