"""A mount of one directory of a workspace: a root like any other, with nothing around it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.faults.power import sync
from tests.harness import Machine, Mount, tree_of
from tests.s3_machine import S3Machine, kill_all
from workspacefs.errors import ExitCode

PART = "apps/shop"


def fill(root: Path) -> None:
    """Make a workspace of which one part is looked at alone."""
    for name in ("apps/shop/src/main.py", "apps/shop/README", "apps/other/secret", "top"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"first {name}\n")
    (root / "apps/shop/large").write_bytes(os.urandom(1_000_000))
    os.link(root / "apps/shop/README", root / "outside-name")
    (root / "link").symlink_to(PART)


@pytest.fixture
def whole(machine: Machine) -> Mount:
    """A mount of all, its work committed."""
    mount = machine.mount("whole", session="whole")
    fill(mount.path)
    mount.commit("first", "--into", "main")
    return mount


@pytest.fixture
def part(machine: Machine, whole: Mount) -> Mount:
    """A mount of one directory, in a session of its own."""
    return machine.mount("part", session="part", subpath=PART)


def work_in(root: Path) -> None:
    """Do all kinds of things at the top and below."""
    (root / "README").write_text("changed\n")
    (root / "src/main.py").rename(root / "main.py")
    (root / "src").rmdir()
    (root / "new").mkdir()
    (root / "new/file").write_text("new\n")
    os.link(root / "new/file", root / "second")
    (root / "sym").symlink_to("new/file")
    with (root / "large").open("r+b") as file:
        file.seek(500_000)
        file.write(b"middle")
    os.setxattr(root, "user.note", b"top")
    root.chmod(0o750)


def test_one_sees_the_directory_and_nothing_else(whole: Mount, part: Mount) -> None:
    """ ".." ends at the root, and no number leads out of it."""
    assert tree_of(part.path) == tree_of(whole.path / PART)
    assert part.path.stat().st_mtime_ns == (whole.path / PART).stat().st_mtime_ns
    assert os.listdir(part.path / "..") == os.listdir(part.path.parent)
    outside = {
        found.stat().st_ino for found in (whole.path, whole.path / "apps", whole.path / "top")
    }
    seen = {entry.inode() for entry in os.scandir(part.path)}
    assert outside.isdisjoint(seen | {part.path.stat().st_ino})


def test_work_there_is_work_in_the_workspace(machine: Machine, whole: Mount, part: Mount) -> None:
    """Committed, shown by a mount of all, and nothing outside has changed."""
    before = tree_of(whole.path)
    work_in(part.path)
    wanted = tree_of(part.path)

    status = part.status()
    part.commit("from inside", "--into", "main")
    seen = machine.mount("seen", session=None, read_only=True)

    assert set(status) >= {f"{PART}/README", f"{PART}/new/file", f"{PART}/second"}
    assert all(
        path == PART or path.startswith(f"{PART}/") or path == "outside-name" for path in status
    )
    assert tree_of(part.path) == wanted
    assert part.status() == {}
    after = tree_of(seen.path)
    assert tree_of(seen.path / PART) == wanted
    assert os.getxattr(seen.path / PART, "user.note") == b"top"
    for name in ("apps/other/secret", "top", "link"):
        assert after[name] == before[name]


def test_paths_are_told_and_taken_alike(machine: Machine, part: Mount) -> None:
    """Told from the workspace's root; a path in the mount means what lies there."""
    work_in(part.path)

    below = machine.json("status", part.path / "new")["changes"]
    patch = machine.json("diff", part.path / "main.py")["patch"]
    own = machine.json("status", part.path / PART)["changes"]

    assert isinstance(below, list)
    assert {row["path"] for row in below} == {f"{PART}/new", f"{PART}/new/file"}
    assert f"{PART}/main.py" in str(patch)
    assert f"{PART}/README" not in str(patch)
    assert own == []


def test_work_survives_kill_and_is_resumed_in_the_directory(part: Mount) -> None:
    """As in every session."""
    work_in(part.path)
    sync(part.path)
    before, status = tree_of(part.path), part.status()

    part.kill()
    again = part.machine.mount("part", session="part", subpath=f"/{PART}/")

    assert tree_of(again.path) == before
    assert again.status() == status


def test_forks_see_the_same_directory(machine: Machine, part: Mount) -> None:
    """Also from a checkpoint."""
    work_in(part.path)
    before = tree_of(part.path)
    machine.run("checkpoint", part.path, "--name", "cp")
    (part.path / "README").write_text("since\n")

    fork = machine.fork(part, "fork")
    early = machine.directory / "early"
    (document,) = machine.json("fork", part.path, early, "--at", "cp")["sessions"]  # type: ignore[misc]
    machine.keep(early)

    assert tree_of(fork.path) == tree_of(part.path)
    assert tree_of(early) == before
    assert Mount(machine, early, document).commit("from there")["is_new"]
    assert tree_of(early) == before


