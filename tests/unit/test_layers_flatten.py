"""One layer made of several shows what those showed: against the layers themselves."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workspacefs.ids import FileId
from workspacefs.layers.bodies import BodyContent, content_from_desc, content_to_desc, read_body
from workspacefs.layers.flatten import flatten, layers_to_merge
from workspacefs.layers.layer import Layer
from workspacefs.layers.rows import (
    BLOCK_BYTES,
    InodeRow,
    decode_inode,
    encode_inode,
    encode_name,
    gone_row,
    inode_key,
    name_key,
)
from workspacefs.layers.writing import resize_body, write_body
from workspacefs.objects.refs import ChunkRef, Ref

LARGE = 5 * BLOCK_BYTES
OFFSETS = st.sampled_from([0, 10, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 7, LARGE])
LENGTHS = st.sampled_from([1, 100, BLOCK_BYTES, BLOCK_BYTES + 1, LARGE])
FILES = st.integers(1, 3).map(FileId)
WRITES = st.tuples(st.just("write"), FILES, OFFSETS, LENGTHS)
RESIZES = st.tuples(st.just("resize"), FILES, OFFSETS, st.just(0))
FREEZES = st.just(("freeze", FileId(1), 0, 0))


class NoStore:
    """Nothing here lies in a store."""

    def load_chunk(self, ref: ChunkRef) -> bytes:
        raise AssertionError(ref)

    def load_chunk_list(self, ref: Ref) -> tuple[ChunkRef, ...]:
        raise AssertionError(ref)

    def note_read(self, refs: Sequence[ChunkRef], index: int) -> None:
        raise AssertionError(refs)


class Stack:
    """Layers of a few files, the newest first, and what is in the files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.layers: list[Layer] = []
        self.model: dict[FileId, bytearray] = {}
        self.content: dict[FileId, BodyContent] = {}
        self.freeze()

    def freeze(self) -> None:
        number = len(self.layers) + 100
        self.layers.insert(0, Layer(self.directory / str(number), number=number))

    @property
    def by_number(self) -> dict[int, Layer]:
        return {layer.number: layer for layer in self.layers}

    def write(self, file_id: FileId, offset: int, data: bytes) -> None:
        live, old = self.layers[0], self.model.setdefault(file_id, bytearray())
        change = write_body(
            live, file_id, self.content.get(file_id), len(old), data, offset, NoStore()
        )
        old.extend(bytes(max(0, offset - len(old))))
        old[offset : offset + len(data)] = data
        self._put(file_id, change.content, change.rows, change.groups)

    def resize(self, file_id: FileId, size: int) -> None:
        live, old = self.layers[0], self.model.setdefault(file_id, bytearray())
        change = resize_body(live, file_id, self.content.get(file_id), len(old), size, NoStore())
        del old[size:]
        old.extend(bytes(size - len(old)))
        self._put(file_id, change.content, change.rows, change.groups)
        if change.cut_to is not None:
            live.own.truncate(file_id, change.cut_to)

    def _put(
        self,
        file_id: FileId,
        content: BodyContent,
        rows: list[tuple[bytes, bytes]],
        groups: dict[int, bytearray],
    ) -> None:
        size = len(self.model[file_id])
        row = InodeRow(0o100644, 0, 0, size, 0, 0, 0, 1, content_to_desc(content, file_id), ())
        name = name_key(1, b"f%d" % file_id)
        self.layers[0].rows.commit(
            [*rows, (inode_key(file_id), encode_inode(row)), (name, encode_name(file_id))]
        )
        self.content[file_id] = content
        if groups and hasattr(content, "copied"):
            content.copied.update(groups)

    def close(self) -> None:
        for layer in self.layers:
            layer.close()


