"""Layers that sessions share: they stay while anyone needs them, and not longer."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from blake3 import blake3

from workspacefs.errors import BusyError
from workspacefs.statedir import StateDir
from workspacefs.workspace.layer_pool import LayerPlace
from workspacefs.workspace.local import LocalSession, open_pool
from workspacefs.workspace.local_record import IdMark, IdRange, LocalRecord
from workspacefs.workspace.local_sizes import local_sizes

WORKSPACE = "w1"
ELSEWHERE = LayerPlace(1 << 33, "elsewhere")


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(str(tmp_path))


def begin(state: StateDir, name: str, *shared: LayerPlace) -> tuple[LocalSession, LocalRecord]:
    """Make a session over some layers, with one of its own on top."""
    local = LocalSession.lock(state, WORKSPACE, name)
    with local.pool.holding():
        live = local.pool.new_place(local.owner)
        (local.layer_directory(live) / "data.mdb").write_bytes(b"rows")
        record = LocalRecord(session_id=f"id-{name}", base=None, layers=(*shared, live), saver="0f")
        local.save(record)
    return local, record


def test_record_comes_back_as_it_was(state: StateDir) -> None:
    """Layers, marks of file ids, and a commit under way."""
    local, record = begin(state, "a/b", LayerPlace(1 << 40, "shared"))
    full = LocalRecord(
        session_id=record.session_id, base=None, layers=record.layers, sealed_layers=(1 << 40,),
        given_ids=IdMark(7, 4096), own_ids=IdRange(7, 0, 9), saver="0f",
    )  # fmt: skip

    local.save(full)

    assert local.load() == full


def test_layer_goes_with_the_last_record_that_names_it(state: StateDir) -> None:
    """Whoever lets go first deletes nothing."""
    parent, record = begin(state, "parent")
    (shared,) = record.layers
    child, child_record = begin(state, "child", shared)

    parent.save(LocalRecord(session_id="id-parent", base=None, layers=(ELSEWHERE,)))
    parent.pool.release([shared])
    assert parent.layer_directory(shared).exists()
    child.forget(child_record)

    assert not parent.layer_directory(shared).exists()
    assert not child.layer_directory(child_record.layers[-1]).exists()


def test_record_that_cannot_be_read_keeps_every_layer(state: StateDir) -> None:
    """Nobody knows what it needs."""
    parent, record = begin(state, "parent")
    other, _ = begin(state, "other")
    (other.directory / "session.json").write_text("{")

    parent.forget(record)

    assert parent.layer_directory(record.layers[0]).exists()


def test_sweep_takes_what_a_crash_left_of_this_session_alone(state: StateDir) -> None:
    """A layer that no record names yet may be another session's that is being made."""
    local, record = begin(state, "a")
    with local.pool.holding():
        left = local.pool.new_place(local.owner)
        still_open = local.pool.new_place(local.owner)
        foreign = local.pool.new_place("b")

    local.pool.sweep(local.owner, {still_open.name})

    places = (*record.layers, left, still_open)
    there = {place: local.layer_directory(place).exists() for place in places}
    assert there == {record.layers[0]: True, left: False, still_open: True}
    assert local.layer_directory(foreign).exists()


def test_work_whose_record_is_lost_is_never_swept(state: StateDir) -> None:
    """It is disowned: only a person may delete it."""
    local, record = begin(state, "a")
    (local.directory / "session.json").unlink()

    found = local.pool.disown(local.owner)
    local.pool.sweep(local.owner)

    assert found == [local.layer_directory(record.layers[0])]
    assert found[0].exists()


def test_nothing_goes_while_a_layer_is_handed_on(state: StateDir) -> None:
    """A release waits until the new record is on disk."""
    parent, record = begin(state, "parent")
    child = LocalSession.lock(state, WORKSPACE, "child")
    with child.pool.holding():
        parent.save(LocalRecord(session_id="id-parent", base=None, layers=(ELSEWHERE,)))
        release = threading.Thread(target=open_pool(state, WORKSPACE).release, args=[record.layers])
        release.start()
        child.save(LocalRecord(session_id="id-child", base=None, layers=record.layers))
        assert release.is_alive()
    release.join()

    assert child.layer_directory(record.layers[0]).exists()


def test_layers_of_format_1_move_into_the_pool(state: StateDir) -> None:
    """Sessions of an earlier release, with numbers of their own."""
    local = LocalSession.lock(state, WORKSPACE, "old")
    for number in (0, 3):
        (local.directory / "layers" / str(number)).mkdir(parents=True)
        (local.directory / "layers" / str(number) / "segment").write_text(f"layer {number}")
    local.save(LocalRecord(session_id="i", base=None, layers=(ELSEWHERE,)))
    path = local.directory / "session.json"
    document = json.loads(path.read_text())
    del document["check"], document["given_ids"], document["own_ids"]
    document |= {"format": 1, "layers": [0, 3], "next_layer": 4}
    check = blake3((json.dumps(document, sort_keys=True) + "\n").encode()).hexdigest()
    path.write_text(json.dumps({**document, "check": check}, sort_keys=True) + "\n")

    for _ in range(2):  # a crash before the record is written anew changes nothing
        record = local.load()
        assert record is not None
        texts = [(local.layer_directory(p) / "segment").read_text() for p in record.layers]
        assert [place.number for place in record.layers] == [0, 3]
        assert texts == ["layer 0", "layer 3"]
    local.save(record)
    assert local.load() == record


def test_sizes_tell_what_is_ones_own(state: StateDir) -> None:
    """Shared layers are nobody's own."""
    parent, record = begin(state, "parent")
    _, child_record = begin(state, "child", record.layers[0])
    own = child_record.layers[-1]
    (parent.layer_directory(own) / "segment").write_bytes(bytes(100_000))

    sizes = local_sizes(state, WORKSPACE)

    assert sizes["id-parent"].unique_bytes == 0
    assert sizes["id-parent"].shared_bytes == sizes["id-child"].shared_bytes > 0
    assert 100_000 <= sizes["id-child"].unique_bytes < 200_000
    assert (sizes["id-parent"].layers, sizes["id-child"].layers) == (1, 2)


def test_session_is_locked_once(state: StateDir) -> None:
    """Two processes never have one session."""
    local, _ = begin(state, "a")

    with pytest.raises(BusyError):
        LocalSession.lock(state, WORKSPACE, "a")

    local.close()
    LocalSession.lock(state, WORKSPACE, "a").close()
