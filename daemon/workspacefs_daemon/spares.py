"""Layers that are made before they are needed, so that a freeze or a fork need not wait for them.

A layer must survive power loss before a record names it, and that takes five syncs. A spare is one
that no record names yet: what a crash leaves of it goes like any other layer that is in no record.
"""

from __future__ import annotations

import threading
from typing import Final

from workspacefs.layers.journal import sync_directory
from workspacefs.workspace.layer_pool import LayerPlace
from workspacefs.workspace.local import LocalSession
from workspacefs_daemon.recovery import begin_layer, open_layer

_SPARES: Final = 4
"""Enough to fork into three."""


class SpareLayers:
    """The spare layers of one session; from any thread."""

    def __init__(self, local: LocalSession) -> None:
        self._local = local
        self._places: list[LayerPlace] = []
        self._lock = threading.Lock()

    def names(self) -> set[str]:
        """Return the names of those that there are."""
        with self._lock:
            return {place.name for place in self._places}

    def are_full(self) -> bool:
        """Tell whether there are as many as there should be."""
        with self._lock:
            return len(self._places) >= _SPARES

    def take(self, local: LocalSession) -> LayerPlace:
        """Return a layer that survives power loss, for this session or another one; it is made now
        if none is left. The caller holds the pool until a record names it.

        Raises:
            NoSpaceError: The disk is full.
        """
        with self._lock:
            place = self._places.pop() if self._places else None
        if place is None:
            return new_layer(local)
        local.pool.give(place, local.owner)
        return place

    def fill(self) -> None:
        """Make as many as there should be.

        Raises:
            NoSpaceError: The disk is full.
        """
        while not self.are_full():
            with self._local.pool.holding():
                place = new_layer(self._local)
                self._make_files(place)
                with self._lock:
                    self._places.append(place)

    def _make_files(self, place: LayerPlace) -> None:
        directory = self._local.layer_directory(place)
        layer, journal = open_layer(directory, place.number)
        journal.close()
        layer.close()
        sync_directory(layer.own.directory)
        sync_directory(directory)

    def drop(self) -> None:
        """Delete them."""
        with self._lock:
            places, self._places = self._places, []
        if places:
            self._local.pool.release(places)


def new_layer(local: LocalSession) -> LayerPlace:
    """Make an empty layer that survives power loss. The caller holds the pool."""
    place = local.pool.new_place(local.owner)
    begin_layer(local.layer_directory(place))
    return place
