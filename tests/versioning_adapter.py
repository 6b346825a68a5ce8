#!/usr/bin/env python3
"""Workspacefs behind a few verbs, for programs that test any versioned workspace.

    init STATE | fork STATE NAME [BASE] -> the workspace's directory | commit WS MSG -> commit id
    merge STATE NAME INTO -> 0 merged; 1 conflict, paths on stdout; 2 again later
    head STATE NAME -> commit id | checkout STATE COMMIT DIR | drop STATE NAME | gc STATE
    fsck STATE | remount WS (twice: unmounted, and killed) | feature NAME -> 0 when supported

STATE holds a store (WORKSPACEFS_ADAPTER_STORE: a URL instead, to which a name is added), the mounts
and the daemon's directory. Only the public command line is used.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

_BUSY = 4
_IN_CONFLICT = 5
_MOVED_KINDS = ("branch.moved", "ref.moved", "session.moved")


class Failed(Exception):
    """A command failed."""

    def __init__(self, code: int, document: dict[str, object], text: str) -> None:
        super().__init__(text)
        self.code = code
        self.document = document


def tell(text: object) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")


def run(state: Path, *words: str | Path) -> dict[str, object]:
    """Run a command and return its answer."""
    command = [sys.executable, "-m", "workspacefs.cli", *map(str, words), "--json"]
    command += ["--state-dir", str(state / "state")]
    done = subprocess.run(command, capture_output=True, check=False)
    document = json.loads(done.stdout) if done.stdout else {}
    if done.returncode:
        raise Failed(done.returncode, document, f"{words}: {done.stdout!r} {done.stderr!r}")
    return document


def store_of(state: Path) -> str:
    """Return the URL of the store of a state."""
    base = os.environ.get("WORKSPACEFS_ADAPTER_STORE")
    if not base:
        return f"file://{state.resolve() / 'store'}"
    parts = urlsplit(base)
    name = str(state.resolve()).strip("/").replace("/", "-")
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


def state_of(workspace: Path) -> Path:
    """Return the state that a workspace's directory belongs to."""
    return workspace.resolve().parent.parent


def init(state: Path) -> None:
    """Make an empty workspace."""
    (state / "ws").mkdir(parents=True)
    run(state, "init", store_of(state))


def fork(state: Path, name: str, base: str = "main") -> None:
    """Begin a session where a branch or another session stands, and mount it."""
    place = state / "ws" / name
    place.mkdir()
    if (state / "ws" / base).exists():
        run(state, "fork", state / "ws" / base, place, "--session", name)
    else:
        run(state, "mount", store_of(state), place, "--session", name, "--branch", base)
    tell(place)


def commit(workspace: Path, message: str) -> None:
    """Commit all changes; print the newest commit, also if there were none."""
    state = state_of(workspace)
    made = run(state, "commit", workspace, "-m", message)["commit"]
    tell(made or newest(state, workspace.name))


def newest(state: Path, name: str) -> str:
    """Return the newest commit of a branch or session."""
    rows = run(state, "log", store_of(state), name, "-n", "1")["commits"]
    assert isinstance(rows, list)
    return str(rows[0]["commit"])


def merge(state: Path, name: str, into: str) -> int:
    """Land a session on a branch."""
    try:
        run(state, "merge", "--into", into, state / "ws" / name)
    except Failed as exc:
        conflicts = exc.document.get("conflicts")
        error = exc.document.get("error")
        if exc.code == _IN_CONFLICT and isinstance(conflicts, list):
            tell("\n".join(conflict["path"] for conflict in conflicts))
            return 1
        if isinstance(error, dict) and error.get("kind") in _MOVED_KINDS:
            return 2
        raise
    return 0


def checkout(state: Path, rev: str, directory: Path) -> None:
    """Have a directory be just what a commit is."""
    if directory.exists():
        shutil.rmtree(directory)
    run(state, "export", f"{store_of(state)}@{rev}", directory)


def drop(state: Path, name: str) -> None:
    """Unmount and delete a session."""
    place = state / "ws" / name
    run(state, "umount", place)
    run(state, "session", "delete", store_of(state), name, "--force")
    place.rmdir()


def fsck(state: Path) -> None:
    """Read every commit that a branch or session leads to."""
    for row in _sessions(state):
        if row["head"]:
            run(state, "log", store_of(state), str(row["session"]), "--stat")
    run(state, "log", store_of(state), "main", "--stat")


def _sessions(state: Path) -> list[dict[str, object]]:
    rows = run(state, "sessions", store_of(state))["sessions"]
    assert isinstance(rows, list)
    return rows


def remount(workspace: Path) -> None:
    """Unmount and mount, then kill the process and mount."""
    state, name = state_of(workspace), workspace.name
    again = ("mount", store_of(state), workspace, "--session", name)
    run(state, "umount", workspace)
    pid = run(state, *again)["pid"]
    os.kill(int(str(pid)), signal.SIGKILL)
    try:
        run(state, *again)
    except Failed as exc:
        if exc.code != _BUSY:  # the supervisor was quicker, and has mounted it already
            raise


def main(verb: str, *words: str) -> int:
    """Do what a verb says; return the exit code."""
    match verb:
        case "commit":
            commit(Path(words[0]), words[1])
        case "remount":
            remount(Path(words[0]))
        case "gc" | "feature":
            pass  # nothing is collected yet; and there is nothing that is not supported
        case "head":
            tell(newest(Path(words[0]), words[1]))
        case "checkout":
            checkout(Path(words[0]), words[1], Path(words[2]))
        case "merge":
            return merge(Path(words[0]), words[1], words[2])
        case "init" | "fsck":
            {"init": init, "fsck": fsck}[verb](Path(words[0]))
        case "fork":
            fork(Path(words[0]), *words[1:])
        case "drop":
            drop(Path(words[0]), words[1])
        case _:
            sys.stderr.write(f"unknown verb {verb}\n")
            return 64
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
