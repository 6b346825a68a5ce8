"""File bodies against a plain bytearray: every kind of content, growth, cut, freeze and reopen."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workspacefs.ids import FileId, chunk_id_of
from workspacefs.layers.bodies import (
    BodyContent,
    OwnFile,
    Run,
    content_from_desc,
    content_to_desc,
    read_body,
)
from workspacefs.layers.layer import Layer
from workspacefs.layers.rows import (
    BLOCK_BYTES,
    InodeRow,
    decode_inode,
    encode_inode,
    inode_key,
)
from workspacefs.layers.writing import Change, resize_body, write_body
from workspacefs.objects.entry import Chunks, LongContent
from workspacefs.objects.refs import ChunkRef, Ref

FILE_ID = FileId(42)
OTHER_ID = FileId(43)


class Chunkery:
    """Chunks in memory."""

    def __init__(self) -> None:
        self.chunks: dict[bytes, bytes] = {}
        self.lists: dict[bytes, tuple[ChunkRef, ...]] = {}

    def add(self, data: bytes, *, piece: int, as_list: bool) -> BodyContent:
        refs = []
        for at in range(0, len(data), piece):
            part = data[at : at + piece]
            ref = ChunkRef(chunk_id_of(part), len(part))
            self.chunks[ref.id] = part
            refs.append(ref)
        if as_list:
            list_id = chunk_id_of(b"list %d " % piece + data)
            self.lists[list_id] = tuple(refs)
            return LongContent(Ref(list_id))
        return Chunks(tuple(refs))

    def load_chunk(self, ref: ChunkRef) -> bytes:
        return self.chunks[ref.id]

    def load_chunk_list(self, ref: Ref) -> tuple[ChunkRef, ...]:
        return self.lists[ref.id]

    def note_read(self, refs: Sequence[ChunkRef], index: int) -> None:
        """Take no note."""


class Subject:
    """One file in a stack of layers, kept the way the vfs keeps it, beside a model."""

    def __init__(self, directory: Path, content: BodyContent, model: bytes, source: Chunkery):
        self.directory = directory
        self.source = source
        self.layers = {0: Layer(directory / "0", number=0)}
        self.content = content
        self.model = bytearray(model)
        self.size = len(model)
        self.save([])

    @property
    def live(self) -> Layer:
        return self.layers[max(self.layers)]

    def save(self, rows: list[tuple[bytes, bytes]]) -> None:
        row = encode_inode(
            InodeRow(
                0o100644, 0, 0, self.size, 0, 0, 0, 1, content_to_desc(self.content, FILE_ID), ()
            )
        )
        self.live.rows.commit([(inode_key(FILE_ID), row), *rows])

    def apply(self, change: Change) -> None:
        self.content = change.content
        self.save(change.rows)
        if isinstance(change.content, OwnFile):
            change.content.copied.update(change.groups)
            if change.cut_to is not None:
                self.live.own.truncate(FILE_ID, change.cut_to)
        if change.dead is not None:
            self.live.bury([(change.dead.offset, change.dead.capacity_bytes)])

    def write(self, offset: int, data: bytes) -> None:
        change = write_body(self.live, FILE_ID, self.content, self.size, data, offset, self.source)
        if offset > len(self.model):
            self.model.extend(bytes(offset - len(self.model)))
        self.model[offset : offset + len(data)] = data
        self.size = len(self.model)
        self.apply(change)

    def resize(self, size: int) -> None:
        change = resize_body(self.live, FILE_ID, self.content, self.size, size, self.source)
        if size < len(self.model):
            del self.model[size:]
        else:
            self.model.extend(bytes(size - len(self.model)))
        self.size = size
        self.apply(change)

    def write_elsewhere(self, size: int) -> None:
        """Put another file's run behind ours, so that ours cannot grow in place."""
        self.live.segment.append(b"\xee" * size)

    def freeze(self) -> None:
        number = max(self.layers) + 1
        self.layers[number] = Layer(self.directory / str(number), number=number)

    def reopen(self) -> None:
        for layer in self.layers.values():
            layer.close()
        self.layers = {n: Layer(self.directory / str(n), number=n) for n in self.layers}
        for number in sorted(self.layers, reverse=True):
            value = self.layers[number].rows.get(inode_key(FILE_ID))
            if value is not None:
                row = decode_inode(value)
                self.size = row.size_bytes
                self.content = content_from_desc(row.content, FILE_ID, self.layers)
                return

    def check(self) -> None:
        assert self.size == len(self.model)
        assert read_body(self.content, 0, self.size, self.source) == bytes(self.model)
        third = self.size // 3
        assert read_body(self.content, third, third, self.source) == bytes(
            self.model[third : 2 * third]
        )

    def close(self) -> None:
        for layer in self.layers.values():
            layer.close()


