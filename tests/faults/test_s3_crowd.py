"""Many processes land on one branch of a bucket: none is lost, and each gets on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.effort import IS_FULL
from tests.servers import Server
from workspacefs.refs import RefKind
from workspacefs.testing.crowd import plant, run_crowd
from workspacefs.trees.walk import iter_entries
from workspacefs.workspace.history import iter_history
from workspacefs.workspace.workspace import Workspace

WORKERS, ROUNDS = (50, 20) if IS_FULL else (10, 5)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("machines", [1, WORKERS])
def test_every_landing_of_a_crowd_counts(
    seaweedfs: Server, tmp_path: Path, machines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All on one machine, where they queue up; and each on its own, where they race. Every commit
    and every file is there, and none waits until all others are done.
    """
    for name, value in seaweedfs.environ().items():
        monkeypatch.setenv(name, value)
    url = seaweedfs.new_store()
    workspace = plant(url)
    state_dirs = [str(tmp_path / f"machine{number}") for number in range(machines)]

    rows = run_crowd(url, WORKERS, ROUNDS, state_dirs, os.environ)

    assert len(rows) == WORKERS * ROUNDS
    workspace = Workspace.open(url)
    tip = workspace.resolve("main")
    history = {ref.id.hex() for ref, _ in iter_history([tip], workspace.store)}
    assert {row["commit"] for row in rows} <= history
    names = {entry.name for entry in iter_entries(tip[1].root.subtree, workspace.store)}
    assert names == {b"w%d-%d" % (one, at) for one in range(WORKERS) for at in range(ROUNDS)} | {
        b"base"
    }
    assert workspace.refs.find(RefKind.BRANCH, "main") is not None
    if machines == 1:
        # In a queue everybody's turn comes: nobody is done before all have begun.
        first_done = min(number for number, row in enumerate(rows) if row["round"] == ROUNDS - 1)
        assert {row["worker"] for row in rows[:first_done]} == set(range(WORKERS))
