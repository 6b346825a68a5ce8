"""Forks of mounted sessions: one instant of the parent, and nothing shared after it."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import threading
from pathlib import Path

import pytest

from tests.faults.power import cut_power, layer_directories, sync
from tests.harness import Machine, Mount, inodes_of, tree_of
from workspacefs.errors import ExitCode


@pytest.fixture
def parent(machine: Machine) -> Mount:
    """A session with a base commit and all kinds of changes on top."""
    mount = machine.mount("parent", session="parent")
    root = mount.path
    for name in ("d/kept", "d/changed", "d/removed", "d/renamed", "other/far"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(f"base of {name}\n" * 100)
    (root / "large").write_bytes(os.urandom(3_000_000))
    os.link(root / "d/kept", root / "second")
    mount.commit("base", "--into", "main")
    (root / "d/changed").write_text("changed\n")
    (root / "d/removed").unlink()
    (root / "d/renamed").rename(root / "d/moved")
    (root / "d").rename(root / "e")
    (root / "new").mkdir()
    (root / "new/file").write_text("new\n")
    (root / "link").symlink_to("new/file")
    with (root / "large").open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"middle")
    return mount


def stored_bytes(machine: Machine) -> int:
    """Return what the layers of all sessions take on disk."""
    return sum(
        path.stat().st_blocks * 512
        for path in (machine.state_dir / "layers").rglob("*")
        if path.is_file()
    )


def test_fork_shows_what_its_parent_shows(machine: Machine, parent: Mount) -> None:
    """Content, names, links, modes, times and inode numbers, and the same changes to commit."""
    fork = machine.fork(parent, "fork", session="fork")

    assert tree_of(fork.path) == tree_of(parent.path)
    assert inodes_of(fork.path) == inodes_of(parent.path)
    assert fork.status() == parent.status()
    assert fork.document["session"] == "fork"


def test_neither_sees_what_the_other_does_after_it(machine: Machine, parent: Mount) -> None:
    """Writes, deletions and renames on both sides, in files that both had and in new ones."""
    fork = machine.fork(parent, "fork")
    before = tree_of(parent.path)

    (fork.path / "new/file").write_text("of the fork\n")
    with (fork.path / "large").open("r+b") as file:
        file.write(b"FORK")
    shutil.rmtree(fork.path / "e")
    (fork.path / "only-here").write_text("f")
    after_fork = tree_of(fork.path)

    assert tree_of(parent.path) == before
    with (parent.path / "large").open("r+b") as file:
        file.seek(1_000_002)
        file.write(b"PARENT")
    (parent.path / "new/file").unlink()
    (parent.path / "only-there").write_text("p")
    assert tree_of(fork.path) == after_fork
    made_here = (fork.path / "only-here").stat().st_ino
    assert made_here != (parent.path / "only-there").stat().st_ino


def test_fork_has_what_open_files_and_maps_hold(machine: Machine, parent: Mount) -> None:
    """What was written is in the fork, though nobody closed or synced it; the writer notices
    nothing.
    """
    path = parent.path / "mapped"
    path.write_bytes(bytes(100_000))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[50_000:50_004] = b"MMAP"
        with (parent.path / "open").open("wb", buffering=0) as other:
            other.write(b"before")

            fork = machine.fork(parent, "fork")

            other.write(b" after")
            view[0:4] = b"LATE"
            assert (fork.path / "open").read_bytes() == b"before"
            assert (fork.path / "mapped").read_bytes()[50_000:50_004] == b"MMAP"
            assert (fork.path / "mapped").read_bytes()[0:4] == bytes(4)
    assert (parent.path / "open").read_bytes() == b"before after"


def test_fork_sees_one_instant(machine: Machine, parent: Mount) -> None:
    """While a program writes `a` and then `b`, no fork has a `b` that is ahead of `a`."""
    stop = threading.Event()
    a, b = parent.path / "a", parent.path / "b"
    for path in (a, b):
        path.write_text("0")

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            for path in (a, b):
                with path.open("r+") as file:
                    file.write(str(number))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        forks = [machine.fork(parent, f"fork{number}") for number in range(5)]
    finally:
        stop.set()
        writer.join()

    pairs = [tuple(int((fork.path / name).read_text()) for name in "ab") for fork in forks]
    assert all(first - 1 <= second <= first for first, second in pairs), pairs
    assert pairs == sorted(pairs)
    assert pairs[-1][0] > 0


def test_forks_take_no_space_until_they_write(machine: Machine, parent: Mount) -> None:
    """But for the file system's own blocks of an empty layer."""
    (parent.path / "big").write_bytes(os.urandom(20_000_000))
    sync(parent.path)
    machine.fork(parent, "first")
    before = stored_bytes(machine)

    document = machine.json("fork", parent.path, machine.directory / "many", "--count", "5")

    places = [Path(str(one["mountpoint"])) for one in document["sessions"]]  # type: ignore[attr-defined]
    for place in places:
        machine.keep(place)
    assert [place.name for place in places] == ["1", "2", "3", "4", "5"]
    assert all((place / "big").stat().st_size == 20_000_000 for place in places)
    # Each may hold back 4 MiB for deletes on a full disk.
    assert stored_bytes(machine) - before < 5 * (4 << 20) + 1_000_000


def test_fork_outlives_its_parent(machine: Machine, parent: Mount) -> None:
    """The parent commits, goes on, is unmounted: the fork's uncommitted work is what it was."""
    fork = machine.fork(parent, "fork", session="fork")
    before, status = tree_of(fork.path), fork.status()

    parent.commit("all of it", "--into", "main")
    (parent.path / "new/file").write_text("later")
    parent.commit("later")
    parent.umount()

    assert tree_of(fork.path) == before
    assert fork.status() == status
    fork.umount()
    fork = fork.again()
    assert tree_of(fork.path) == before
    fork.commit("of the fork")
    assert fork.status() == {}
    assert tree_of(fork.path) == before
    assert len(layer_directories(fork)) == 1


