"""Sandboxes that share a store and nothing else, and that are killed whole."""

from __future__ import annotations

import os
import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fuse.test_saving import work
from tests.harness import PATIENCE_S, Mount, inodes_of, tree_of
from tests.sandbox import Sandbox
from tests.servers import Server
from workspacefs.errors import ExitCode

ROUNDS = int(os.environ.get("WORKSPACEFS_TEST_KILLS", "6"))
SEED = int(os.environ.get("WORKSPACEFS_TEST_SEED", "20261130"))

Boxes = Callable[[str], Sandbox]


@pytest.fixture(params=["file", "s3"])
def boxes(request: pytest.FixtureRequest, tmp_path: Path, seaweedfs: Server) -> Iterator[Boxes]:
    """Starts sandboxes that reach one store, with an empty workspace."""
    made: list[Sandbox] = []
    is_s3 = request.param == "s3"
    store = seaweedfs.new_store() if is_s3 else tmp_path / "store"

    def start(name: str) -> Sandbox:
        variables = seaweedfs.environ() if is_s3 else {}
        made.append(Sandbox(tmp_path / name, name, store=store, variables=variables))
        return made[-1]

    try:
        start("box-init").init()
        made[0].kill()
        yield start
    finally:
        for box in made:
            box.close()


def test_committed_work_is_there_in_the_next_sandbox(boxes: Boxes) -> None:
    """Whatever happens to the first one once the command has returned."""
    first = boxes("box-a")
    mount = first.mount(autosave="off")
    work(mount)
    mount.commit("all of it", "--into", "main")
    before = tree_of(mount.path)

    first.kill()

    assert tree_of(boxes("box-b").mount(session="other").path) == before


def test_killed_sandbox_goes_on_in_another(boxes: Boxes) -> None:
    """From what status said was stored: contents, deletions, renames, modes, links, attributes,
    times and numbers, and the same changes to commit.
    """
    first = boxes("box-a")
    mount = first.mount(autosave="1s")
    work(mount)
    mount.wait_until_stored()
    before, numbers, status = tree_of(mount.path), inodes_of(mount.path), mount.status()

    first.kill()
    resumed = boxes("box-b").resume("s", "--steal")

    assert tree_of(resumed.path) == before
    assert inodes_of(resumed.path) == numbers
    assert resumed.status() == status
    resumed.commit("all of it", "--into", "main")
    assert tree_of(resumed.path) == before


def test_work_after_the_last_autosave_is_lost_from_the_end(boxes: Boxes) -> None:
    """What is there is what was there at one moment, no earlier than what status said."""
    first = boxes("box-a")
    mount = first.mount(autosave="1s")
    Numbered(mount).write(100)
    mount.wait_until_stored()
    Numbered(mount).write(200)

    first.kill()

    assert 100 <= Numbered(boxes("box-b").resume("s", "--steal")).count() <= 300


def test_lease_of_a_sandbox(boxes: Boxes) -> None:
    """The second one hears who has the session and since when; it may steal it. The first one, that
    was alive after all, stores nothing more, keeps its files, and goes on as a fork.
    """
    first, second = boxes("box-a"), boxes("box-b")
    mount = first.mount(autosave="1s")
    work(mount)
    mount.wait_until_stored()
    stored = tree_of(mount.path)

    words = ("mount", second.store, second.directory / "m", "--mkdir", "--session", "s")
    refused = second.start(*words)
    assert refused.returncode == ExitCode.EXISTS_OR_BUSY
    assert b"is mounted on box-a since 20" in refused.stderr
    assert b"--steal" in refused.stderr

    taken = second.resume("s", "--steal")
    assert tree_of(taken.path) == stored
    (taken.path / "theirs").write_text("t")
    (mount.path / "ours").write_text("o")
    first.wait_until(lambda: first.json("status", mount.path)["is_lost"])
    ours = tree_of(mount.path)
    with pytest.raises(OSError, match="Read-only"):
        (mount.path / "more").write_text("m")
    mount.commit("ours", code=ExitCode.MOVED)

    fork = first.fork(mount, "fork", session="mine")
    assert tree_of(fork.path) == ours
    fork.commit("ours")
    first.kill()
    taken.commit("theirs", "--into", "main")
    second.kill()
    third = boxes("box-c")
    assert tree_of(third.mount("mine", session="mine", steal=True).path) == ours
    assert (third.mount("main", session="new").path / "theirs").read_text() == "t"


def test_two_sandboxes_commit_to_one_branch(boxes: Boxes) -> None:
    """At the same time, again and again. Whoever lost the race is told, has its commit in its
    session, and brings it to where the branch is then: nothing of anybody is lost.
    """
    both = [boxes("box-a"), boxes("box-b")]
    wanted: set[str] = set()
    lost: list[str] = []
    for number in range(4):
        waiting = [(box, f"{box.name}-{number}") for box in both]
        wanted |= {name for _, name in waiting}
        while waiting:
            attempt = len(lost)
            started = [(box, name, begin_commit(box, name, attempt)) for box, name in waiting]
            waiting = []
            for box, name, commit in started:
                said = commit.communicate(timeout=PATIENCE_S)[1]
                session = f"{name}.{attempt}"
                box.run("umount", box.directory / session)
                if commit.returncode == ExitCode.MOVED:
                    assert b"is safe on its session" in said, said
                    waiting.append((box, name))
                    lost.append(session)
                else:
                    assert commit.returncode == 0, said
            assert len(waiting) < len(started), "somebody always gets through"

    for box in both:
        box.kill()
    third = boxes("box-c")
    there = third.mount("main", session="check")
    assert {path.name for path in there.path.iterdir()} == wanted
    assert all((there.path / name).read_text() == name for name in wanted)
    for session in lost:
        kept = third.mount(session, session=session, steal=True)
        name = session.partition(".")[0]
        assert (kept.path / name).read_text() == name


