"""Random operations without a mount: memory says what the rows say, after success and failure.

The store has nothing at hand when an operation begins, so every operation is started over at every
place where it can be; and the layer fails for want of space now and then.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from tests.unit.vfs_program import DIRECTORY, FILE, Program, as_rows_say, facts_of, seen
from tests.unit.vfs_session import Session
from workspacefs.errors import NoSpaceError
from workspacefs.layers.database import Database
from workspacefs_daemon.vfs.refusal import Refusal
from workspacefs_daemon.vfs.residency import NotResident


class Full:
    """Makes every layer fail at the n-th change from now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1
        commit = Database.commit

        def fails(database: Database, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
            if self.left == 0:
                self.left = -1
                raise NoSpaceError("full")
            self.left -= 1
            commit(database, rows)

        monkeypatch.setattr(Database, "commit", fails)


@pytest.mark.parametrize("seed", range(12))
def test_memory_and_rows_say_the_same(
    session: Session, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """After every operation, done or failed, a process that begins now would see the same."""
    full = Full(monkeypatch)
    rng = random.Random(seed)
    program = Program(session, rng)
    failures = refusals = 0
    for number in range(150):
        before = as_rows_say(session)
        session.store.forget_all()
        full.left = rng.choice((-1, -1, 0))
        try:
            program.step()
        except NoSpaceError:
            failures += 1
            overwritten = {path: facts[:-1] for path, facts in as_rows_say(session).items()}
            assert overwritten == {path: facts[:-1] for path, facts in before.items()}
        except Refusal:
            refusals += 1
        full.left = -1

        assert seen(session, session.overlay) == as_rows_say(session), f"seed {seed}, {number}"
        for inode in session.overlay.inodes.values():
            assert inode.parent is None or (
                session.overlay.inodes.get(inode.parent.file_id) is inode.parent
            )
        if rng.random() < 0.2:
            program.forget_some()
            assert set(session.overlay.inodes) == {1}, "inodes that nobody holds"
        if rng.random() < 0.05:
            session.freeze()
            program.held = []
        if rng.random() < 0.05:
            shown = {path: facts[1:4] + facts[6:] for path, facts in as_rows_say(session).items()}
            session.commit()
            program.held = []
            after = {path: facts[1:4] + facts[6:] for path, facts in as_rows_say(session).items()}
            assert after == shown
            assert session.status() == {}
    assert failures > 10
    assert refusals > 10
    assert session.store.loads > 10


def test_operations_that_must_load_change_nothing_before(session: Session) -> None:
    """Whatever says that something is missing leaves everything as it was."""
    session.make("d", kind=DIRECTORY)
    for number in range(4):
        session.make(f"d/f{number}", bytes([number]) * 400_000)
    session.commit()
    directory, file, other = session.at("d"), session.at("d/f1"), session.at("d/f0")
    calls: list[Callable[[], object]] = [
        lambda: session.fs.files.write(file, 70_000, b"x"),
        lambda: session.fs.files.resize(other, 100_000),
        lambda: session.fs.namespace.create(directory, b"new", FILE, 0, 0),
        lambda: session.fs.unlink(directory, b"f2"),
        lambda: session.fs.rename(directory, b"f3", session.overlay.root, b"g", 0),
    ]
    for call in calls:
        session.store.forget_all()
        waits = 0
        while True:
            rows = dict(session.live.snapshot().iter_rows())
            facts = facts_of(file), facts_of(directory)
            try:
                call()
            except NotResident as missing:
                waits += 1
                now = dict(session.live.snapshot().iter_rows())
                assert now == rows
                assert (facts_of(file), facts_of(directory)) == facts
                missing.load()
            else:
                break
        assert waits
