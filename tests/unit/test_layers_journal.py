"""The journal: what a sync returned for survives the loss of everything that was not synced."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from workspacefs.errors import IntegrityError
from workspacefs.ids import FileId
from workspacefs.layers.journal import Journal, mark_clean, recover
from workspacefs.layers.layer import Layer

FIRST_BOOT, SECOND_BOOT = "boot-1\n", "boot-2\n"


def opened(directory: Path, boot: str = FIRST_BOOT) -> tuple[Layer, Journal, bool]:
    recovery = recover(directory, boot_id=boot)
    layer = Layer(directory, number=0)
    journal = Journal(layer, is_complete=recovery.journal_is_complete)
    return layer, journal, recovery.lost_power


def put(layer: Layer, **rows: bytes) -> None:
    with layer.begin() as txn:
        for key, value in rows.items():
            txn.put(key.encode(), value)


def delete(layer: Layer, key: str) -> None:
    with layer.begin() as txn:
        txn.delete(key.encode())


def sync(layer: Layer, journal: Journal) -> None:
    pending = journal.prepare()
    journal.write(pending)
    layer.bury(pending.doomed)


def rows_of(layer: Layer) -> dict[bytes, bytes]:
    with layer.snapshot() as snapshot:
        return dict(snapshot.iter_rows())


def cut_power(directory: Path, layer: Layer, journal: Journal) -> None:
    """Leave on disk what power loss may leave: a database of which any page may be stale."""
    layer.close()
    journal.close()
    data = bytearray((directory / "data.mdb").read_bytes())
    for page in range(0, len(data), 4096):
        if page // 4096 % 2:
            data[page : page + 4096] = os.urandom(4096)
    (directory / "data.mdb").write_bytes(data)


def test_synced_rows_survive_and_later_ones_do_not_come_back_in_part(tmp_path: Path) -> None:
    """After power loss the rows are exactly those of the last sync."""
    layer, journal, _ = opened(tmp_path / "l")
    put(layer, a=b"1", b=b"2", c=b"3")
    sync(layer, journal)
    put(layer, a=b"1-again")
    delete(layer, "b")
    sync(layer, journal)
    put(layer, a=b"lost", d=b"lost")
    cut_power(tmp_path / "l", layer, journal)

    layer, journal, lost = opened(tmp_path / "l", SECOND_BOOT)

    assert lost
    assert rows_of(layer) == {b"a": b"1-again", b"c": b"3"}
    put(layer, e=b"5")
    sync(layer, journal)
    layer.close()


def test_process_death_on_the_same_boot_keeps_every_row(tmp_path: Path) -> None:
    """Without power loss the database counts, synced or not, and a later sync makes all durable."""
    layer, journal, _ = opened(tmp_path / "l")
    put(layer, a=b"1")
    sync(layer, journal)
    put(layer, b=b"2")
    layer.close()
    journal.close()

    layer, journal, lost = opened(tmp_path / "l")
    assert not lost
    assert rows_of(layer) == {b"a": b"1", b"b": b"2"}
    sync(layer, journal)
    cut_power(tmp_path / "l", layer, journal)
    layer, journal, lost = opened(tmp_path / "l", SECOND_BOOT)

    assert lost
    assert rows_of(layer) == {b"a": b"1", b"b": b"2"}
    layer.close()


def test_a_clean_close_stands_on_any_boot(tmp_path: Path) -> None:
    """mark_clean syncs the database itself: nothing is replayed afterwards."""
    layer, journal, _ = opened(tmp_path / "l")
    put(layer, a=b"1")
    sync(layer, journal)
    mark_clean(layer)
    layer.close()
    journal.close()

    layer, journal, lost = opened(tmp_path / "l", SECOND_BOOT)

    assert not lost
    assert rows_of(layer) == {b"a": b"1"}
    layer.close()


@pytest.mark.parametrize("cut", [1, 7, 16, 40, 1000])
def test_a_torn_sync_counts_for_nothing(tmp_path: Path, cut: int) -> None:
    """A journal that ends within a batch gives the state of the sync before it."""
    layer, journal, _ = opened(tmp_path / "l")
    put(layer, a=b"1")
    sync(layer, journal)
    whole = (tmp_path / "l/journal").stat().st_size
    put(layer, a=b"2", b=b"x" * 2000)
    sync(layer, journal)
    cut_power(tmp_path / "l", layer, journal)
    os.truncate(tmp_path / "l/journal", (tmp_path / "l/journal").stat().st_size - cut)
    assert (tmp_path / "l/journal").stat().st_size > whole

    layer, journal, _ = opened(tmp_path / "l", SECOND_BOOT)

    assert rows_of(layer) == {b"a": b"1"}
    put(layer, c=b"3")
    sync(layer, journal)
    cut_power(tmp_path / "l", layer, journal)
    layer, journal, _ = opened(tmp_path / "l", "boot-3\n")
    assert rows_of(layer) == {b"a": b"1", b"c": b"3"}
    layer.close()


def test_a_sync_of_many_batches_is_one_step(tmp_path: Path) -> None:
    """When only some batches of a sync reached the disk, none of them counts."""
    layer, journal, _ = opened(tmp_path / "l")
    put(layer, first=b"1")
    sync(layer, journal)
    with layer.begin() as txn:
        for number in range(50_000):
            txn.put(b"k%06d" % number, b"v")
    sync(layer, journal)
    cut_power(tmp_path / "l", layer, journal)
    size = (tmp_path / "l/journal").stat().st_size
    os.truncate(tmp_path / "l/journal", size - 10)

    layer, journal, _ = opened(tmp_path / "l", SECOND_BOOT)

    assert rows_of(layer) == {b"first": b"1"}
    layer.close()


def test_bodies_are_buried_only_when_their_end_is_durable(tmp_path: Path) -> None:
    """An own file that was given up is there until a sync: power loss may bring its row back."""
    layer, journal, _ = opened(tmp_path / "l")
    layer.create_own(FileId(7))
    put(layer, a=b"names file 7")
    sync(layer, journal)
    delete(layer, "a")
    layer.doomed.append(FileId(7))
    assert layer.own_path(FileId(7)).exists()

    sync(layer, journal)

    assert not layer.own_path(FileId(7)).exists()
    layer.close()


def test_a_missing_journal_is_damage(tmp_path: Path) -> None:
    """Power loss without a journal is told, not papered over with stale rows."""
    layer, journal, _ = opened(tmp_path / "l")
    put(layer, a=b"1")
    sync(layer, journal)
    cut_power(tmp_path / "l", layer, journal)
    (tmp_path / "l/journal").unlink()

    with pytest.raises(IntegrityError, match="journal"):
        recover(tmp_path / "l", boot_id=SECOND_BOOT)


def test_rewriting_keeps_every_row_and_shrinks_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal much longer than its rows is written anew."""
    monkeypatch.setattr("workspacefs.layers.journal.REWRITE_MIN_BYTES", 1 << 16)
    layer, journal, _ = opened(tmp_path / "l")
    for number in range(40):
        put(layer, a=b"%d" % number + b"x" * 10_000, b=b"kept")
        sync(layer, journal)

    assert (tmp_path / "l/journal").stat().st_size < 150_000
    shutil.copytree(tmp_path / "l", tmp_path / "copy")
    layer.close()
    (tmp_path / "copy/data.mdb").write_bytes(b"worthless")
    layer, journal, _ = opened(tmp_path / "copy", SECOND_BOOT)
    assert rows_of(layer) == {b"a": b"39" + b"x" * 10_000, b"b": b"kept"}
    layer.close()