sizes = st.one_of(
    st.integers(0, 600),
    st.sampled_from(
        [4096, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES, 262_144, 262_145]
    ),
    st.integers(0, 700_000),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), sizes, sizes),
        st.tuples(st.just("append"), sizes),
        st.tuples(st.just("resize"), sizes),
        st.tuples(st.just("elsewhere"), st.integers(1, 5000)),
        st.tuples(st.just("freeze")),
        st.tuples(st.just("reopen")),
    ),
    max_size=14,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    start=sizes,
    piece=st.sampled_from([50_000, 131_072, 10_000_000]),
    as_list=st.booleans(),
    script=steps,
)
def test_bodies_equal_a_bytearray(
    start: int, piece: int, as_list: bool, script: list[tuple[str, int, int]]
) -> None:
    """Whatever is done to a file, it reads as a bytearray to which the same was done."""
    source = Chunkery()
    model = _pattern(start, 1)
    content = source.add(model, piece=piece, as_list=as_list) if model else None
    with tempfile.TemporaryDirectory() as name:
        subject = Subject(Path(name), content, model, source)
        try:
            for number, (step, *values) in enumerate(script):
                match step:
                    case "write":
                        subject.write(values[0], _pattern(values[1] or 1, number))
                    case "append":
                        subject.write(subject.size, _pattern(values[0] or 1, number))
                    case "resize":
                        subject.resize(values[0])
                    case "elsewhere":
                        subject.write_elsewhere(values[0])
                    case "freeze":
                        subject.freeze()
                    case "reopen":
                        subject.reopen()
                subject.check()
            subject.reopen()
            subject.check()
        finally:
            subject.close()


def test_a_frozen_body_is_never_written_to(tmp_path: Path) -> None:
    """After a freeze, writes leave the frozen layer's bytes as they are, for small and large."""
    for name, size in (("small", 1000), ("large", 500_000)):
        subject = Subject(tmp_path / name, None, b"", Chunkery())
        subject.write(0, _pattern(size, 1))
        frozen = subject.content
        subject.freeze()

        subject.write(10, b"changed")
        subject.resize(size // 2)

        assert read_body(frozen, 0, size, subject.source) == _pattern(size, 1)
        subject.check()
        subject.close()


def test_small_change_of_a_large_base_file_copies_blocks_not_the_file(tmp_path: Path) -> None:
    """One byte changed in 50 MB of chunks costs one block on disk."""
    source = Chunkery()
    model = _pattern(50_000_000, 1)
    subject = Subject(tmp_path, source.add(model, piece=1 << 20, as_list=True), model, source)

    subject.write(25_000_000, b"!")

    assert isinstance(subject.content, OwnFile)
    assert subject.live.own.blocks(FILE_ID) * 512 <= 2 * BLOCK_BYTES
    subject.check()
    subject.close()


def test_growing_small_files_do_not_fill_the_segment(tmp_path: Path) -> None:
    """Two logs that grow by turns double their room when they move: the segment stays in bounds."""
    subject = Subject(tmp_path, None, b"", Chunkery())
    for _ in range(200):
        subject.write(subject.size, b"x" * 100)
        subject.write_elsewhere(100)

    assert isinstance(subject.content, Run)
    assert subject.live.segment.end < 10 * subject.size
    subject.check()
    subject.close()


def _pattern(size: int, seed: int) -> bytes:
    unit = bytes((seed * 37 + at * 11) % 251 for at in range(257))
    return (unit * (size // 257 + 1))[:size]
