"""Whether a session whose process died is mounted once more, and when. Knows no processes."""

from __future__ import annotations

from typing import Final

from workspacefs.errors import UnavailableError, WorkspaceError

DEATHS_MAX: Final = 4
"""With so many deaths within DEATHS_WITHIN_S a session is given up."""
DEATHS_WITHIN_S: Final = 60.0
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0


class RestartPolicy:
    """What is remembered of one session's deaths."""

    def __init__(self) -> None:
        self._deaths_s: list[float] = []
        self._pause_s = FIRST_PAUSE_S

    def note_death(self, now_s: float) -> bool:
        """Take note that the process died; tell whether to start another one at once."""
        self._deaths_s = [at for at in self._deaths_s if now_s - at < DEATHS_WITHIN_S]
        self._deaths_s.append(now_s)
        return len(self._deaths_s) < DEATHS_MAX

    def pause_after(self, error: WorkspaceError) -> float | None:
        """Return after what time to try again when a process could not mount; None: never.

        A store that is away comes back and a full disk gets room; any other error stays the same.
        """
        if not isinstance(error, UnavailableError):
            return None
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s

    def note_mounted(self) -> None:
        """Take note that the mount answers."""
        self._pause_s = FIRST_PAUSE_S
