"""What a user relies on: work, commit, come back, and nothing is lost or changed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.harness import Machine, Mount, tree_of


def populate(root: Path) -> None:
    """Make one of everything that a tree can hold."""
    (root / "d/deep/er").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "empty-file").touch()
    (root / "tiny").write_bytes(b"tiny")
    (root / "small").write_bytes(os.urandom(5000))
    (root / "medium").write_bytes(os.urandom(200_000))
    (root / "large").write_bytes(os.urandom(3_000_000))
    with (root / "sparse").open("wb") as file:
        file.seek(5_000_000)
        file.write(b"end")
    (root / "exec").write_text("#!/bin/sh\n")
    (root / "exec").chmod(0o755)
    (root / "secret").write_text("x")
    (root / "secret").chmod(0o4600)
    os.link(root / "small", root / "d/small-link")
    os.link(root / "large", root / "d/deep/large-link")
    os.symlink("../tiny", root / "d/link")
    os.symlink("no/where", root / "dangling")
    os.mkfifo(root / "fifo", 0o640)
    os.mknod(root / "socket", stat.S_IFSOCK | 0o755)
    (root / os.fsdecode(b"odd \xff\n name")).write_text("odd")
    (root / ("n" * 255)).write_text("long")
    os.setxattr(root / "tiny", "user.k", b"v\0w")
    os.setxattr(root / "d", "user.dir", b"")
    os.utime(root / "tiny", ns=(1, 123_456_789))
    os.utime(root / "d/link", ns=(5, 987_654_321_012_345_678), follow_symlinks=False)
    os.utime(root / "d/deep", ns=(5, 1_000_000_000_000_000_007))


def test_everything_survives_unmount_without_commit(mount: Mount) -> None:
    """Mounting a session again shows exactly what was left in it, uncommitted."""
    populate(mount.path)
    before = tree_of(mount.path)

    mount.umount()
    again = mount.again()

    assert tree_of(again.path) == before


def test_everything_survives_kill_of_session_and_supervisor(mount: Mount, machine: Machine) -> None:
    """kill -9 of both processes loses nothing that a call returned for."""
    populate(mount.path)
    before = tree_of(mount.path)

    mount.kill()
    machine.run("supervisor", "stop")
    again = mount.again()

    assert tree_of(again.path) == before


def test_commit_shows_the_same_tree_in_the_session_and_elsewhere(
    mount: Mount, machine: Machine
) -> None:
    """After a commit the session reads as before it, and so does a fresh session."""
    populate(mount.path)
    before = tree_of(mount.path)

    answer = mount.commit("all kinds", "--into", "main")

    assert answer["landed_on"] == "main"
    assert tree_of(mount.path) == before
    assert mount.status() == {}
    other = machine.mount("other", session="other")
    assert tree_of(other.path) == before
    mount.umount()
    assert tree_of(mount.again().path) == before


def test_export_equals_the_mount(mount: Mount, machine: Machine) -> None:
    """Export gives every mode, time, link and attribute back."""
    populate(mount.path)
    (mount.path / "secret").chmod(0o600)
    before = tree_of(mount.path)
    mount.commit("all kinds", "--into", "main")

    machine.run("export", f"{machine.store}@main", machine.directory / "out")

    assert tree_of(machine.directory / "out") == before


def test_changes_after_a_commit_lie_over_it(mount: Mount) -> None:
    """Files of the base can be changed in every way, and only the changes are pending."""
    populate(mount.path)
    mount.commit()
    root = mount.path

    with (root / "large").open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"patched")
    with (root / "small").open("ab") as file:
        file.write(b"more")
    os.truncate(root / "medium", 100_000)
    os.rename(root / "d", root / "moved")
    (root / "exec").chmod(0o700)
    (root / "tiny").unlink()
    before = tree_of(root)

    status = mount.status()
    assert status["large"] == "modified"
    assert status["moved"] == "renamed"
    assert status["exec"] == "metadata"
    assert status["tiny"] == "deleted"
    mount.kill()
    assert tree_of(mount.again().path) == before
    mount.commit()
    assert mount.status() == {}
    assert tree_of(root) == before
    assert (root / "moved/deep/large-link").read_bytes() == (root / "large").read_bytes()


def test_a_change_through_one_hard_link_is_committed_for_all(
    mount: Mount, machine: Machine
) -> None:
    """The other name of a changed file, never touched in this session, has the change too."""
    (mount.path / "a").mkdir()
    (mount.path / "b").mkdir()
    (mount.path / "a/one").write_bytes(b"first")
    os.link(mount.path / "a/one", mount.path / "b/two")
    mount.commit("linked", "--into", "main")
    mount.umount()
    again = mount.again()
    (again.path / "a/one").write_bytes(b"second version")

    again.commit("changed", "--into", "main")

    other = machine.mount("other", session="other")
    assert (other.path / "b/two").read_bytes() == b"second version"
    assert os.stat(other.path / "b/two").st_nlink == 2
    assert os.stat(other.path / "b/two").st_ino == os.stat(other.path / "a/one").st_ino


def test_writing_to_a_file_whose_seen_name_is_gone_reaches_its_other_name(
    mount: Mount, machine: Machine
) -> None:
    """Open by one name, remove that name, commit, write, commit: the other name has it all."""
    (mount.path / "one").write_bytes(b"first")
    os.link(mount.path / "one", mount.path / "two")
    mount.commit("linked")
    mount.umount()
    again = mount.again()
    with (again.path / "one").open("r+b", buffering=0) as file:
        os.unlink(again.path / "one")
        again.commit("one is gone")
        file.write(b"SECOND")
        again.commit("written", "--into", "main")

    other = machine.mount("other", session="other")

    assert (other.path / "two").read_bytes() == b"SECOND"
    assert not (other.path / "one").exists()


def test_file_ids_and_times_are_kept_by_commit_and_remount(mount: Mount, machine: Machine) -> None:
    """git compares inode numbers and times: a fresh mount must show those of the session."""
    populate(mount.path)
    before = {name: os.lstat(mount.path / name) for name in ("tiny", "large", "d", "d/link")}
    mount.commit("all", "--into", "main")

    other = machine.mount("other", session="other")

    for name, old in before.items():
        new = os.lstat(other.path / name)
        assert (new.st_ino, new.st_mtime_ns, new.st_ctime_ns) == (
            old.st_ino,
            old.st_mtime_ns,
            old.st_ctime_ns,
        )


def test_open_files_live_through_commits(mount: Mount) -> None:
    """Handles opened before a commit, of named and of removed files, read and write on."""
    named = (mount.path / "named").open("w+b", buffering=0)
    gone = (mount.path / "gone").open("w+b", buffering=0)
    big = (mount.path / "big").open("w+b", buffering=0)
    named.write(b"named-1")
    gone.write(b"gone-1")
    big.write(bytes(1_000_000))
    os.unlink(mount.path / "gone")

    mount.commit()
    for number in range(3):
        named.write(b"!")
        gone.write(b"?")
        big.seek(500_000 + number)
        big.write(b"#")
        mount.commit()

    named.seek(0)
    gone.seek(0)
    big.seek(499_999)
    assert named.read() == b"named-1!!!"
    assert gone.read() == b"gone-1???"
    assert big.read(5) == b"\0###\0"
    assert (mount.path / "named").read_bytes() == b"named-1!!!"


def test_shared_maps_are_part_of_the_commit(mount: Mount, machine: Machine) -> None:
    """What a program wrote through a shared map, and nobody has synced, is committed."""
    import mmap

    path = mount.path / "mapped"
    path.write_bytes(bytes(8192))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 8192) as view:
        view[4096:4101] = b"HELLO"
        mount.commit("mapped", "--into", "main")
        content = machine.start("cat", f"{machine.store}@main", "mapped").stdout

    assert content[4096:4101] == b"HELLO"


def test_nothing_to_commit_says_so(mount: Mount) -> None:
    """A second commit without changes makes none."""
    (mount.path / "f").write_text("x")
    first = mount.commit()

    second = mount.commit()

    assert first["commit"]
    assert second["is_new"] is False


def test_landing_in_conflict_is_refused_and_kept(machine: Machine) -> None:
    """Exit code 5, nothing lands, and the commit stays on its session."""
    one, two = machine.mount("one", session="one"), machine.mount("two", session="two")
    (one.path / "f").write_text("one")
    (two.path / "f").write_text("two")
    one.commit("one", "--into", "main")

    refused = two.commit("two", "--into", "main", code=5)

    assert machine.run("cat", f"{machine.store}@main", "f") == "one"
    assert machine.run("cat", f"{machine.store}@two", "f") == "two"
    assert refused["landed_on"] is None
    (conflict,) = refused["conflicts"]  # type: ignore[misc]  # a document
    assert (conflict["path"], conflict["kind"]) == ("f", "add/add")


@pytest.mark.parametrize("size", [0, 1, 128, 129, 70_000, 262_144, 262_145, 1_500_000])
def test_sizes_around_every_threshold_round_trip(mount: Mount, machine: Machine, size: int) -> None:
    """Inline, one chunk, many chunks, run or own file: the bytes are the same everywhere."""
    data = os.urandom(size)
    (mount.path / "f").write_bytes(data)
    assert (mount.path / "f").read_bytes() == data

    mount.commit("sized", "--into", "main")

    assert (mount.path / "f").read_bytes() == data
    assert (machine.mount("other", session="other").path / "f").read_bytes() == data


def test_read_only_view_of_the_past(mount: Mount, machine: Machine) -> None:
    """--at shows an old commit and refuses writes with EROFS."""
    (mount.path / "f").write_text("old")
    mount.commit("old", "--into", "main")
    (mount.path / "f").write_text("new")
    mount.commit("new", "--into", "main")

    past = machine.mount("past", session=None, at="main~1", read_only=True)

    assert (past.path / "f").read_text() == "old"
    with pytest.raises(OSError, match="Read-only"):
        (past.path / "f").write_text("x")


def test_holes_of_a_huge_file_are_not_read_by_a_commit(mount: Mount, machine: Machine) -> None:
    """A file of 1 TiB with three bytes in it is committed by looking for its data; reading it all
    would take hours, and this test its time limit.
    """
    marks = {0: b"a", (1 << 39) + 12_345: b"b", (1 << 40) - 1: b"c"}
    with (mount.path / "huge").open("wb") as file:
        for offset, data in marks.items():
            file.seek(offset)
            file.write(data)

    mount.commit("huge", "--into", "main")

    other = machine.mount("other", session="other")
    assert (other.path / "huge").stat().st_size == 1 << 40
    with (other.path / "huge").open("rb", buffering=0) as file:
        for offset, data in marks.items():
            file.seek(offset)
            assert file.read(1) == data
        file.seek(1 << 38)
        assert file.read(100_000) == bytes(100_000)
