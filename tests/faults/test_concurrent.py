"""Commits, statuses and syncs beside writers: each sees whole states, and nothing is lost."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

from tests.harness import Machine

WRITER = """
import os, struct, sys, zlib
root, number, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sizes = (100, 4000, 70_000, 300_000)
for count in range(1, rounds + 1):
    name = f"{root}/w{number}/f{count % 6}"
    size = sizes[count % 4]
    body = struct.pack("<II", number, count) + bytes([count % 251]) * size
    data = body + struct.pack("<I", zlib.crc32(body))
    with open(name + ".new", "wb") as file:
        file.write(data)
        if count % 5 == 0:
            os.fsync(file.fileno())
    os.rename(name + ".new", name)
    if count % 7 == 0:
        os.unlink(name)
    with open(f"{root}/w{number}/log", "ab") as log:
        log.write(struct.pack("<I", count))
        if count % 9 == 0:
            os.fsync(log.fileno())
"""
WRITERS, ROUNDS = 3, 400


def check(root: Path) -> dict[str, int]:
    """Require every file to be in a state that it was in; return the count in each."""
    counts: dict[str, int] = {}
    for number in range(WRITERS):
        directory = root / f"w{number}"
        if not directory.exists():
            continue
        log = (directory / "log").read_bytes() if (directory / "log").exists() else b""
        numbers = [count for (count,) in struct.iter_unpack("<I", log)]
        assert numbers == list(range(1, len(numbers) + 1))
        counts[f"log{number}"] = len(numbers)
        for path in directory.glob("f?"):
            data = path.read_bytes()
            body = data[:-4]
            assert struct.unpack("<I", data[-4:])[0] == zlib.crc32(body), path
            writer, count = struct.unpack_from("<II", body)
            assert writer == number
            assert count % 6 == int(path.name[1:])
            # One instant: a file is never ahead of the log by more than the round under way.
            assert count <= len(numbers) + 1
            counts[f"{number}{path.name}"] = count
    return counts


def test_commits_and_statuses_beside_writers(machine: Machine) -> None:
    """Every commit has a state that each file really had; no status, diff or fsync fails."""
    mount = machine.mount()
    root = mount.path
    for number in range(WRITERS):
        (root / f"w{number}").mkdir()
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root), str(number), str(ROUNDS)],
            stderr=subprocess.PIPE,
        )
        for number in range(WRITERS)
    ]
    failures: list[str] = []
    commits: list[str] = []
    looks = 0

    def is_running() -> bool:
        return any(writer.poll() is None for writer in writers)

    def commit() -> None:
        while is_running():
            answer = machine.start("commit", root, "-m", "c", "--json")
            if answer.returncode:
                failures.append(answer.stderr.decode())
            else:
                text = answer.stdout.decode()
                commits.append(text.partition('"commit": "')[2].partition('"')[0])

    def look() -> None:
        nonlocal looks
        while is_running():
            for word in ("status", "diff"):
                answer = machine.start(word, root)
                looks += 1
                if answer.returncode not in (0, 1):
                    failures.append(f"{word}: {answer.stderr.decode()}")

    threads = [threading.Thread(target=commit), threading.Thread(target=commit)]
    threads.append(threading.Thread(target=look))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    errors = [writer.stderr.read().decode() for writer in writers if writer.stderr is not None]

    assert not any(errors), errors
    assert not failures, failures[:3]
    assert looks > 4
    assert len(commits) > 4
    final = check(root)
    assert all(final[f"log{number}"] == ROUNDS for number in range(WRITERS))
    mount.commit("last")
    assert mount.status() == {}
    assert check(root) == final
    seen: list[int] = []
    for at, commit_id in enumerate(dict.fromkeys(filter(None, commits))):
        if at % max(1, len(commits) // 6):
            continue
        out = machine.directory / f"out{at}"
        machine.run("export", f"{machine.store}@{commit_id}", out)
        seen.append(check(out).get("log0", 0))
    machine.run("export", f"{machine.store}@s", machine.directory / "last")
    assert check(machine.directory / "last") == final
    assert len(os.listdir(machine.state_dir / "sessions")) == 1
    assert seen
