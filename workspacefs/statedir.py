"""The directory where one account keeps what its daemons need: sockets, locks, logs, layers.

Private by construction: mode 0700, owned by us. Anyone who can write here can speak for us.
This module must not know who listens or what is stored. It imports little: the command line
pays for every import (`dataclasses` alone takes 8 ms).
"""

from __future__ import annotations

import os
import stat
from typing import Final, NamedTuple

from workspacefs.errors import RefusedError, UnavailableError

PRIVATE_DIR_MODE: Final = 0o700
_OTHERS_MASK: Final = 0o077


class StateDir(NamedTuple):
    """Names of everything in the state directory. Holds no handle; nothing need exist."""

    root: str
    """Absolute path."""

    @property
    def run_dir(self) -> str:
        """Sockets, locks and the registry of living sessions; worthless after a reboot."""
        return f"{self.root}/run"

    @property
    def log_dir(self) -> str:
        """Log files of the daemons."""
        return f"{self.root}/log"

    @property
    def sessions_dir(self) -> str:
        """Which work is not committed yet. Never cache; never deleted by a clean-up."""
        return f"{self.root}/sessions"

    @property
    def layers_dir(self) -> str:
        """That work. Never cache; never deleted by a clean-up."""
        return f"{self.root}/layers"

    @property
    def cache_dir(self) -> str:
        """Copies of what far stores hold. May be deleted at any time, also while it is in use."""
        return f"{self.root}/cache"

    @property
    def log_file(self) -> str:
        """One JSON document a line, from all daemons."""
        return f"{self.log_dir}/workspacefsd.jsonl"

    @property
    def crash_file(self) -> str:
        """Standard error of all daemons: what could not be logged, and traces of crashes."""
        return f"{self.log_dir}/workspacefsd.err"

    @property
    def supervisor_socket(self) -> str:
        """Where the supervisor listens."""
        return f"{self.run_dir}/supervisor.sock"

    @property
    def supervisor_lock(self) -> str:
        """Locked by the supervisor for as long as it lives."""
        return f"{self.run_dir}/supervisor.lock"

    @property
    def start_lock(self) -> str:
        """Locked by whoever is starting a supervisor, until it listens."""
        return f"{self.run_dir}/start.lock"

    def session_socket(self, session_id: str) -> str:
        """Return where the process of a session listens."""
        return f"{self.run_dir}/{session_id}.sock"

    def transfer_socket(self, tag: str) -> str:
        """Return where a transfer process listens."""
        return f"{self.run_dir}/transfer-{tag}.sock"

    def registry_file(self, session_id: str) -> str:
        """Return where the process of a session says that it lives."""
        return f"{self.run_dir}/{session_id}.json"

    def given_up_file(self, session_id: str) -> str:
        """Return where it stands why nobody brings a session back when its process dies."""
        return f"{self.run_dir}/{session_id}.given-up"


def ensure_state_dir(state: StateDir) -> None:
    """Create the directories, and make sure that nobody else can enter them.

    Raises:
        RefusedError: The state directory belongs to someone else.
        UnavailableError: It cannot be created.
    """
    for path in (state.root, state.run_dir, state.log_dir, state.sessions_dir, state.layers_dir):
        try:
            os.makedirs(path, mode=PRIVATE_DIR_MODE, exist_ok=True)
            found = os.stat(path)
        except OSError as exc:
            raise UnavailableError(
                f"the state directory {path} cannot be used: {exc.strerror}; "
                "choose another one with --state-dir or WORKSPACEFS_STATE_DIR",
                kind="state_dir.unusable",
                path=path,
            ) from exc
        if found.st_uid != os.geteuid():
            raise RefusedError(
                f"the state directory {path} belongs to user {found.st_uid}, not to us "
                f"({os.geteuid()}); choose another one with --state-dir or WORKSPACEFS_STATE_DIR",
                kind="state_dir.foreign",
                path=path,
            )
        if stat.S_IMODE(found.st_mode) & _OTHERS_MASK:
            os.chmod(path, PRIVATE_DIR_MODE)
