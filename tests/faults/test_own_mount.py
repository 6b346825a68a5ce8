"""A session's process that asks its own mount dies of kill -9 as any does, and so does the mount.

A thread that waits for an answer that only its own process can give is not killed: it kept the
device open, and whoever used the mount hung for ever.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE_S = 60.0

# It ends itself within the answer to a request that one of its own threads waits for.
PROCESS = """
import os, signal, stat, sys, threading
import pyfuse3, trio
from workspacefs_daemon.background.own_mount import asking_own_mount
from workspacefs_daemon.publishing import sync_mount

mountpoint, call = sys.argv[1:]

class Operations(pyfuse3.Operations):
    async def getattr(self, inode, ctx=None):
        if call == "stat":
            os.kill(os.getpid(), signal.SIGKILL)
        found = pyfuse3.EntryAttributes()
        found.st_ino = inode
        found.st_mode = stat.S_IFDIR | 0o755
        found.st_nlink = 2
        return found

    async def opendir(self, inode, ctx):
        os.kill(os.getpid(), signal.SIGKILL)

def ask():
    if call == "sync":
        sync_mount(mountpoint)
    else:
        with asking_own_mount() as ask:
            ask(lambda: os.stat(mountpoint))

pyfuse3.init(Operations(), mountpoint, {"fsname=workspacefs:dies"})
threading.Thread(target=ask, daemon=True).start()
trio.run(pyfuse3.main)
"""


@pytest.mark.parametrize("call", ["stat", "sync"])
def test_killed_while_it_waits_for_itself(tmp_path: Path, call: str) -> None:
    """All of the process ends, and programs get an error, not nothing."""
    process = subprocess.Popen([sys.executable, "-c", PROCESS, str(tmp_path), call])
    try:
        process.wait(PATIENCE_S)

        assert process.returncode == -signal.SIGKILL
        with pytest.raises(OSError) as gone:
            os.listdir(tmp_path)
        assert gone.value.errno == errno.ENOTCONN
    finally:
        subprocess.run(["umount", "-f", "-l", str(tmp_path)], check=False)
        process.kill()


def test_what_is_asked_answers_and_raises(tmp_path: Path) -> None:
    """Calls see the file system, and none of our files; ours stay open."""
    script = """
import os, sys
from workspacefs_daemon.background.own_mount import asking_own_mount
held = os.open(sys.argv[1], os.O_RDONLY)
with asking_own_mount() as ask:
    assert ask(lambda: os.stat(sys.argv[1])).st_ino == os.fstat(held).st_ino
    assert ask(lambda: os.listdir("/proc/thread-self/fd"))[:3] == ["0", "1", "2"]
    for wrong in (lambda: os.fstat(held), lambda: os.stat(sys.argv[1] + "/none")):
        try:
            ask(wrong)
        except OSError:
            continue
        sys.exit("it should have failed")
os.fstat(held)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == 0
