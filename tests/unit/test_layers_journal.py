"""The journal: what a sync returned for survives the loss of everything that was not synced."""

from __future__ import annotations

import os
import resource
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
    layer.rows.commit([(key.encode(), value) for key, value in rows.items()])


def delete(layer: Layer, key: str) -> None:
    layer.rows.commit([(key.encode(), None)])


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
    layer.rows.commit([(b"k%06d" % number, b"v") for number in range(50_000)])
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
    layer.own.create(FileId(7))
    put(layer, a=b"names file 7")
    sync(layer, journal)
    delete(layer, "a")
    layer.doomed.append(FileId(7))
    assert layer.own.path(FileId(7)).exists()

    sync(layer, journal)

    assert not layer.own.path(FileId(7)).exists()
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


def test_sync_that_failed_gives_back_bodies_too(tmp_path: Path) -> None:
    """What a failed sync did not put on disk, own files among it, the next one takes again."""
    layer, journal, _ = opened(tmp_path / "l")
    layer.own.create(FileId(7))
    layer.own.write(FileId(7), b"x", 0)
    layer.segment.append(b"y")
    put(layer, a=b"1")

    pending = journal.prepare()
    journal.restore(pending)

    again = journal.prepare()
    assert again.files == {FileId(7)}
    assert again.segment_is_dirty
    assert again.names_are_dirty
    assert again.keys == {b"a"}
    again.close()
    layer.close()


def test_more_own_files_than_a_process_may_open_are_synced(tmp_path: Path) -> None:
    """A sync needs one descriptor, however many files were written."""
    layer, journal, _ = opened(tmp_path / "l")
    for number in range(1, 400):
        layer.own.create(FileId(number))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, hard))
    try:
        sync(layer, journal)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert not layer.is_dirty
    layer.close()


@pytest.mark.parametrize("damage", ["header", "missing"])
def test_journal_that_is_needed_and_damaged_is_an_error(tmp_path: Path, damage: str) -> None:
    """Work that was synced is never taken for work that was not there."""
    layer, journal, _ = opened(tmp_path / "l")
    put(layer, a=b"1")
    sync(layer, journal)
    cut_power(tmp_path / "l", layer, journal)
    path = tmp_path / "l" / "journal"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"X" + path.read_bytes()[1:])

    with pytest.raises(IntegrityError):
        recover(tmp_path / "l", boot_id=SECOND_BOOT)


def test_power_loss_before_the_first_sync_leaves_an_empty_layer(tmp_path: Path) -> None:
    """A layer that never synced anything is empty then, not broken."""
    recover(tmp_path / "l", boot_id=FIRST_BOOT)

    layer, _, lost = opened(tmp_path / "l", SECOND_BOOT)

    assert lost
    assert rows_of(layer) == {}
    layer.close()


def test_torn_end_of_a_journal_is_told_and_cut_off(tmp_path: Path) -> None:
    """What a crash left past the last whole sync cannot come to stand behind a new one."""
    layer, journal, _ = opened(tmp_path / "l")
    put(layer, a=b"1")
    sync(layer, journal)
    cut_power(tmp_path / "l", layer, journal)
    path = tmp_path / "l" / "journal"
    whole = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"torn" * 100)

    recovery = recover(tmp_path / "l", boot_id=SECOND_BOOT)
    layer = Layer(tmp_path / "l", number=0)
    Journal(layer, is_complete=recovery.journal_is_complete)

    assert recovery.torn_bytes == 400
    assert path.stat().st_size == whole
    layer.close()


def test_bodies_are_not_buried_while_someone_reads(tmp_path: Path) -> None:
    """A view of the rows finds every body that they name, whatever is removed and synced."""
    layer, journal, _ = opened(tmp_path / "l")
    offset = layer.segment.append(b"r" * 8192)
    layer.own.create(FileId(7))
    layer.own.write(FileId(7), b"own", 0)
    layer.readers += 1
    layer.doomed += [(offset, 8192), FileId(7)]

    sync(layer, journal)

    assert layer.segment.read(offset, 8192) == b"r" * 8192
    assert layer.own.read(FileId(7), 0, 10) == b"own"
    layer.readers -= 1
    layer.bury([])
    assert not layer.own.path(FileId(7)).exists()
    layer.close()
