"""One cached value on disk: blocks, marks, and files that are not what they seem."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workspacefs.cache.block_file import (
    BLOCK_BYTES,
    BLOCKS_MAX,
    DATA_OFFSET,
    VALUE_MAX_BYTES,
    BlockFile,
    block_span,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "value"


@pytest.fixture
def file(path: Path) -> BlockFile:
    return BlockFile(path, is_writable=True, is_made=True)


@pytest.mark.parametrize(
    ("offset", "length", "span"),
    [
        (0, 0, (0, 0)),
        (0, 1, (0, 1)),
        (BLOCK_BYTES - 1, 1, (0, 1)),
        (BLOCK_BYTES - 1, 2, (0, 2)),
        (BLOCK_BYTES, BLOCK_BYTES, (1, 2)),
        (3 * BLOCK_BYTES, 1, (3, 4)),
    ],
)
def test_span_covers_the_range(offset: int, length: int, span: tuple[int, int]) -> None:
    """A range is covered by the blocks that it touches, and no others."""
    assert block_span(offset, length) == span


def test_bytes_count_once_they_are_said_to_be_there(file: BlockFile) -> None:
    """What was written is not read before its blocks are set."""
    file.write(0, b"a" * BLOCK_BYTES + b"b" * BLOCK_BYTES)

    assert file.read(0, 10) is None
    file.set_present(0, 1)

    found = file.read(BLOCK_BYTES - 2, 2)
    assert found is not None
    assert (found.data, found.marked_block) == (b"aa", None)
    assert file.read(BLOCK_BYTES - 2, 4) is None
    assert file.holds(0, BLOCK_BYTES)
    assert not file.holds(0, BLOCK_BYTES + 1)


def test_other_users_of_the_file_see_what_comes(path: Path, file: BlockFile) -> None:
    """A reader that opened the file before sees blocks, and the length, as soon as they are set."""
    reader = BlockFile(path, is_writable=False)

    file.note_total(70_000)
    file.write(0, b"x" * 70_000)
    file.set_present(0, 2)

    found = reader.read(69_990, 10)
    assert found is not None
    assert found.data == b"x" * 10
    assert reader.total_bytes == 70_000


def test_two_writers_fill_one_file(path: Path, file: BlockFile) -> None:
    """Blocks of two processes add up; the second does not undo the first."""
    file.note_total(2 * BLOCK_BYTES)
    file.write(0, b"1" * BLOCK_BYTES)
    file.set_present(0, 1)
    other = BlockFile(path, is_writable=True, is_made=True)

    other.write(BLOCK_BYTES, b"2" * BLOCK_BYTES)
    other.set_present(1, 2)

    found = file.read(0, 2 * BLOCK_BYTES)
    assert found is not None
    assert found.data == b"1" * BLOCK_BYTES + b"2" * BLOCK_BYTES
    assert other.total_bytes == 2 * BLOCK_BYTES


def test_mark_is_met_until_it_is_cleared(file: BlockFile) -> None:
    """A read that touches a marked block says which; a cleared mark leaves the block there."""
    file.write(0, bytes(4 * BLOCK_BYTES))
    file.set_present(0, 4, marked_block=2)

    assert file.read(0, 2 * BLOCK_BYTES) == (bytes(2 * BLOCK_BYTES), None)
    met = file.read(0, 3 * BLOCK_BYTES)
    assert met is not None
    assert met.marked_block == 2
    file.clear_mark(2)
    file.clear_mark(3)

    assert file.read(0, 4 * BLOCK_BYTES) == (bytes(4 * BLOCK_BYTES), None)


def test_mark_outside_of_what_is_set_is_none(file: BlockFile) -> None:
    """Only a block that comes can get the mark."""
    file.write(0, bytes(BLOCK_BYTES))

    file.set_present(0, 1, marked_block=1)

    assert file.missing_runs(0, 3) == [(1, 3)]
    assert file.read(0, 1) == (b"\0", None)


def test_clearing_the_mark_of_an_absent_block_adds_nothing(file: BlockFile) -> None:
    """A late word about a block that was forgotten since does not bring it back."""
    file.clear_mark(0)

    assert not file.holds(0, 1)


def test_missing_runs_are_what_is_not_there(file: BlockFile) -> None:
    """Runs are maximal, in order, and clipped to what was asked about."""
    file.set_present(2, 4)
    file.set_present(7, 8)

    assert file.missing_runs(0, 10) == [(0, 2), (4, 7), (8, 10)]
    assert file.missing_runs(3, 7) == [(4, 7)]
    assert file.missing_runs(2, 4) == []
    assert file.missing_runs(5, 5) == []


def test_forgotten_blocks_are_not_there(file: BlockFile) -> None:
    """Only the blocks of the range are forgotten."""
    file.write(0, bytes(4 * BLOCK_BYTES))
    file.set_present(0, 4)

    file.forget(1, 3)

    assert file.missing_runs(0, 4) == [(1, 3)]
    assert file.read(0, BLOCK_BYTES) is not None
    assert file.read(BLOCK_BYTES, 1) is None


def test_no_block_lies_behind_the_map(file: BlockFile) -> None:
    """Behind the last block that the map has room for nothing is there, whatever the data says."""
    file.write(0, b"\1" * 4 * BLOCK_BYTES)
    file.set_present(0, 1)

    assert not file.holds(BLOCKS_MAX * BLOCK_BYTES, 1)
    assert file.read(BLOCKS_MAX * BLOCK_BYTES, 1) is None
    assert file.read((BLOCKS_MAX - 1) * BLOCK_BYTES, 2 * BLOCK_BYTES) is None
    assert file.missing_runs(BLOCKS_MAX - 2, BLOCKS_MAX + 2) == [(BLOCKS_MAX - 2, BLOCKS_MAX + 2)]
    assert file.missing_runs(0, 1 << 40) == [(1, 1 << 40)]
    file.forget(BLOCKS_MAX, BLOCKS_MAX + 10)
    file.forget(1 << 40, (1 << 40) + 1)
    file.clear_mark(BLOCKS_MAX + 3)
    found = file.read(0, BLOCK_BYTES)
    assert found is not None
    assert found.data == b"\1" * BLOCK_BYTES
    assert os.stat(file.path).st_size == DATA_OFFSET + 4 * BLOCK_BYTES


def test_length_beyond_all_that_is_cached_is_not_believed(path: Path, file: BlockFile) -> None:
    """A header with a senseless length says nothing about it."""
    file.note_total(5)
    with path.open("r+b") as raw:
        raw.seek(8)
        raw.write((VALUE_MAX_BYTES + 1).to_bytes(8, "little"))

    assert BlockFile(path, is_writable=False).total_bytes == 0


@pytest.mark.parametrize("cut", [0, 8, 64, 70, DATA_OFFSET, DATA_OFFSET + 10])
def test_file_cut_short_is_a_miss(path: Path, file: BlockFile, cut: int) -> None:
    """Whatever is cut off while the file is open is no longer there; nothing short is returned."""
    file.note_total(3 * BLOCK_BYTES)
    file.write(0, b"x" * 3 * BLOCK_BYTES)
    file.set_present(0, 3)

    os.truncate(path, cut)

    assert file.read(0, 11) is None
    assert file.read(2 * BLOCK_BYTES, 1) is None


def test_emptied_file_is_filled_anew(path: Path, file: BlockFile) -> None:
    """Whoever fills a file that somebody emptied leaves one that others can open."""
    file.note_total(BLOCK_BYTES)
    os.truncate(path, 0)

    file.note_total(BLOCK_BYTES)
    file.write(0, b"y" * BLOCK_BYTES)
    file.set_present(0, 1)

    assert BlockFile(path, is_writable=False).read(0, BLOCK_BYTES) == (b"y" * BLOCK_BYTES, None)


@pytest.mark.parametrize("content", [b"", b"x", b"wsfsblk1", b"wsfsblk2" + bytes(100)])
def test_foreign_file_is_no_value(path: Path, content: bytes) -> None:
    """A file without our header is as good as none."""
    path.write_bytes(content)

    with pytest.raises(FileNotFoundError):
        BlockFile(path, is_writable=False)
    assert path.read_bytes() == content


@pytest.mark.parametrize("kind", ["directory", "link", "fifo"])
def test_what_is_no_regular_file_is_no_value(path: Path, kind: str) -> None:
    """Nothing is followed, waited for or read that is not a plain file."""
    match kind:
        case "directory":
            path.mkdir()
        case "link":
            target = path.with_name("target")
            BlockFile(target, is_writable=True, is_made=True)
            path.symlink_to(target)
        case _:
            os.mkfifo(path)

    with pytest.raises(OSError):
        BlockFile(path, is_writable=False)


def test_descriptor_goes_with_the_last_user(path: Path) -> None:
    """Nothing stays open behind files that nobody has, nor behind those that were refused."""
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(5):
        BlockFile(path, is_writable=True, is_made=True)
    path.write_bytes(b"foreign")
    for _ in range(5):
        with pytest.raises(FileNotFoundError):
            BlockFile(path, is_writable=False)

    assert len(os.listdir("/proc/self/fd")) == before
