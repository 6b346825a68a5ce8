"""What the store has of a session's uncommitted work, as far as the mount knows."""

from __future__ import annotations

from collections.abc import Sequence

from workspacefs.layers.layer import Layer
from workspacefs.workspace.seal import SealedContents


class Saved:
    """What was saved last. Whoever changes it holds `Mounted.committing`."""

    def __init__(self, frozen: Sequence[Layer] = ()) -> None:
        """Begin with layers, newest first, whose work is in the store."""
        self.is_unclear = False
        """Whether nobody knows if the session's ref names what was stored last."""
        self.contents = SealedContents()
        self._layers = _numbers(frozen)

    def is_all(self, frozen: Sequence[Layer]) -> bool:
        """Tell whether the store has the work of just these layers, newest first."""
        return self._layers == _numbers(frozen)

    def note(self, frozen: Sequence[Layer]) -> None:
        """Remember that the store has the work of these layers, newest first."""
        self._layers = _numbers(frozen)

    def forget(self) -> None:
        """Begin anew: the layers became a commit. `contents` is another one from now on."""
        self._layers = ()
        self.contents = SealedContents()


def _numbers(layers: Sequence[Layer]) -> tuple[int, ...]:
    return tuple(layer.number for layer in layers)
