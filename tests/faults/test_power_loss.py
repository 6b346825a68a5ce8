"""Power loss on a mount: what fsync returned for is there, and what is there makes sense."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.power import cut_power, layer_directories, session_directory, sync
from tests.harness import Machine, Mount, tree_of

BIG = 700_000


def write_all(root: Path, names: list[str], tag: bytes) -> None:
    """Write files of all kinds of bodies: inline, runs, own files."""
    sizes = (10, 5000, 200_000, BIG)
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(tag * (sizes[number % len(sizes)] // len(tag)))


def test_everything_up_to_the_last_fsync_is_there(mount: Mount) -> None:
    """Files, names, links and attributes that were synced survive; nothing is half there."""
    rng = random.Random(5)
    names = [f"d{number % 5}/f{number}" for number in range(40)]
    write_all(mount.path, names, b"first")
    os.link(mount.path / "d0/f0", mount.path / "d1/link")
    os.rename(mount.path / "d2", mount.path / "moved")
    os.setxattr(mount.path / "d3", "user.k", b"v")
    os.unlink(mount.path / "d4/f4")
    sync(mount.path)
    synced = tree_of(mount.path)
    for number in range(30):
        (mount.path / f"later{number}").write_bytes(rng.randbytes(rng.choice((10, BIG))))
    os.rename(mount.path / "moved", mount.path / "later-moved")
    os.unlink(mount.path / "d0/f5")

    cut_power(mount)
    mount = mount.again()

    found = tree_of(mount.path)
    # Either of the states: a sync goes on every few seconds without being asked.
    if "moved" in found:
        assert {path: found.get(path) for path in synced} == synced
    assert "d1/link" in found
    assert mount.status()
    mount.commit("after")
    assert mount.status() == {}
    assert tree_of(mount.path) == found


def test_changes_made_during_a_commit_survive_power_loss_right_after_it(mount: Mount) -> None:
    """When a commit has returned, files that were changed while it ran are whole, and so is what
    it committed: nothing stands on layers that are gone.
    """
    root = mount.path
    names = [f"d{number % 7}/f{number}" for number in range(700)]
    write_all(root, names, b"first!")
    commit = subprocess.Popen(
        [sys.executable, "-m", "workspacefs.cli", "commit", str(root), "-m", "c"],
        env=mount.machine.environ(),
        stdout=subprocess.DEVNULL,
    )
    while len(layer_directories(mount)) < 2:
        assert commit.poll() is None, "the commit was over before anything could be changed"
    for number in range(0, 80, 5):
        path = root / names[number]
        with path.open("r+b") as file:
            file.seek(5)
            file.write(b"SECOND")
        os.rename(path, root / f"d{number % 7}" / f"renamed{number}")
    os.rename(root / "d6", root / "d6-renamed")
    sync(root)
    was_running = commit.poll() is None
    before = tree_of(root)
    assert commit.wait() == 0

    cut_power(mount)
    mount = mount.again()

    assert was_running, "the commit was over too soon to test anything"
    after = tree_of(mount.path)
    assert {p for p in before if before[p] != after.get(p)} == set()
    assert after == before
    mount.commit("again")
    assert tree_of(mount.path) == before


@pytest.mark.parametrize("is_sealed", [False, True])
def test_power_loss_with_several_layers(machine: Machine, is_sealed: bool) -> None:
    """A commit that failed leaves two layers, and rows of one speak of bodies in the other."""
    mount = machine.mount()
    root = mount.path
    write_all(root, [f"d/f{number}" for number in range(20)], b"eldest")
    if is_sealed:
        mount.commit("base")
        write_all(root, [f"d/f{number}" for number in range(0, 20, 3)], b"second")
    packs = machine.store / "packs"
    packs.mkdir(exist_ok=True)
    packs.rename(machine.store / "away")
    packs.write_text("no directory")
    for number in range(2):
        answer = machine.start("commit", root, "-m", "fails")
        assert answer.returncode != 0
        with (root / f"d/f{3 + number}").open("r+b") as file:
            file.write(b"younger")
        os.rename(root / f"d/f{7 + number}", root / f"moved{number}")
        os.unlink(root / f"d/f{11 + number}")
    packs.unlink()
    (machine.store / "away").rename(packs)
    assert len(layer_directories(mount)) == 3
    sync(root)
    before = tree_of(root)

    cut_power(mount)
    mount = mount.again()

    assert tree_of(mount.path) == before
    mount.commit("now", "--into", "main")
    assert tree_of(mount.path) == before
    assert len(layer_directories(mount)) == 1
    other = machine.mount("other", session="other")
    assert tree_of(other.path) == before


def test_synced_after_kill_means_bodies_too(mount: Mount) -> None:
    """After kill -9 the next fsync covers what the process that died had written."""
    write_all(mount.path, ["small", "medium", "large", "big"], b"unsynced")
    before = tree_of(mount.path)
    mount.kill()
    mount = mount.again()

    sync(mount.path)
    cut_power(mount)
    mount = mount.again()

    assert tree_of(mount.path) == before


@pytest.mark.parametrize("damage", ["flip", "cut", "layer"])
def test_damaged_session_is_refused_and_kept(machine: Machine, damage: str) -> None:
    """Nothing begins an empty session, or removes layers, where there was work."""
    mount = machine.mount()
    write_all(mount.path, ["a", "b", "c", "d"], b"work")
    directory = session_directory(mount)
    mount.umount()
    record = directory / "session.json"
    text = record.read_bytes()
    (layer,) = layer_directories(mount)
    if damage == "flip":
        record.write_bytes(text.replace(b'"layers": [[', b'"layers": [[1'))
    elif damage == "cut":
        record.write_bytes(text[: len(text) // 2])
    else:
        layer.rename(directory / "elsewhere")

    answer = machine.start("mount", machine.store, mount.path, "--session", "s")

    assert answer.returncode != 0
    assert b"damaged" in answer.stderr or b"missing" in answer.stderr
    if damage == "layer":
        (directory / "elsewhere").rename(layer)
    record.write_bytes(text)
    again = machine.mount()
    assert (again.path / "b").read_bytes() == b"work" * 1250
