"""What the store has of a session's uncommitted work, as far as the mount knows."""

from __future__ import annotations

from collections.abc import Sequence

from workspacefs.layers.layer import Layer
from workspacefs.workspace.local_record import MergeState
from workspacefs.workspace.seal import SealedContents


class Saved:
    """What was saved last. Whoever changes it holds `Mounted.committing`."""

    def __init__(self, frozen: Sequence[Layer] = (), merge: MergeState | None = None) -> None:
        """Begin with layers, newest first, whose work is in the store, and what is merged there."""
        self.is_unclear = False
        """Whether nobody knows if the session's ref names what was stored last."""
        self.contents = SealedContents()
        self._layers, self._merge = _numbers(frozen), merge

    def is_all(self, frozen: Sequence[Layer], merge: MergeState | None) -> bool:
        """Tell whether the store has the work of just these layers, newest first, and that merge
        with it.
        """
        return (self._layers, self._merge) == (_numbers(frozen), merge)

    def note(self, frozen: Sequence[Layer], merge: MergeState | None) -> None:
        """Remember that the store has the work of these layers, newest first, and that merge."""
        self._layers, self._merge = _numbers(frozen), merge

    def forget(self) -> None:
        """Begin anew: the layers became a commit. `contents` is another one from now on."""
        self._layers, self._merge = (), None
        self.contents = SealedContents()


def _numbers(layers: Sequence[Layer]) -> tuple[int, ...]:
    return tuple(layer.number for layer in layers)
