"""Space that a layer holds back, so that files can be deleted on a full disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from workspacefs.layers import layer as layer_module
from workspacefs.layers.layer import Layer
from workspacefs.layers.rows import encode_name, name_key


def test_nothing_is_held_back_for_a_layer_without_changes(tmp_path: Path) -> None:
    """It is from the first change on."""
    layer = Layer(tmp_path / "layer", number=7)
    layer.ensure_ballast()
    assert not (tmp_path / "layer/ballast").exists()

    layer.rows.commit([(name_key(1, b"f"), encode_name(2))])
    layer.ensure_ballast()

    assert layer.drop_ballast()
    layer.close()


def test_space_is_held_back_at_once_on_a_disk_that_fills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first change may be the one that frees space."""
    monkeypatch.setattr(layer_module, "_free_bytes", lambda directory: 100 << 20)
    layer = Layer(tmp_path / "layer", number=7)

    layer.ensure_ballast()

    assert layer.drop_ballast()
    layer.close()
