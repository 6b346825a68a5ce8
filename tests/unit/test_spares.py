"""Spare layers: whole when they are taken, gone when nobody takes them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from workspacefs.layers.layer import Layer
from workspacefs.statedir import StateDir
from workspacefs.workspace.layer_pool import LayerPlace
from workspacefs.workspace.local import LocalSession
from workspacefs_daemon.recovery import open_layer
from workspacefs_daemon.session import get_ready
from workspacefs_daemon.spares import SpareLayers

WORKSPACE = "w1"


@pytest.fixture
def local(tmp_path: Path) -> LocalSession:
    return LocalSession.lock(StateDir(str(tmp_path)), WORKSPACE, "s")


def files_of(local: LocalSession, place: LayerPlace) -> dict[str, bytes]:
    """Return what every layer has that can be opened at once."""
    directory = local.layer_directory(place)
    return {name: (directory / name).read_bytes() for name in ("boot", "journal", "owner")}


def test_spares_are_like_layers_that_are_made_when_needed(local: LocalSession) -> None:
    """A layer from the store of spares has all that one has for which there was no spare."""
    filled, empty = SpareLayers(local), SpareLayers(local)
    filled.fill()

    with local.pool.holding():
        spare, made = filled.take(local), empty.take(local)

    assert files_of(local, spare) == files_of(local, made)
    assert spare.name not in filled.names()
    layer, journal = open_layer(local.layer_directory(spare), spare.number)
    assert journal.is_complete
    assert layer.rows.count() == 0
    journal.close()
    layer.close()


def test_spare_for_another_session_is_its_own(local: LocalSession, tmp_path: Path) -> None:
    """A sweep of the session that made it does not take it."""
    child = LocalSession.lock(StateDir(str(tmp_path)), WORKSPACE, "child")
    spares = SpareLayers(local)
    spares.fill()

    with local.pool.holding():
        place = spares.take(child)
    local.pool.sweep(local.owner, spares.names())

    assert local.layer_directory(place).exists()
    child.pool.sweep(child.owner)
    assert not local.layer_directory(place).exists()


def test_spares_that_a_crash_leaves_are_swept(local: LocalSession) -> None:
    """No record names them, so the next process of the session takes them away."""
    left = SpareLayers(local)
    left.fill()
    spares = SpareLayers(local)
    spares.fill()

    local.pool.sweep(local.owner, spares.names())

    assert {path.name for path in layers(local)} == spares.names()
    spares.drop()
    assert layers(local) == []
    assert spares.names() == set()


def test_blank_journal_says_all_only_without_rows(local: LocalSession) -> None:
    """A layer with rows whose journal says nothing, as kill -9 leaves it, is written anew."""
    spares = SpareLayers(local)
    with local.pool.holding():
        place = spares.take(local)
    directory = local.layer_directory(place)
    layer, journal = open_layer(directory, place.number)
    layer.rows.commit([(b"Ikey", b"value")])
    journal.close()
    layer.close()

    layer, journal = open_layer(directory, place.number)

    assert not journal.is_complete
    journal.close()
    assert isinstance(layer, Layer)
    layer.close()


def layers(local: LocalSession) -> list[Path]:
    """Return the directories of all layers of the workspace."""
    pool = local.layer_directory(LayerPlace(1, "x")).parent
    return [path for path in pool.iterdir() if path.is_dir()]


def test_getting_ready_needs_no_temporary_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full or missing /tmp costs time, never the mount that the process waits for."""
    monkeypatch.setattr(tempfile, "tempdir", "/proc/no-such-directory")

    get_ready()
