"""Who wrote what, from the rows of layers to the note of a commit and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from workspacefs.errors import IntegrityError
from workspacefs.ids import FileId
from workspacefs.layers.flatten import flatten
from workspacefs.layers.layer import Layer
from workspacefs.layers.rows import InodeRow, encode_inode, encode_name, inode_key, name_key
from workspacefs.layers.writers import (
    PROCESSES_OF_FILE_MAX,
    FileWriters,
    Process,
    ProcessId,
    SeenProcess,
    decode_file,
    encode_file,
    encode_process,
    iter_files,
    iter_processes,
    process_id_of,
    process_key,
    writer_key,
)
from workspacefs.objects.encoding import encode
from workspacefs.workspace.writers import NOBODY, Writers, decode_writers, writers_note

A, B, C = (Process(number, 10**18, b"/bin/x", (b"x", b"%d" % number)) for number in (1, 2, 3))
ROW = InodeRow(0o100644, 0, 0, 0, 1, 1, 1, 1, None, ())


def put(layer: Layer, files: dict[int, tuple[bool, list[Process]]], first_ns: int) -> None:
    """Note writers of files in a layer, with rows of the files."""
    for file_id, (is_made, processes) in files.items():
        ids = tuple(map(process_id_of, processes))
        layer.rows.commit(
            [
                (name_key(1, b"%d" % file_id), encode_name(file_id)),
                (inode_key(file_id), encode_inode(ROW)),
                (writer_key(file_id), encode_file(FileWriters(is_made, ids))),
                *(
                    (process_key(process_id_of(one)), encode_process(SeenProcess(one, first_ns)))
                    for one in processes
                ),
            ]
        )


def layers(tmp_path: Path) -> list[Layer]:
    """Return two layers, the newest first."""
    old, new = (Layer(tmp_path / str(number), number=number) for number in (1, 2))
    put(old, {10: (True, [A]), 11: (False, [A, B])}, 100)
    put(new, {10: (False, [B]), 12: (True, [C])}, 200)
    return [new, old]


EXPECTED = {
    10: FileWriters(True, (process_id_of(A), process_id_of(B))),
    11: FileWriters(False, (process_id_of(A), process_id_of(B))),
    12: FileWriters(True, (process_id_of(C),)),
}


def test_layers_say_together_what_each_says(tmp_path: Path) -> None:
    """Writers of all layers count, the eldest first; of a process its first change."""
    snapshots = [layer.snapshot() for layer in layers(tmp_path)]

    assert dict(iter_files(snapshots)) == EXPECTED
    firsts = {seen.process: seen.first_ns for _, seen in iter_processes(snapshots)}
    assert firsts == {A: 100, B: 100, C: 200}


def test_flattened_layer_says_the_same(tmp_path: Path) -> None:
    """Of who wrote what, and of the files."""
    both = layers(tmp_path)
    target = Layer(tmp_path / "3", number=3)
    flatten(both, target, {layer.number: layer for layer in both})

    snapshot = target.snapshot()

    assert dict(iter_files([snapshot])) == EXPECTED
    assert dict(iter_processes([snapshot])) == dict(
        iter_processes([layer.snapshot() for layer in both])
    )
    assert snapshot.get(inode_key(12)) == encode_inode(ROW)


def test_file_has_no_end_of_writers() -> None:
    """What is past some is not told of."""
    many = FileWriters(False, ())
    for number in range(PROCESSES_OF_FILE_MAX + 5):
        many = many.joined(FileWriters(False, (ProcessId(number.to_bytes(16, "big")),)))

    assert len(many.processes) == PROCESSES_OF_FILE_MAX
    assert decode_file(encode_file(many)) == many


def sample() -> Writers:
    """Return writers of three files, one of them started by another."""
    parent = SeenProcess(A, 0)
    child = B._replace(parent=process_id_of(A), tool_call="call", run="r", agent="a")
    made = FileWriters(True, (process_id_of(child),))
    return Writers(
        (parent, SeenProcess(child, 5), SeenProcess(C, 7)),
        {
            FileId(7): made,
            FileId(1 << 40): made,
            FileId(8): FileWriters(False, (process_id_of(C), process_id_of(child))),
        },
        left_out=3,
    )


def test_note_says_all() -> None:
    """What goes in comes out; and when the first change was."""
    writers = sample()

    found = decode_writers(writers_note(writers))

    assert found == writers
    assert found.first_ns() == 5


def test_nobody_makes_no_note() -> None:
    """And no note is nobody."""
    assert writers_note(NOBODY) == b""
    assert decode_writers(b"") == NOBODY


def test_note_of_many_files_of_one_process_is_small() -> None:
    """Two bytes for each of files that were made one after the other."""
    by_c = FileWriters(True, (process_id_of(C),))
    many = Writers((SeenProcess(C, 1),), {FileId((9 << 24) + at): by_c for at in range(100_000)})

    assert len(writers_note(many)) < 2 * 100_000 + 200


def test_rows_of_a_note_say_what_layers_said(tmp_path: Path) -> None:
    """So that work which is resumed elsewhere is by whom it was."""
    writers, layer = sample(), Layer(tmp_path / "1", number=1)

    layer.rows.commit(list(writers.rows()))

    snapshot = layer.snapshot()
    assert dict(iter_files([snapshot])) == writers.files
    assert dict(iter_processes([snapshot])) == writers.by_id()


def test_too_long_command_lines_are_cut() -> None:
    """The details go, and who it was stays."""
    long = [
        SeenProcess(Process(number, 1, b"/x", (b"x", *[b"y" * 1000] * 4)), 1)
        for number in range(3000)
    ]
    files = {
        FileId(1 + at): FileWriters(True, (process_id_of(one.process),))
        for at, one in enumerate(long)
    }

    note = writers_note(Writers(tuple(long), files))

    assert len(note) < 500_000
    found = decode_writers(note)
    (writer,) = found.of_file(FileId(5))
    assert found.by_id()[writer].process.pid == 4


GOOD_PROCESS = [1, 2, b"/x", [b"x"], "", "", "", None, 3]


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [2, [], [], [], 0],
        [1, [], [], [], 0, 0],
        [1, None, [], [], 0],
        [1, [], [], [], None],
        [1, [[1]], [], [], 0],
        [1, [[*GOOD_PROCESS[:7], 0, 3]], [], [], 0],
        [1, [[*GOOD_PROCESS[:7], 1, 3], [*GOOD_PROCESS[:7], 0, 3]], [], [], 0],
        [1, [[*GOOD_PROCESS[:7], 5, 3]], [], [], 0],
        [1, [["1", *GOOD_PROCESS[1:]]], [], [], 0],
        [1, [[1, 2, "/x", *GOOD_PROCESS[3:]]], [], [], 0],
        [1, [[*GOOD_PROCESS[:3], [1], *GOOD_PROCESS[4:]]], [], [], 0],
        [1, [GOOD_PROCESS], [[]], [], 0],
        [1, [GOOD_PROCESS], [[2, 0]], [], 0],
        [1, [GOOD_PROCESS], [[0, 1]], [], 0],
        [1, [GOOD_PROCESS], [[0, -1]], [], 0],
        [1, [GOOD_PROCESS], [[0, 0]], [1], 0],
        [1, [GOOD_PROCESS], [[0, 0]], [1, 1], 0],
        [1, [GOOD_PROCESS], [[0, 0]], [1, -1], 0],
        [1, [GOOD_PROCESS], [[0, 0]], [0, 0], 0],
        [1, [GOOD_PROCESS], [[0, 0]], ["a", 0], 0],
        [1, [GOOD_PROCESS], [[0, 0]], [1 << 63, 0], 0],
    ],
)
def test_malformed_note_is_damage(fields: list[object]) -> None:
    """Whatever a store serves: an error that says so, and nothing else."""
    with pytest.raises(IntegrityError):
        decode_writers(encode(fields))


def test_row_of_another_length_is_damage() -> None:
    """A torn one is not half believed."""
    with pytest.raises(IntegrityError):
        decode_file(b"\0" + b"x" * 15)