def shown(layers: Sequence[Layer]) -> dict[bytes, bytes]:
    """Return what rows say of every file, by name."""
    numbered = {layer.number: layer for layer in layers}
    found: dict[bytes, bytes] = {}
    names: dict[bytes, FileId | None] = {}
    for layer in reversed(layers):
        names.update(layer.rows.names_after(1, b"", 1000))
    for name, file_id in names.items():
        if file_id is None:
            continue
        row = next(
            decode_inode(value)
            for layer in layers
            if (value := layer.rows.get(inode_key(file_id))) is not None
        )
        content = content_from_desc(row.content, file_id, numbered)
        found[name] = read_body(content, 0, row.size_bytes, NoStore())
    return found


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(WRITES, RESIZES, FREEZES), max_size=14), st.integers(0, 3))
def test_flattened_layers_show_the_same(
    steps: list[tuple[str, FileId, int, int]], left_out: int
) -> None:
    """Runs, own files, own files over own files, cut and grown, with some layers beneath left."""
    with tempfile.TemporaryDirectory() as directory:
        stack = Stack(Path(directory))
        for number, (step, file_id, offset, length) in enumerate(steps):
            if step == "write":
                stack.write(file_id, offset, bytes([number + 1]) * length)
            elif step == "resize":
                stack.resize(file_id, offset)
            else:
                stack.freeze()
        merged = stack.layers[: max(1, len(stack.layers) - left_out)]
        beneath = stack.layers[len(merged) :]
        before = shown(stack.layers)
        target = Layer(Path(directory) / "target", number=7)

        flatten(merged, target, stack.by_number)

        wanted = {b"f%d" % file_id: bytes(data) for file_id, data in stack.model.items()}
        assert before == wanted
        assert shown([target, *beneath]) == wanted
        target.close()
        stack.close()


def test_names_that_are_hidden_stay_hidden(tmp_path: Path) -> None:
    """A whiteout may hide a name of the base, so it comes along."""
    old = Layer(tmp_path / "old", number=1)
    new = Layer(tmp_path / "new", number=2)
    old.rows.commit([(name_key(1, b"a"), encode_name(5)), (name_key(1, b"b"), encode_name(6))])
    new.rows.commit([(name_key(1, b"a"), b"")])
    target = Layer(tmp_path / "target", number=3)

    flatten([new, old], target, {1: old, 2: new})

    assert target.rows.names_after(1, b"", 10) == [(b"a", None), (b"b", FileId(6))]


@pytest.mark.parametrize(
    ("sizes", "count"),
    [([], 0), ([5], 0), ([5, 5], 2), ([1, 1, 1, 1], 4), ([1, 1, 100], 2), ([1, 100, 1], 0)],
)
def test_few_layers_stay_and_large_ones_are_copied_seldom(sizes: list[int], count: int) -> None:
    """What is much larger than all above it stays where it is."""
    assert layers_to_merge(sizes) == count


def test_depth_stays_logarithmic() -> None:
    """A thousand small layers, merged whenever there are more than eight, and what it costs."""
    sizes: list[int] = []
    copied = 0
    for _ in range(1000):
        sizes.insert(0, 1)
        if len(sizes) > 8:
            count = layers_to_merge(sizes)
            copied += sum(sizes[:count])
            sizes[:count] = [sum(sizes[:count])]

    assert len(sizes) <= 16
    assert copied <= 1000 * 10


def test_own_file_of_another_id_is_found_and_taken_along(tmp_path: Path) -> None:
    """A row may lead to the own file that another file left in a layer beneath."""
    stack = Stack(tmp_path)
    data = bytes(range(256)) * 2000
    stack.write(FileId(5), 0, data)
    stack.freeze()
    stack.write(FileId(5), 70_000, b"over")
    stack.freeze()
    other = FileId(9)
    stack.model[other] = stack.model[FileId(5)]
    stack._put(other, stack.content[FileId(5)], [], {})  # as a restore does
    stack.layers[0].rows.commit([(name_key(1, b"f5"), b""), (inode_key(5), gone_row())])
    before = shown(stack.layers)
    assert before == {b"f9": data[:70_000] + b"over" + data[70_004:]}
    target = Layer(tmp_path / "target", number=7)

    flatten(stack.layers[:2], target, stack.by_number)

    assert shown([target, stack.layers[2]]) == before
    for layer in (target, *stack.layers):
        layer.close()
