"""Damaged stores: every wrong byte is found when it is read; never wrong data, never ENOENT."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from tests.harness import Machine
from workspacefs.ids import FileId
from workspacefs.objects.commits import Commit
from workspacefs.objects.entry import Entry, Subtree, Totals
from workspacefs.objects.nodes import encode_leaf
from workspacefs.refs import RefKind
from workspacefs.workspace.publish import RefMove, publish_commit
from workspacefs.workspace.workspace import Workspace


def make_source(root: Path) -> dict[str, bytes]:
    """Write a small tree with files of all lengths; return what is in it."""
    rng = random.Random(5)
    files: dict[str, bytes] = {}
    for number in range(60):
        name = f"d{number % 5}/f{number}"
        files[name] = rng.randbytes(rng.choice([50, 300, 5000, 40_000]))
    files["large"] = rng.randbytes(900_000)
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return files


def read_all(root: Path, files: dict[str, bytes]) -> tuple[int, int]:
    """Return how many files read right and how many said EIO; anything else fails."""
    right = damaged = 0
    for name, data in files.items():
        try:
            assert (root / name).read_bytes() == data, f"{name} has wrong bytes"
            right += 1
        except OSError as exc:
            assert exc.errno == errno.EIO, f"{name}: {exc}"
            damaged += 1
    return right, damaged


@pytest.fixture
def imported(machine: Machine) -> tuple[Machine, dict[str, bytes], Path]:
    """A workspace with one imported commit, and its one pack."""
    source = machine.directory / "source"
    source.mkdir()
    files = make_source(source)
    machine.run("import", machine.store, source, "-m", "first")
    (pack,) = (machine.store / "packs").iterdir()
    return machine, files, pack


def test_flipped_bytes_are_found_wherever_they_are(
    imported: tuple[Machine, dict[str, bytes], Path],
) -> None:
    """Flip one byte at 24 places of the pack, one after the other; read everything each time."""
    machine, files, pack = imported
    good = pack.read_bytes()
    rng = random.Random(11)
    found = 0
    for number in range(24):
        at = rng.randrange(len(good))
        pack.write_bytes(good[:at] + bytes([good[at] ^ 1 << rng.randrange(8)]) + good[at + 1 :])
        mount = machine.mount(f"m{number}", session=None, read_only=True)

        _, damaged = read_all(mount.path, files)

        found += damaged
        mount.umount()
    assert found, "no flip hit anything that was read"
    assert pack.name.removesuffix(".pack")[:12] in machine.log_tail()


@pytest.mark.parametrize("what", ["cut", "gone", "empty"])
def test_a_cut_or_missing_pack_is_eio(
    imported: tuple[Machine, dict[str, bytes], Path], what: str
) -> None:
    """A pack that lost its tail, or all: what it had is EIO, and the mount lives."""
    machine, files, pack = imported
    mount = machine.mount()
    if what == "cut":
        os.truncate(pack, pack.stat().st_size // 2)
    elif what == "gone":
        pack.unlink()
    else:
        os.truncate(pack, 0)

    _, damaged = read_all(mount.path, files)

    assert damaged
    (mount.path / "new").write_text("the mount lives")
    assert (mount.path / "new").read_text() == "the mount lives"


def test_damage_heals_when_the_store_does(
    imported: tuple[Machine, dict[str, bytes], Path],
) -> None:
    """Nothing wrong is kept: once the pack is right again, so is every read."""
    machine, files, pack = imported
    good = pack.read_bytes()
    mount = machine.mount()
    pack.write_bytes(bytes(byte ^ 0xFF for byte in good[: len(good) // 2]) + good[len(good) // 2 :])
    _, damaged = read_all(mount.path, files)
    assert damaged

    pack.write_bytes(good)

    assert read_all(mount.path, files) == (len(files), 0)


@pytest.mark.parametrize("key", ["workspace.json", "refs/branches/main"])
def test_a_flipped_byte_in_a_ref_or_the_manifest_refuses_the_mount(
    imported: tuple[Machine, dict[str, bytes], Path], key: str
) -> None:
    """Exit code 6, and the message names the value."""
    machine, _, _ = imported
    path = machine.store / key
    value = bytearray(path.read_bytes())
    value[len(value) // 2] ^= 1
    path.write_bytes(value)
    (machine.directory / "m").mkdir()

    document = machine.json("mount", machine.store, machine.directory / "m", code=6)

    error = document["error"]
    assert isinstance(error, dict)
    assert key in str(error["message"])


@pytest.mark.parametrize(
    "names",
    [[b".."], [b"."], [b"a/b"], [b""], [b"nul\0"], [b"n" * 256], [b"b", b"a"], [b"a", b"a"]],
)
def test_hostile_names_in_a_stored_tree_are_refused(machine: Machine, names: list[bytes]) -> None:
    """A directory that lists such names is EIO; what lies beside it is well."""
    workspace = Workspace.open(str(machine.store))
    with workspace.new_writer() as writer:
        evil = [_file(name, number + 10) for number, name in enumerate(names)]
        body, refs = encode_leaf(evil)
        node = writer.add_node(body, refs)
        hostile = _directory(b"hostile", 3, Subtree(node, Totals(files=len(evil))))
        body, refs = encode_leaf([hostile, _file(b"well", 4)])
        root = writer.add_node(body, refs)
        tree = _directory(b"", 1, Subtree(root, Totals(files=1 + len(evil), dirs=1)))
        commit = Commit(root=tree, parents=(), message="evil", time_ns=0)
        move = RefMove(
            kind=RefKind.BRANCH, name="main", expected=None, previous=None, action="test",
            moved_by="test",
        )  # fmt: skip
        publish_commit(workspace, writer, commit, move)
    mount = machine.mount()

    with pytest.raises(OSError) as caught:
        os.listdir(mount.path / "hostile")

    assert caught.value.errno == errno.EIO
    assert (mount.path / "well").read_bytes() == b""
    refused = machine.start("export", f"{machine.store}@main", machine.directory / "out")
    assert refused.returncode == 6


def _file(name: bytes, file_id: int) -> Entry:
    return Entry(name, 0o100644, 0, 0, 0, 0, 0, FileId(file_id), 1)


def _directory(name: bytes, file_id: int, subtree: Subtree) -> Entry:
    return Entry(name, 0o40755, 0, 0, 0, 0, 0, FileId(file_id), 2, subtree)
