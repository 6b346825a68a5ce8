"""Committing a large file that was changed in place: the same chunks as of a file written anew."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.vfs_session import Session
from workspacefs.ids import chunk_id_of
from workspacefs.objects.entry import Entry
from workspacefs.objects.refs import ChunkRef, Ref
from workspacefs.trees.walk import find_entry
from workspacefs.workspace.content import chunks_of, write_content
from workspacefs_daemon.vfs.inode import Inode

_SQLITE_HEAD = b"SQLite format 3\0"


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """A session of an empty workspace."""
    made = Session(tmp_path)
    yield made
    made.close()


class _Anew:
    """Takes the chunks of a content that nobody knows anything of."""

    def add_chunk(self, plain: bytes | memoryview) -> ChunkRef:
        return ChunkRef(chunk_id_of(plain), len(plain))

    def add_chunk_list(self, body: bytes, children: object) -> Ref:
        return Ref(body)


def _entry(session: Session) -> Entry:
    entry = find_entry(session.root_entry.subtree, b"f", session.workspace.store)
    assert entry is not None
    return entry


def _chunk_ids_anew(session: Session, data: bytes) -> list[bytes]:
    refs: list[ChunkRef] = []
    sink = _Anew()

    class Noting(_Anew):
        def add_chunk(self, plain: bytes | memoryview) -> ChunkRef:
            refs.append(sink.add_chunk(plain))
            return refs[-1]

    write_content(
        lambda at, n: data[at : at + n], len(data), Noting(), session.workspace.chunk_params
    )
    return [ref.id for ref in refs]


def _write(session: Session, inode: Inode, offset: int, data: bytes) -> None:
    session.run(lambda: session.fs.files.write(inode, offset, data))


def _resize(session: Session, inode: Inode, size_bytes: int) -> None:
    session.run(lambda: session.fs.files.resize(inode, size_bytes))


def _check(session: Session, data: bytes) -> None:
    session.commit()
    ids = [ref.id for ref in chunks_of(_entry(session), session.workspace.store)]
    assert ids == _chunk_ids_anew(session, data)
    assert session.read(session.at("f")) == data


@pytest.mark.parametrize("seed", range(12))
def test_chunks_are_those_of_a_file_written_anew(session: Session, seed: int) -> None:
    """Whatever is overwritten, cut, or appended, in one layer or two: content decides alone."""
    rng = random.Random(seed)
    size = rng.choice([300_000, 2_000_000, 7_900_000, 8_400_000])
    data = bytearray(rng.randbytes(size))
    if seed % 3 == 0:
        data[: len(_SQLITE_HEAD)] = _SQLITE_HEAD
    inode = session.make("f", bytes(data))
    session.commit()
    inode = session.at("f")

    for step in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data))
        piece = rng.randbytes(rng.choice([1, 10, 70_000]))
        match rng.randrange(5):
            case 0 if step:
                data = data[: max(at, 200_000)]
                _resize(session, inode, len(data))
            case 1:
                data += piece
                end = len(data) - len(piece)
                _write(session, inode, end, piece)
            case 2 if seed % 2:
                piece = rng.randbytes(len(_SQLITE_HEAD)) if rng.random() < 0.5 else _SQLITE_HEAD
                data[: len(piece)] = piece
                _write(session, inode, 0, piece)
            case 3 if seed % 4 == 0:
                session.freeze()
                inode = session.at("f")
            case _:
                piece = piece[: len(data) - at]
                data[at : at + len(piece)] = piece
                _write(session, inode, at, piece)

    _check(session, bytes(data))


def test_last_chunk_is_cut_anew_when_the_file_grows(session: Session) -> None:
    """Where the last chunk ended was decided by the end of the file, not by its bytes."""
    data = random.Random(2).randbytes(48 * 65536)
    session.make("f", data)
    session.commit()

    more = random.Random(3).randbytes(300_000)
    _write(session, session.at("f"), len(data), more)

    _check(session, data + more)


@pytest.mark.parametrize("short", [1, 100, 30_000, 60_000])
def test_chunk_that_was_cut_short_is_cut_anew(session: Session, short: int) -> None:
    """Bytes behind the point where a file was cut are zeros now, also within one block."""
    data = random.Random(4).randbytes(3_000_000)
    session.make("f", data)
    session.commit()
    ends, at = [], 0
    for ref in chunks_of(_entry(session), session.workspace.store):
        at += ref.size_bytes
        ends.append(at)

    # Within the block in which a chunk ends, so that no other block tells of the change.
    end = next(one for one in ends if one % 65536 > short or short == 1)
    cut = end - min(short, end % 65536 - 1)
    inode = session.at("f")
    _resize(session, inode, cut)
    _resize(session, inode, len(data))

    _check(session, data[:cut] + bytes(len(data) - cut))


@pytest.mark.parametrize("was_database", [False, True])
def test_file_of_another_kind_is_cut_anew(session: Session, was_database: bool) -> None:
    """A file that becomes a database, or is none any more, is cut as such from begin to end."""
    data = bytearray(random.Random(5).randbytes(3_000_000))
    if was_database:
        data[: len(_SQLITE_HEAD)] = _SQLITE_HEAD
    session.make("f", bytes(data))
    session.commit()

    head = bytes(len(_SQLITE_HEAD)) if was_database else _SQLITE_HEAD
    data[: len(head)] = head
    _write(session, session.at("f"), 0, head)

    _check(session, bytes(data))


def test_one_changed_byte_reads_a_few_chunks_only(tmp_path: Path) -> None:
    """The rest of a large file is neither read nor stored again."""
    session = Session(tmp_path, is_local=False)
    data = bytearray(random.Random(1).randbytes(24_000_000))
    session.make("f", bytes(data))
    session.commit()
    inode = session.at("f")
    session.run(lambda: session.fs.files.write(inode, 12_000_000, b"!"))
    loaded: list[int] = []
    store = session.workspace.store
    load = store.load_chunk

    def counting(ref: ChunkRef) -> bytes:
        loaded.append(ref.size_bytes)
        return load(ref)

    store.load_chunk = counting  # type: ignore[method-assign]
    session.commit()

    assert 0 < sum(loaded) < 6_000_000, "the head, and what follows the changed byte"
    session.close()
