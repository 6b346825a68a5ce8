"""kill -9 at random moments under load: everything that returned is there afterwards."""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.faults import load
from tests.harness import Machine, Mount, kill

ROUNDS = int(os.environ.get("WORKSPACEFS_TEST_KILLS", "12"))


class Work:
    """All that was done so far, over many kills."""

    def __init__(self) -> None:
        self.model = load.Model()
        self.history: list[dict[str, object]] = []

    def run_until_killed(self, mount: Mount, seed: int, *, seconds: float, victim: int) -> int:
        """Work in a mount for a while, then kill -9 `victim`; return how many operations ended."""
        worker = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.load", str(mount.path), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stderr is not None
        lines = "".join(json.dumps(op) + "\n" for op in self.history)
        worker.stdin.write(lines.encode())
        worker.stdin.close()
        first = worker.stdout.readline()
        threading.Timer(seconds, lambda: kill(victim)).start()
        output = [first, *worker.stdout.readlines()]
        errors = worker.stderr.read().decode()
        worker.wait()
        assert "OSError" in errors or "Errno" in errors, f"ended by itself: {errors}"
        begun: dict[str, object] | None = None
        ended = 0
        for line in output:
            message = json.loads(line)
            if "done" in message:
                self.history.append(message["done"])
                self.model.apply(message["done"])
                begun = None
                ended += 1
            else:
                begun = message["begun"]
        self._in_flight = begun
        return ended

    def settle(self, root: Path) -> None:
        """Accept the one operation that was under way as done or not, whichever it is."""
        found = load.differences(root, self.model)
        op = self._in_flight
        if found and op is not None:
            after = copy.deepcopy(self.model)
            after.apply(op)
            if op["op"] == "write":
                self._settle_write(root, op, after)
            self.history.append(op)
            self.model = after
            found = load.differences(root, self.model)
        assert not found, (found[:5], op)

    def _settle_write(self, root: Path, op: dict[str, object], after: load.Model) -> None:
        # An overwrite may have come through in part: each byte is the old or the new one.
        old = self.model.at(str(op["path"]))
        new = after.at(str(op["path"]))
        assert old is not None
        assert new is not None
        real = (root / str(op["path"])).read_bytes()
        padded = bytes(old.data) + bytes(max(0, len(new.data) - len(old.data)))
        if real in (bytes(old.data), bytes(new.data)):
            return
        assert len(real) == len(old.data)
        assert all(a in (b, c) for a, b, c in zip(real, padded, new.data, strict=False))
        pytest.skip("a torn overwrite: right, but the model cannot go on from it")


@pytest.mark.parametrize("victim", ["session", "both"])
def test_nothing_that_returned_is_lost(machine: Machine, victim: str) -> None:
    """Twelve kills in a row over one session, with commits in between."""
    seed = int(os.environ.get("WORKSPACEFS_TEST_SEED", "20261129"))
    rng = random.Random(f"{seed}{victim}")
    work = Work()
    mount = machine.mount()
    ended = 0
    for number in range(ROUNDS):
        if victim == "both":
            kill(machine.supervisor_pid())
        ended += work.run_until_killed(
            mount, rng.randrange(1 << 30), seconds=rng.uniform(0.02, 0.8), victim=mount.pid
        )
        mount = mount.again()
        work.settle(mount.path)
        if number % 4 == 3:
            mount.commit(f"round {number}")
            assert mount.status() == {}
            work.settle(mount.path)
    mount.commit("the end", "--into", "main")
    other = machine.mount("other", session="other")
    assert not load.differences(other.path, work.model)
    assert ended > 10 * ROUNDS, f"seed {seed}: hardly any work was done"


def test_a_commit_that_is_killed_is_all_or_nothing(machine: Machine) -> None:
    """At whatever moment a commit dies, the files stay, its ref is old or new, and a new commit
    works.
    """
    rng = random.Random(7)
    work = Work()
    mount = machine.mount()
    heads = {"None"}
    outcomes = {"old": 0, "new": 0}
    delay_s = 0.08
    for number in range(ROUNDS):
        for _ in range(30):
            op = load.choose(rng, work.model)
            load.perform(mount.path, op)
            work.model.apply(op)
        commit = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "workspacefs.cli",
                "commit",
                str(mount.path),
                "-m",
                f"c{number}",
            ],
            env=machine.environ(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(delay_s)
        mount.kill()
        commit.wait()

        mount = mount.again()

        assert not load.differences(mount.path, work.model)
        head = str(mount.document["base"])
        outcome = "old" if head in heads else "new"
        outcomes[outcome] += 1
        # Look for the moment at which the ref moves, however fast this machine is.
        delay_s *= rng.uniform(1.0, 1.5) if outcome == "old" else rng.uniform(0.6, 1.0)
        heads.add(head)
        mount.commit("again")
        heads.add(str(machine.json("sessions", machine.store)["sessions"][0]["head"]))  # type: ignore[index]
        assert mount.status() == {}
        machine.run("export", f"{machine.store}@s", machine.directory / f"out{number}")
        assert not load.differences(machine.directory / f"out{number}", work.model)
    assert all(outcomes.values()), f"every kill came at the same side of the ref: {outcomes}"