def begin_commit(box: Sandbox, name: str, attempt: int) -> subprocess.Popen[bytes]:
    """Make a file in a new session of main and begin to land it."""
    session = f"{name}.{attempt}"
    mount = box.mount(session, session=session, autosave="off")
    (mount.path / name).write_text(name)
    words = box.command("commit", mount.path, "-m", name, "--into", "main")
    return subprocess.Popen(
        words, env=box.environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_killed_while_pausing(boxes: Boxes) -> None:
    """At whatever moment: what status had said was stored is there, or all that was written."""
    rng = random.Random(f"pause{SEED}")
    box = boxes("box-0")
    mount = box.mount(autosave="1s")
    work(mount)
    delay_s = 0.3
    ends = []
    for number in range(ROUNDS):
        mount.wait_until_stored()
        stored = tree_of(mount.path)
        (mount.path / "d/changed").write_text(f"round {number}")
        (mount.path / f"new{number}").write_bytes(rng.randbytes(200_000))
        written = tree_of(mount.path)

        code = kill_within(box, delay_s, "pause", mount.path)
        ends.append(code)
        # Look for the moments before its end, however fast this machine is.
        delay_s *= rng.uniform(0.5, 0.9) if code == 0 else rng.uniform(1.1, 1.8)

        box = boxes(f"box-{number + 1}")
        mount = box.resume("s", "--steal", "--autosave", "1s")
        assert tree_of(mount.path) in ([written] if code == 0 else [stored, written]), (
            f"seed {SEED}, round {number}"
        )
    assert any(code != 0 for code in ends), f"seed {SEED}: no kill came in time"


def test_killed_at_random_moments(boxes: Boxes) -> None:
    """Amid forks, commits, checkpoints, autosaves and pauses: the next sandbox always goes on, with
    at least what was reported stored, and so does each fork.
    """
    rng = random.Random(f"any{SEED}")
    box = boxes("box-0")
    mount = box.mount(autosave="1s")
    least = {"s": 0}
    committed = 0
    for number in range(-(-ROUNDS // 2)):
        numbered = Numbered(mount)
        numbered.write(rng.randrange(1, 60))
        if rng.random() < 0.6:
            mount.wait_until_stored()
            least["s"] = numbered.count()
        numbered.write(rng.randrange(1, 60))
        kind = rng.choice(("fork", "commit", "pause", "autosave", "checkpoint"))
        fork = f"fork{number}"
        words: dict[str, list[str | Path]] = {
            "fork": ["fork", mount.path, box.directory / fork, "--session", fork],
            "commit": ["commit", mount.path, "-m", "round"],
            "pause": ["pause", mount.path, "--drop-checkpoints"],
            "checkpoint": ["checkpoint", mount.path],
            "autosave": ["status", mount.path],
        }
        written = numbered.count()

        code = kill_within(box, rng.uniform(0.05, 1.5), *words[kind])

        if code == 0 and kind in ("commit", "pause"):
            least["s"] = written
        if code == 0 and kind == "commit":
            committed = written
        box = boxes(f"box-{number + 1}")
        where = f"seed {SEED}, round {number}: {kind} ended with {code}"
        if kind == "fork" and code == 0:
            least[fork] = committed  # its ref is in the store; other work was nowhere else yet
        for session, count in least.items():
            mount = resume_at(box, session)
            assert count <= Numbered(mount).count() <= written, f"{where}: {session}"
        least = {"s": least["s"]}
        mount = resume_at(box, "s") if mount.document["session"] != "s" else mount


def kill_within(box: Sandbox, delay_s: float, *words: str | Path) -> int | None:
    """Begin a command in a sandbox and kill that after a while; return how the command ended, or
    None: it did not.
    """
    command = subprocess.Popen(
        box.command(*words),
        env=box.environ(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    timer = threading.Timer(delay_s, box.kill)
    timer.start()
    timer.join()
    code = command.wait(PATIENCE_S)
    return None if code < 0 or code > 128 else code


def resume_at(box: Sandbox, session: str) -> Mount:
    """Resume a session at a directory of its name."""
    place = box.directory / f"at-{session}"
    words = ("resume", box.store, session, place, "--steal", "--autosave", "1s")
    return Mount(box, place, box.json(*words))


class Numbered:
    """Files whose names count up; each says in its content which it is."""

    def __init__(self, mount: Mount) -> None:
        self._directory = mount.path / "numbered"

    def write(self, more: int) -> None:
        """Write the next ones."""
        self._directory.mkdir(exist_ok=True)
        count = self.count()
        # The last one too: the moment that was stored may have come within it.
        for number in range(max(0, count - 1), count + more):
            (self._directory / f"{number}").write_bytes(self._content(number))

    def count(self) -> int:
        """Return how many there are; none is missing before the last, and each is whole."""
        if not self._directory.exists():
            return 0
        count = len(list(self._directory.iterdir()))
        for number in range(count):
            found = (self._directory / f"{number}").read_bytes()
            is_last = number == count - 1
            assert found == self._content(number) or (is_last and found == b""), number
        return count

    @staticmethod
    def _content(number: int) -> bytes:
        return f"file {number}\n".encode() * (number % 50 + 1)
