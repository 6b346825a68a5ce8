"""File ids are handed out once, whenever a process dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from workspacefs.layers.layer import Layer
from workspacefs.workspace.local_record import IdRange
from workspacefs_daemon.vfs.services import FileIds

OWN = IdRange(7, 1000, 1_000_000)


def never() -> int:
    raise AssertionError("there are enough")


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_layer_that_was_just_put_on_top_does_not_begin_again(tmp_path: Path, deaths: int) -> None:
    """The process died after its record named the new layer and before that had the mark: the mark
    of the layer beneath counts, also when that has gone later on.
    """
    eldest = Layer(tmp_path / "0", number=0)
    used = {FileIds(eldest, never, owner=1, own=OWN).next_id()}
    layers = [eldest]
    for number in range(1, 1 + deaths):
        layers.insert(0, Layer(tmp_path / str(number), number=number))
        file_ids = FileIds(layers[0], never, owner=1, older=layers[1:], own=OWN)

    mounted_again = FileIds(layers[0], never, owner=1, own=OWN)

    for ids in (file_ids, mounted_again):
        fresh = ids.next_id()
        assert fresh not in used
    for layer in layers:
        layer.close()


def test_a_fork_does_not_go_on_where_its_parent_is(tmp_path: Path) -> None:
    """It stands on layers that have the parent's mark, and both are mounted again and again."""
    shared, own, parents = (Layer(tmp_path / name, number=n) for n, name in enumerate("abc"))
    parent = FileIds(shared, never, owner=1, own=OWN)
    used = {parent.next_id()}
    given = parent.give()
    parent.move_to(parents)
    for _ in range(3):
        parent = FileIds(parents, never, owner=1, older=[shared], own=OWN, given=parent.mark)
        fork = FileIds(own, never, owner=2, older=[shared], own=given)
        fresh = {parent.next_id(), fork.next_id()}
        assert len(fresh - used) == 2
        used |= fresh
    for layer in (shared, own, parents):
        layer.close()
