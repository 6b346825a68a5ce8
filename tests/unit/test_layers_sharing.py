"""Layers that several users of one process have open."""

from __future__ import annotations

from pathlib import Path

from workspacefs.layers.layer import Layer
from workspacefs_daemon.recovery import begin_layer, open_frozen_layer


def test_frozen_layer_is_open_once_and_until_its_last_user_closes_it(tmp_path: Path) -> None:
    """A process that wrote a layer, or reads it already, shares it."""
    begin_layer(tmp_path / "layer")
    writer = Layer(tmp_path / "layer", number=7)
    writer.rows.commit([(b"k", b"v")])

    reader = open_frozen_layer(tmp_path / "layer", 7)
    writer.close()
    shared = reader.rows.get(b"k")
    reader.close()
    again = open_frozen_layer(tmp_path / "layer", 7)

    assert reader is writer
    assert shared == b"v"
    assert again is not writer
    assert again.rows.get(b"k") == b"v"
    again.close()