def test_history_shows_the_same_directory(machine: Machine, whole: Mount, part: Mount) -> None:
    """And a revision that has none there is not shown at all."""
    first = tree_of(part.path)
    work_in(part.path)
    second = tree_of(part.path)
    machine.run("checkpoint", part.path, "--name", "cp")
    part.commit("work", "--into", "main")
    shutil.rmtree(whole.path / "apps")
    whole.commit("gone")
    hidden = part.path / ".workspacefs"

    assert tree_of(hidden / "at/main~1") == first
    assert tree_of(hidden / "at/main") == second
    assert tree_of(hidden / "checkpoints/cp") == second
    assert not (hidden / "at/whole").exists()
    with pytest.raises(PermissionError):
        (part.path / "new").rename(hidden)
    with pytest.raises(PermissionError):
        hidden.rmdir()
    assert tree_of(part.path) == second


def test_view_of_a_directory(machine: Machine, whole: Mount) -> None:
    """A revision without a session."""
    view = machine.mount("view", session=None, read_only=True, at="main", subpath="apps")

    assert tree_of(view.path) == tree_of(whole.path / "apps")
    with pytest.raises(OSError, match="Read-only"):
        (view.path / "x").touch()


@pytest.mark.parametrize(
    ("subpath", "code"),
    [
        ("apps/none", ExitCode.NOT_FOUND),
        ("top", ExitCode.NOT_FOUND),
        ("link", ExitCode.NOT_FOUND),
        (".workspacefs/at/main/apps", ExitCode.NOT_FOUND),
        ("apps/../..", ExitCode.USAGE),
    ],
)
def test_what_is_no_directory_is_told(
    machine: Machine, whole: Mount, subpath: str, code: ExitCode
) -> None:
    """And the session is free for the next try, on any machine."""
    place = machine.directory / "m"
    words = ("mount", machine.store, place, "--mkdir", "--session", "s")

    machine.run(*words, "--subpath", subpath, code=code)

    assert not place.exists()
    other = Machine(machine.directory / "elsewhere")
    other.directory.mkdir()
    other.store = machine.store
    mount = other.mount("m", session="s", subpath="./apps//shop/")
    try:
        assert tree_of(mount.path) == tree_of(whole.path / PART)
    finally:
        other.close()


def test_the_root_is_a_subpath_too(machine: Machine, whole: Mount) -> None:
    """Whoever fills in the flag need not leave it out."""
    mount = machine.mount("all", session="all", subpath="/")

    assert tree_of(mount.path) == tree_of(whole.path)


def test_what_was_changed_outside_before_is_told_and_committed(
    machine: Machine, whole: Mount
) -> None:
    """A session is one, whatever of it a mount shows."""
    (whole.path / "top").write_text("outside")
    whole.umount()
    part = machine.mount("part", session="whole", subpath=PART)
    (part.path / "README").write_text("inside")

    assert {"top", f"{PART}/README"} <= set(part.status())
    part.commit("both", "--into", "main")
    seen = machine.mount("seen", session=None, read_only=True)
    assert (seen.path / "top").read_text() == "outside"


def test_directory_of_a_cold_far_store(s3: S3Machine) -> None:
    """Found and worked in, with nothing of it here; paused, and resumed elsewhere."""
    whole = s3.mount("whole", session="whole")
    fill(whole.path)
    whole.commit("first", "--into", "main")
    wanted = tree_of(whole.path / PART)
    whole.umount()
    kill_all(s3.transfer_pids())
    s3.clear_cache()

    part = s3.mount("part", session="part", subpath=PART, prefetch="none")
    seen = tree_of(part.path)
    s3.run("prefetch", part.path / "src", part.path / "large")
    work_in(part.path)
    worked = tree_of(part.path)
    s3.run("pause", part.path)
    other = s3.beside()
    place = other.directory / "again"
    other.run("resume", str(other.store), "part", place, "--subpath", PART)
    other.keep(place)

    assert seen == wanted
    assert tree_of(place) == worked


def test_restore_is_seen_in_the_directory(machine: Machine, part: Mount) -> None:
    """At its top, below and by whoever stands in it; what has no such directory is refused."""
    before = tree_of(part.path)
    machine.run("checkpoint", part.path, "--name", "early")
    work_in(part.path)
    os.listdir(part.path)

    machine.run("restore", part.path, "early")

    assert tree_of(part.path) == before
    assert part.status() == {}
    machine.mount("none", session="none")
    (machine.directory / "none/apps").rename(machine.directory / "none/elsewhere")
    moved = machine.json("commit", machine.directory / "none", "-m", "without it")["commit"]
    done = machine.start("restore", part.path, str(moved))
    assert done.returncode in (0, ExitCode.REFUSED)
    assert tree_of(part.path) == before
