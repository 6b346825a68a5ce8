"""Opening layers: what the last process left, made whole again after kill -9 or power loss."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Final

from workspacefs.layers.journal import Journal, is_blank, recover
from workspacefs.layers.layer import Layer

log = logging.getLogger(__name__)

_opening: Final = threading.Lock()


def begin_layer(directory: Path) -> None:
    """Make the directory of a layer that has nothing in it yet."""
    recover(directory, boot_id=_boot_id())


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text()


def open_frozen_layer(directory: Path, number: int) -> Layer:
    """Return a layer that nobody changes any more, recovered if need be. Other sessions may read
    it at the same time; it is not journalled, but settled (layers/journal.py). From any thread.
    One that this process has open already is shared.
    """
    with _opening:
        return Layer.find_open(directory) or _opened_frozen(directory, number)


def _opened_frozen(directory: Path, number: int) -> Layer:
    recovery = recover(directory, boot_id=_boot_id(), is_frozen=True)
    if recovery.lost_power:
        log.warning(
            "layer.recovered",
            extra={"layer": str(directory), "torn_bytes": recovery.torn_bytes},
        )
    return Layer(directory, number=number, is_frozen=True)


def open_layer(directory: Path, number: int) -> tuple[Layer, Journal]:
    """Return a layer and its journal, recovered if need be."""
    recovery = recover(directory, boot_id=_boot_id())
    if recovery.lost_power:
        log.warning(
            "layer.recovered",
            extra={"layer": str(directory), "torn_bytes": recovery.torn_bytes},
        )
    layer = Layer(directory, number=number)
    is_complete = recovery.journal_is_complete or is_blank(layer)
    if not is_complete:
        layer.sweep_own_files()
        layer.distrust_bodies()
    layer.ensure_ballast()
    return layer, Journal(layer, is_complete=is_complete)
