"""Rows that make one tree look like another: against sessions that were left as they are."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.unit.vfs_program import DIRECTORY, Program, seen
from tests.unit.vfs_session import Session
from workspacefs.layers.flatten import flatten
from workspacefs.layers.layer import Layer
from workspacefs.objects.entry import Entry
from workspacefs.workspace.base import KnownObjects
from workspacefs.workspace.pending import Pending
from workspacefs.workspace.seal import seal_pending
from workspacefs.workspace.status import iter_changes
from workspacefs.workspace.tree_rows import rows_between, rows_over
from workspacefs_daemon.vfs.overlay import Overlay
from workspacefs_daemon.vfs.refusal import Refusal
from workspacefs_daemon.vfs.residency import Resident


def sealed(session: Session, pending: Pending) -> Entry:
    """Store a state as a tree, without a commit; return its root."""
    workspace, known = session.workspace, KnownObjects()
    with workspace.new_writer(known=known.find) as writer:
        made = seal_pending(
            pending, workspace.store, writer, known, workspace.tree_params, workspace.chunk_params
        )
        writer.finish()
    return made.root


def layer_between(session: Session, base: Entry, wanted: Entry, directory: Path) -> Layer:
    """Return a layer that shows `wanted` over `base`."""
    layer = Layer(directory, number=900)
    rows = list(rows_between(base, wanted, session.workspace.store))
    assert len({key for key, _ in rows}) == len(rows)
    layer.rows.commit(rows)
    return layer


def over(session: Session, layer: Layer) -> Pending:
    """Return the changes of one layer over the session's base."""
    return Pending(
        session.root_entry, [layer.snapshot()], {layer.number: layer}, session.workspace.store
    )


def status_of(pending: Pending) -> dict[bytes, str]:
    return {change.path: change.kind.name for change in iter_changes(pending)}


def run_program(session: Session, seed: int, steps: int, *, commits: bool) -> None:
    rng = random.Random(seed)
    program = Program(session, rng)
    for _ in range(steps):
        try:
            program.step()
        except Refusal:
            continue
        if rng.random() < 0.1:
            session.freeze()
            program.held = []
        if commits and rng.random() < 0.05:
            session.commit()
            program.held = []


@pytest.mark.parametrize("seed", range(25))
def test_work_that_was_saved_as_a_tree_comes_back(tmp_path: Path, seed: int) -> None:
    """Every file, and the same changes over the same base: sealed again, the same tree."""
    session = Session(tmp_path / "session")
    run_program(session, seed, 60, commits=True)
    session.commit()
    run_program(session, seed + 100, 40, commits=False)
    wanted = sealed(session, session.pending())

    layer = layer_between(session, session.root_entry, wanted, tmp_path / "layer")

    resident = Resident(session.workspace.store)
    shown = Overlay(session.root_entry, live=layer, frozen=[], resident=resident)
    assert seen(session, shown) == seen(session, session.overlay)
    assert status_of(over(session, layer)) == status_of(session.pending())
    assert sealed(session, over(session, layer)) == wanted
    layer.close()
    session.close()


@pytest.mark.parametrize("seed", range(10))
def test_any_tree_can_be_shown_over_any_other(tmp_path: Path, seed: int) -> None:
    """Also an earlier one over a later one, with commits between them."""
    session = Session(tmp_path / "session")
    run_program(session, seed, 60, commits=False)
    session.commit()
    early, before = session.root_entry, seen(session, session.overlay)
    run_program(session, seed + 100, 60, commits=True)
    session.commit()

    layer = layer_between(session, session.root_entry, early, tmp_path / "layer")

    resident = Resident(session.workspace.store)
    shown = Overlay(session.root_entry, live=layer, frozen=[], resident=resident)
    assert seen(session, shown) == before
    assert sealed(session, over(session, layer)) == early
    layer.close()
    session.close()


def test_moved_directory_costs_its_name_alone(tmp_path: Path) -> None:
    """Nothing below it gets a row, wherever it went."""
    session = Session(tmp_path / "session")
    for name in ("a", "a/big", "new"):
        session.make(name, kind=DIRECTORY)
    for number in range(200):
        session.make(f"a/big/f{number}", b"x" * 200)
    session.commit()
    session.make("new/inside", kind=DIRECTORY)
    session.fs.rename(session.at("a"), b"big", session.at("new/inside"), b"moved", 0)
    wanted = sealed(session, session.pending())

    rows = list(rows_between(session.root_entry, wanted, session.workspace.store))

    assert len(rows) < 15
    session.close()


@pytest.mark.parametrize("seed", range(10))
def test_flattened_session_shows_the_same(tmp_path: Path, seed: int) -> None:
    """Names, attributes and content through the file system, over a base."""
    session = Session(tmp_path / "session")
    run_program(session, seed, 60, commits=True)
    run_program(session, seed + 100, 60, commits=False)
    session.freeze()
    before, status = seen(session, session.overlay), session.status()
    if len(session.frozen) < 2:
        session.freeze()
    target = Layer(tmp_path / "target", number=901)

    flatten(session.frozen, target, {layer.number: layer for layer in session.frozen})

    session.frozen = [target]
    session.restart()
    assert seen(session, session.overlay) == before
    assert session.status() == status
    session.close()


@pytest.mark.parametrize("seed", range(25))
def test_any_tree_can_be_shown_over_layers(tmp_path: Path, seed: int) -> None:
    """What was done on top of layers, as one layer on top of them: the same files, and the same
    changes over the same base.
    """
    session = Session(tmp_path / "session")
    run_program(session, seed, 50, commits=True)
    session.commit()
    run_program(session, seed + 100, 40, commits=False)
    session.freeze()
    frozen, now = list(session.frozen), sealed(session, session.pending())
    run_program(session, seed + 200, 40, commits=False)
    wanted = sealed(session, session.pending())
    numbered = {layer.number: layer for layer in frozen}
    store = session.workspace.store
    beneath = Pending(session.root_entry, [one.snapshot() for one in frozen], numbered, store)

    layer = Layer(tmp_path / "layer", number=900)
    rows = list(rows_over(beneath, now, wanted))
    assert len({key for key, _ in rows}) == len(rows)
    layer.rows.commit(rows)

    shown = Overlay(session.root_entry, live=layer, frozen=frozen, resident=Resident(store))
    assert seen(session, shown) == seen(session, session.overlay)
    snapshots = [one.snapshot() for one in (layer, *frozen)]
    pending = Pending(session.root_entry, snapshots, {**numbered, 900: layer}, store)
    assert status_of(pending) == status_of(session.pending())
    assert sealed(session, pending) == wanted
    layer.close()
    session.close()
