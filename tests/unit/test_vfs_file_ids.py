"""File ids are handed out once, whenever a process dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from workspacefs.layers.layer import Layer
from workspacefs.workspace.local import IdRange
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
    used = {FileIds(eldest, never, own=OWN).next_id()}
    layers = [eldest]
    for number in range(1, 1 + deaths):
        layers.insert(0, Layer(tmp_path / str(number), number=number))
        file_ids = FileIds(layers[0], never, older=layers[1:], own=OWN)

    mounted_again = FileIds(layers[0], never, own=OWN)

    for ids in (file_ids, mounted_again):
        fresh = ids.next_id()
        assert fresh not in used
    for layer in layers:
        layer.close()