def test_layers_go_with_the_last_session_that_needs_them(machine: Machine, parent: Mount) -> None:
    """A commit lets go of frozen layers; they are deleted when no fork stands on them."""
    fork = machine.fork(parent, "fork", session="fork")
    (shared, _) = layer_directories(fork)

    parent.commit("parent")
    assert shared.exists()
    fork.commit("fork")

    assert not shared.exists()
    names = {path.name for path in shared.parent.iterdir() if path.is_dir()}
    assert names == {layer_directories(mount)[0].name for mount in (parent, fork)}


def test_fork_of_a_fork_of_a_fork(machine: Machine, parent: Mount) -> None:
    """Each sees what all before it had written, and the chain of layers stays short."""
    mount = parent
    for number in range(40):
        (mount.path / f"generation{number}").write_text(str(number))
        with (mount.path / "large").open("r+b") as file:
            file.seek(number * 70_000)
            file.write(b"%04d" % number)
        child = machine.fork(mount, f"g{number % 2}", session=f"g{number}")
        assert tree_of(child.path) == tree_of(mount.path)
        mount.umount()
        mount = child

    names = {name for name in os.listdir(mount.path) if name.startswith("generation")}
    assert len(names) == 40
    assert len(layer_directories(mount)) < 40
    lineage = machine.json("session", "show", machine.store, "g39")["lineage"]
    assert len(lineage) == 40  # type: ignore[arg-type]


@pytest.mark.parametrize("whose", ["parent", "fork", "both"])
def test_fork_survives_what_its_parent_survives(
    machine: Machine, parent: Mount, whose: str
) -> None:
    """kill -9 and then power loss, right after the fork: what was synced is there in both."""
    sync(parent.path)
    before = tree_of(parent.path)
    fork = machine.fork(parent, "fork", session="fork")
    mounts = [mount for mount in (parent, fork) if whose in (mount.document["session"], "both")]

    for mount in mounts:
        mount.kill()
    mounts = [mount.again() for mount in mounts]

    assert all(tree_of(mount.path) == before for mount in mounts)
    for mount in mounts:
        (mount.path / "more").write_text("more")
        sync(mount.path)
    for mount in mounts:
        cut_power(mount)
    for mount in mounts:
        again = mount.again()
        assert (again.path / "more").read_text() == "more"
        (again.path / "more").unlink()
        assert tree_of(again.path).keys() == before.keys()


def test_fsync_in_a_fork_covers_what_its_parent_wrote(machine: Machine, parent: Mount) -> None:
    """A file that was written before the fork, and never synced there, is durable once it is
    synced in the fork.
    """
    (parent.path / "unsynced").write_text("work")
    fork = machine.fork(parent, "fork", session="fork")

    sync(fork.path)
    parent.kill()
    cut_power(fork)
    fork = fork.again()

    assert (fork.path / "unsynced").read_text() == "work"


def test_name_that_is_taken_is_refused(machine: Machine, parent: Mount) -> None:
    """Nothing is made, and what the other session has stays."""
    other = machine.mount("other", session="taken")
    (other.path / "work").write_text("w")
    other.umount()
    record = next((machine.state_dir / "sessions").glob("*/taken/session.json"))
    before = json.loads(record.read_text())

    code = ExitCode.EXISTS_OR_BUSY
    machine.run("fork", parent.path, machine.directory / "f", "--session", "taken", code=code)

    assert json.loads(record.read_text()) == before
    assert not (machine.directory / "f").exists()
    assert (machine.mount("other", session="taken").path / "work").read_text() == "w"


def test_what_cannot_be_forked_says_why(machine: Machine, parent: Mount) -> None:
    """A view, a directory that is no mount, a session that is not mounted."""
    machine.mount("view", session=None, at="main", read_only=True)
    (machine.directory / "plain").mkdir()

    for source, code in (
        (machine.directory / "view", ExitCode.REFUSED),
        (machine.directory / "plain", ExitCode.NOT_FOUND),
        ("nobody", ExitCode.NOT_FOUND),
    ):
        machine.run("fork", source, machine.directory / "f", code=code)

    assert not (machine.directory / "f").exists()


def test_session_that_is_not_mounted_is_forked(machine: Machine, parent: Mount) -> None:
    """By its store and name; it stays unmounted, and both go on from the same work."""
    before, status = tree_of(parent.path), parent.status()
    name = str(parent.document["session"])
    parent.umount()
    place = machine.directory / "variant"

    (document,) = machine.json("fork", machine.store, name, place, "--session", "v")["sessions"]  # type: ignore[misc]

    machine.keep(place)
    fork = Mount(machine, place, document)
    assert tree_of(fork.path) == before
    assert fork.status() == status
    (fork.path / "theirs").write_text("theirs\n")
    again = parent.again()
    assert tree_of(again.path) == before
    (again.path / "ours").write_text("ours\n")
    assert os.stat(again.path / "ours").st_ino != os.stat(fork.path / "theirs").st_ino
    (machine.directory / "third").mkdir()
    machine.run("fork", machine.store, name, machine.directory / "third")  # mounted by now
    machine.keep(machine.directory / "third")
    assert (machine.directory / "third/ours").read_text() == "ours\n"
    machine.run("fork", machine.store, "none", place, code=ExitCode.NOT_FOUND)
