"""How much memory all processes of a mount take while more goes through them than they may hold.

Sizes are such that a process that kept what went through it would be over its budget;
WORKSPACEFS_TEST_EFFORT=full makes them 5 GiB and a million files.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

from tests.s3_machine import S3Machine

IS_FULL = os.environ.get("WORKSPACEFS_TEST_EFFORT") == "full"
READ_BYTES = (5 << 30) if IS_FULL else (384 << 20)
FILES = 1_000_000 if IS_FULL else 60_000
PIECE_BYTES = 8 << 20

SESSION_BYTES = 40_000_000 + (64 << 20)
"""Code and tables, and verified objects that are kept (`workspace.CACHE_BYTES`)."""
INODE_BYTES = 600
"""Of each that the kernel holds."""
NODE_BYTES = 300
"""Of each entry of a tree node among the verified objects."""
TRANSFER_BYTES = 80_000_000 + (64 << 20)
"""Code (boto3 is most of it), and 16 requests of 4 MiB under way."""
SUPERVISOR_BYTES = 80_000_000


def peak_bytes(pid: int) -> int:
    """Return the largest resident size that a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no memory")


def check_budgets(machine: S3Machine, session_pid: int, *, inodes: int) -> None:
    """Every process of the machine stayed within what docs/operations.md promises."""
    transfers = [peak_bytes(pid) for pid in machine.transfer_pids()]

    assert peak_bytes(session_pid) <= SESSION_BYTES + INODE_BYTES * inodes
    assert transfers
    assert sum(transfers) <= TRANSFER_BYTES
    assert peak_bytes(machine.supervisor_pid()) <= SUPERVISOR_BYTES


def test_large_read_stays_within_the_budget(s3: S3Machine) -> None:
    """A file much larger than all budgets together, read in order on a machine without it."""
    source = s3.directory / "source"
    source.mkdir()
    pieces = READ_BYTES // PIECE_BYTES
    with (source / "large").open("wb") as file:
        for number in range(pieces):
            file.write(random.Random(number).randbytes(PIECE_BYTES))
    s3.run("import", s3.store, source, "-m", "large")
    (source / "large").unlink()
    other = s3.beside()
    mount = other.mount()

    with (mount.path / "large").open("rb", buffering=0) as file:
        for number in range(pieces):
            assert file.read(PIECE_BYTES) == random.Random(number).randbytes(PIECE_BYTES)

    check_budgets(other, mount.pid, inodes=1)


def test_walk_of_many_files_stays_within_the_budget(s3: S3Machine) -> None:
    """`find` looks at each inode; the kernel holds them all, so each has its share.

    What the first third takes is measured apart: most of the budget of a session is for content.
    """
    source = s3.directory / "source"
    for number in range(FILES):
        if number % 100 == 0:
            directory = source / f"d{number // 10_000}" / f"d{number // 100}"
            directory.mkdir(parents=True)
        (directory / f"f{number}").write_text(f"{number}\n" * 40)  # too long to be in its entry
    s3.run("import", s3.store, source, "-m", "many")
    other = s3.beside()
    mount = other.mount()

    found = 0
    first, first_bytes = 0, 0
    for directory, _, names in os.walk(mount.path):
        found += sum(os.lstat(os.path.join(directory, name)).st_size > 0 for name in names)
        if not first and found >= FILES // 3:
            first, first_bytes = found, peak_bytes(mount.pid)

    assert found == FILES
    check_budgets(other, mount.pid, inodes=FILES)
    grown_bytes = peak_bytes(mount.pid) - first_bytes
    assert grown_bytes <= (INODE_BYTES + NODE_BYTES) * (FILES - first)
