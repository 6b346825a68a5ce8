"""Those who land on one branch of one machine go one after the other, and never wait for ever."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from workspacefs.statedir import StateDir
from workspacefs.workspace.turns import turn


def test_one_at_a_time(tmp_path: Path) -> None:
    """Threads, each with a lock of its own, as processes have."""
    state, inside, most, lock = StateDir(str(tmp_path)), 0, 0, threading.Lock()

    def land() -> None:
        nonlocal inside, most
        for _ in range(20):
            with turn(state, "w", "main") as is_ours:
                assert is_ours
                with lock:
                    inside += 1
                    most = max(most, inside)
                with lock:
                    inside -= 1

    threads = [threading.Thread(target=land) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most == 1


def test_who_waits_too_long_goes_ahead(tmp_path: Path) -> None:
    """And other branches and workspaces wait for nobody."""
    state = StateDir(str(tmp_path))
    with turn(state, "w", "main"):
        with turn(state, "w", "main", wait_max_s=0.05) as is_ours:
            assert not is_ours
        with turn(state, "w", "a/b", wait_max_s=0) as is_ours:
            assert is_ours
        with turn(state, "x", "main", wait_max_s=0) as is_ours:
            assert is_ours


def test_turn_of_the_dead_is_free(tmp_path: Path) -> None:
    """kill -9 leaves nothing behind."""
    code = (
        "import os, sys\n"
        "from workspacefs.statedir import StateDir\n"
        "from workspacefs.workspace.turns import turn\n"
        "with turn(StateDir(sys.argv[1]), 'w', 'main'):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=False)

    with turn(StateDir(str(tmp_path)), "w", "main", wait_max_s=0) as is_ours:
        assert is_ours
