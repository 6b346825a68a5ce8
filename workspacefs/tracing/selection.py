"""Which commits somebody asks for: by who made them, when, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from workspacefs.objects.commits import Commit

SKEW_NS: Final = 24 * 3600 * 1_000_000_000
"""By so much the clocks of machines may differ, without a commit being missed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What must be true of a commit; None: anything will do."""

    agent: str | None = None
    session: str | None = None
    run: str | None = None
    tool_call: str | None = None
    author: str | None = None
    """As "user@host", or the user alone."""
    since_ns: int | None = None
    """It was made then or later."""
    until_ns: int | None = None
    """It was made before."""
    text: str | None = None
    """In its message, in capitals or not."""

    def has(self, commit: Commit) -> bool:
        """Tell whether a commit is asked for."""
        who = commit.provenance
        pairs = (
            (self.agent, who.agent),
            (self.session, who.session),
            (self.run, who.run),
            (self.tool_call, who.tool_call),
        )
        return (
            all(wanted is None or wanted == given for wanted, given in pairs)
            and (self.author is None or self.author in (who.author, who.author.partition("@")[0]))
            and (self.since_ns is None or self.since_ns <= commit.time_ns)
            and (self.until_ns is None or commit.time_ns < self.until_ns)
            and (self.text is None or self.text.casefold() in commit.message.casefold())
        )

    def is_past(self, commit: Commit) -> bool:
        """Tell whether all that a history has after this commit was made too early."""
        return self.since_ns is not None and commit.time_ns < self.since_ns - SKEW_NS
