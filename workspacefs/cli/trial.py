"""A whole round in a directory of its own: init, import, mount, write, read, commit, umount.

It runs the real command line, as a user would, and is ended after a while: a machine whose mounts
hang must not hang whoever asks what is wrong with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from workspacefs.cli.checks import Finding, Level

TRIAL_TIMEOUT_S: Final = 30.0
_NAME: Final = "trial mount"


class _StepFailed(Exception):
    """A step ended with an error, or did not end."""


def try_mount(environ: Mapping[str, str], *, timeout_s: float = TRIAL_TIMEOUT_S) -> Finding:
    """Mount a tiny workspace, use it, and leave nothing behind."""
    directory = Path(tempfile.mkdtemp(prefix="workspacefs-doctor-"))
    began = time.monotonic()
    trial = _Trial(directory, environ, timeout_s)
    try:
        trial.run()
    except (_StepFailed, OSError) as exc:
        return Finding(_NAME, Level.FAIL, str(exc), "see what it says, and the lines above")
    finally:
        trial.clean_up()
    took_ms = (time.monotonic() - began) * 1000
    return Finding(_NAME, Level.OK, f"mounted, written, committed, unmounted in {took_ms:.0f} ms")


class _Trial:
    def __init__(self, directory: Path, environ: Mapping[str, str], timeout_s: float) -> None:
        self._directory = directory
        self._environ = dict(environ)
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._mountpoint = directory / "mnt"

    def run(self) -> None:
        """Go through all steps."""
        source = self._directory / "src"
        source.mkdir()
        self._mountpoint.mkdir()
        (source / "hello").write_text("hello\n")
        store = str(self._directory / "store")
        self._do("init", store)
        self._do("import", store, str(source), "-m", "doctor")
        self._do("mount", store, str(self._mountpoint), "--no-allow-other")
        script = "cat hello && echo more >> hello && mkdir d && mv hello d/ && cat d/hello"
        self._shell(script)
        self._do("commit", str(self._mountpoint), "-m", "doctor")
        self._do("umount", str(self._mountpoint))

    def clean_up(self) -> None:
        """Leave nothing behind, whatever state it is in."""
        self._timeout_s = TRIAL_TIMEOUT_S
        self._deadline = time.monotonic() + TRIAL_TIMEOUT_S
        if os.path.ismount(self._mountpoint):
            self._quietly("umount", "--force", str(self._mountpoint))
        self._quietly("supervisor", "stop")
        shutil.rmtree(self._directory, ignore_errors=True)

    def _do(self, *words: str) -> None:
        state = str(self._directory / "state")
        command = [sys.executable, "-P", "-m", "workspacefs.cli", *words, "--state-dir", state]
        self._run(command, " ".join(words[:1]))

    def _shell(self, script: str) -> None:
        self._run(["sh", "-ec", script], "using the mount", cwd=self._mountpoint)

    def _run(self, command: list[str], what: str, cwd: Path | None = None) -> None:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:  # not started at all: nothing that hurries could still end in no time
            raise _StepFailed(f"no time was left for {what}, of {self._timeout_s:.0f} s")
        try:
            ended = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                cwd=cwd,
                env=self._environ,
                timeout=left_s,
            )
        except subprocess.TimeoutExpired as exc:
            raise _StepFailed(f"{what} did not end in {self._timeout_s:.0f} s") from exc
        if ended.returncode != 0:
            said = (ended.stderr or ended.stdout).strip().replace("\n", "; ")
            raise _StepFailed(f"{what} failed with exit code {ended.returncode}: {said}")

    def _quietly(self, *words: str) -> None:
        try:
            self._do(*words)
        except (_StepFailed, OSError):
            pass  # the finding has told already what is wrong here
