"""Running git, untouched by anybody's configuration; the same commit has the same id everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench.processes import TOOL_TIMEOUT_S, run_tool

_ENVIRON: Final = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_AUTHOR_NAME": "bench",
    "GIT_AUTHOR_EMAIL": "bench@localhost",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "bench",
    "GIT_COMMITTER_EMAIL": "bench@localhost",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
}
# A collection of git's own in the background would run into what is measured next.
_OPTIONS: Final = ("-c", "gc.auto=0", "-c", "maintenance.auto=false")


def run_git(directory: Path, *words: str, timeout_s: float = TOOL_TIMEOUT_S) -> bytes:
    """Run git in a directory; return its standard output."""
    command = ["git", *_OPTIONS, *words]
    return run_tool(command, cwd=directory, environ=_ENVIRON, timeout_s=timeout_s)
