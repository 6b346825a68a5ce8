"""Steps on layers and the record that names them, for chain.py; those that write block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from workspacefs.ids import FileId
from workspacefs.layers.flatten import flatten
from workspacefs.layers.journal import Journal, settle
from workspacefs.layers.layer import Layer
from workspacefs.layers.rebase import FindState
from workspacefs.layers.rows import InodeRow, decode_inode, inode_key, is_inode_key
from workspacefs.workspace.layer_pool import LayerPlace
from workspacefs.workspace.local import LocalSession
from workspacefs.workspace.local_record import LocalRecord
from workspacefs_daemon.recovery import open_layer
from workspacefs_daemon.spares import SpareLayers

_SLICE: Final = 500


def has_changes(layer: Layer) -> bool:
    """Tell whether a layer has a row that could be a change."""
    return layer.rows.has_rows(b"I") or layer.rows.has_rows(b"D")


def finder(layer: Layer) -> FindState:
    """Return what finds the row of a file in one layer."""

    def find(file_id: FileId) -> InodeRow | None:
        value = layer.rows.get(inode_key(file_id))
        return None if value is None else decode_inode(value)

    return find


def iter_file_ids(layer: Layer) -> Iterator[list[FileId]]:
    """Yield the ids of all files with a row in a layer, some hundreds at a time."""
    after = b"I"
    while keys := layer.rows.keys_after(after, b"I", _SLICE):
        yield [FileId(int.from_bytes(key[1:], "big")) for key in keys if is_inode_key(key)]
        after = keys[-1]


def places_of(layers: Sequence[Layer]) -> list[LayerPlace]:
    """Return how records name layers."""
    return [LayerPlace(layer.number, layer.directory.name) for layer in layers]


def begin_live(
    local: LocalSession, record: LocalRecord, spares: SpareLayers
) -> tuple[LocalRecord, tuple[Layer, Journal]]:
    """Put a new layer on top of those in the record; it survives power loss on return."""
    with local.pool.holding():
        place = spares.take(local)
        opened = open_layer(local.layer_directory(place), place.number)
        record = record.with_live(place)
        local.save(record)
    return record, opened


def merge(
    local: LocalSession, record: LocalRecord, merged: Sequence[Layer], layers: dict[int, Layer]
) -> tuple[Layer, LocalRecord]:
    """Make one layer of several, and name it in the record above them; it survives power loss."""
    with local.pool.holding():
        place = local.pool.new_place(local.owner)
        target, journal = open_layer(local.layer_directory(place), place.number)
        try:
            journal.close()
            target.drop_ballast()
            flatten(merged, target, layers)
            settle(target)
            record = replace(record, layers=(*record.layers[:-1], place, record.layers[-1]))
            local.save(record)
        except BaseException:
            target.close()
            raise
    return target, record
