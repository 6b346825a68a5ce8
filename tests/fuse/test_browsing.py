"""History in the mount: revisions and checkpoints below `.workspacefs`; nothing can be changed."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fuse.test_tools import make_sources, run
from tests.harness import Machine, Mount, tree_of
from tests.s3_machine import SOON_S, S3Machine, kill_all, wait_until
from workspacefs.errors import ExitCode
from workspacefs.refs import RefKind
from workspacefs.workspace.workspace import Workspace

HIDDEN = ".workspacefs"


@pytest.fixture
def mount(machine: Machine) -> Mount:
    """A session with two commits of all kinds of files, and changes on top."""
    mount = machine.mount()
    root = mount.path
    (root / "d/e").mkdir(parents=True)
    for name in ("d/kept", "d/changed", "d/removed", "d/e/deep"):
        (root / name).write_text(f"first {name}\n")
    (root / "large").write_bytes(random.Random(1).randbytes(3_000_000))
    os.link(root / "d/kept", root / "second-name")
    (root / "link").symlink_to("d/kept")
    os.setxattr(root / "d/kept", "user.note", b"mine")
    (root / "d/e").chmod(0o750)
    os.mkfifo(root / "fifo")
    mount.commit("first", "--into", "main")
    return mount


def past(mount: Mount, era: str, name: str = "") -> Path:
    """Return where a mount shows a revision or checkpoint."""
    return mount.path / HIDDEN / era / name


def change_everything(root: Path) -> None:
    """Write, remove, rename and link."""
    (root / "d/changed").write_text("later\n")
    (root / "d/removed").unlink()
    with (root / "large").open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"later")
    (root / "d/kept").rename(root / "moved")
    shutil.rmtree(root / "d/e")
    (root / "new").mkdir()
    (root / "new/file").write_text("new\n")


def past_inodes(mount: Mount) -> int:
    """Return how many files of the past the session's process knows."""
    fuse = mount.machine.json("stats", mount.path)["fuse"]
    assert isinstance(fuse, dict)
    return int(fuse["past_inodes"])


def test_every_spelling_of_a_revision_shows_its_tree(machine: Machine, mount: Mount) -> None:
    """Branch, tag, session, id, the beginning of one, and steps back."""
    first = tree_of(mount.path)
    change_everything(mount.path)
    second = tree_of(mount.path)
    commit = str(mount.commit("second", "--into", "side/branch")["commit"])
    workspace = Workspace.open(str(machine.store))
    record, _ = workspace.refs.get(RefKind.BRANCH, "main")
    tag = replace(record, write_id="", session=None)
    workspace.refs.compare_and_swap(RefKind.TAG, "v1", expected=None, new=tag)
    (mount.path / "uncommitted").write_text("x")

    for name in ("main", "v1", "side,branch~1", "s^", f"{commit}~"):
        assert tree_of(past(mount, "at", name)) == first, name
    for name in ("side,branch", "s", commit, commit[:12]):
        assert tree_of(past(mount, "at", name)) == second, name
    assert sorted(os.listdir(past(mount, "at"))) == ["main", "s", "side,branch", "v1"]
    for name in ("nothing", "main~9", ".git", "side", "ff" * 32, "x" * 300):
        with pytest.raises(OSError, match=name[:8]) as found:
            os.stat(past(mount, "at", name))
        assert found.value.errno in (errno.ENOENT, errno.ENAMETOOLONG)


def test_checkpoint_shows_its_moment(machine: Machine, mount: Mount) -> None:
    """Whatever was written, committed or flattened since, and after kill -9."""
    change_everything(mount.path)
    early = tree_of(mount.path)
    machine.run("checkpoint", mount.path, "--name", "early")
    held = (past(mount, "checkpoints", "early") / "large").open("rb")
    before = held.read(10)
    for number in range(40):
        (mount.path / f"f{number % 3}").write_text(f"round {number}")
        with (mount.path / "large").open("r+b") as file:
            file.seek(number * 70_000)
            file.write(b"%03d" % number)
        machine.run("checkpoint", mount.path, "--name", f"n/{number}")
    late = tree_of(mount.path)
    mount.commit("all of it")
    shutil.rmtree(mount.path / "d")

    assert tree_of(past(mount, "checkpoints", "early")) == early
    assert tree_of(past(mount, "checkpoints", "n,39")) == late
    assert held.seek(0) == 0
    assert held.read(10) == before
    held.close()
    mount.kill()
    mount = mount.again()
    assert tree_of(past(mount, "checkpoints", "early")) == early
    assert len(os.listdir(past(mount, "checkpoints"))) == 41


def test_it_is_hidden(machine: Machine, mount: Mount) -> None:
    """It is in no listing, no status, no commit; and no command stumbles over it."""
    hidden = mount.path / HIDDEN
    assert sorted(os.listdir(hidden)) == ["at", "checkpoints", "conflicts"]
    assert HIDDEN not in os.listdir(mount.path)

    inside = past(mount, "at", "main") / "d"
    assert mount.status() == {}
    assert machine.json("status", inside)["changes"] == []
    assert machine.json("diff", inside)["patch"] == ""
    assert machine.json("commit", inside, "-m", "nothing")["is_new"] is False
    assert machine.json("stats", inside)["session"] == "s"
    machine.run("ls", machine.store)
    assert os.listxattr(inside / "kept") == ["user.note"]
    assert os.listxattr(hidden) == []


def test_tools_work_on_the_past(machine: Machine, mount: Mount) -> None:
    """git, rg, diff and cp, beside what is there now."""
    count = make_sources(mount.path / "src")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "c"]):
        run("git", *words, cwd=mount.path / "src")
    mount.commit("sources", "--into", "main")
    (mount.path / "src/pkg0/sub0/module0.py").write_text("changed")
    then = past(mount, "at", "main") / "src"

    assert "modified" not in run("git", "status", "--short", cwd=then)
    assert run("git", "-C", str(then), "log", "--format=%s", cwd=machine.directory) == "c\n"
    assert len(run("rg", "-l", "needle", str(then), cwd=machine.directory).split()) == count
    different = subprocess.run(
        ["diff", "-rq", then, mount.path / "src"], capture_output=True, text=True, check=False
    )
    assert different.stdout.count("\n") == 1
    assert "module0.py" in different.stdout
    run("cp", "-a", then, machine.directory / "copy", cwd=machine.directory)
    assert tree_of(machine.directory / "copy") == tree_of(then)
    run("cp", "-a", then / "pkg1", mount.path / "back", cwd=machine.directory)
    assert tree_of(mount.path / "back") == tree_of(mount.path / "src/pkg1")


def test_a_number_stays_the_same_while_it_is_held(mount: Mount) -> None:
    """And is of no other file of the mount."""
    path = past(mount, "at", "main") / "second-name"

    with path.open("rb") as file:
        numbers = {os.fstat(file.fileno()).st_ino, path.stat().st_ino}
        other_name = past(mount, "at", "main") / "d/kept"
        numbers.add(other_name.stat().st_ino)

    assert len(numbers) == 1
    assert numbers.isdisjoint({(mount.path / "second-name").stat().st_ino})


CHANGES: dict[str, Callable[[Path, Path], object]] = {
    "create": lambda then, now: (then / "new").touch(),
    "mkdir": lambda then, now: (then / "new").mkdir(),
    "mknod": lambda then, now: os.mkfifo(then / "new"),
    "symlink": lambda then, now: (then / "new").symlink_to("x"),
    "link": lambda then, now: os.link(then / "kept", then / "new"),
    "link out": lambda then, now: os.link(then / "kept", now / "new"),
    "link in": lambda then, now: os.link(now / "kept", then / "new"),
    "unlink": lambda then, now: (then / "kept").unlink(),
    "rmdir": lambda then, now: (then / "e").rmdir(),
    "rename": lambda then, now: (then / "kept").rename(then / "new"),
    "rename out": lambda then, now: (then / "kept").rename(now / "new"),
    "rename in": lambda then, now: (now / "kept").rename(then / "new"),
    "write": lambda then, now: (then / "kept").open("r+b"),
    "append": lambda then, now: (then / "kept").open("ab"),
    "truncate": lambda then, now: os.truncate(then / "kept", 0),
    "open to cut": lambda then, now: os.open(then / "kept", os.O_RDONLY | os.O_TRUNC),
    "chmod": lambda then, now: (then / "kept").chmod(0o600),
    "chown": lambda then, now: os.chown(then / "kept", os.getuid(), os.getgid()),
    "utime": lambda then, now: os.utime(then / "kept"),
    "setxattr": lambda then, now: os.setxattr(then / "kept", "user.x", b"1"),
    "removexattr": lambda then, now: os.removexattr(then / "kept", "user.note"),
}


def test_every_change_is_refused(machine: Machine, mount: Mount) -> None:
    """With EROFS, and it has not happened, neither then nor now."""
    machine.run("checkpoint", mount.path, "--name", "main")
    before = tree_of(mount.path)

    for era in ("at", "checkpoints"):
        for name, change in CHANGES.items():
            with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
                change(past(mount, era, "main") / "d", mount.path / "d")
            assert tree_of(past(mount, era, "main")) == before, name
            assert tree_of(mount.path) == before, name

    assert mount.status() == {}


def test_the_hidden_directories_themselves_stay(mount: Mount) -> None:
    """Nothing is made in their place, and nothing removed; the mount goes on."""
    hidden, inside, file, directory = (
        mount.path / HIDDEN,
        past(mount, "at"),
        mount.path / "link",
        mount.path / "d",
    )
    refused: dict[str, tuple[Callable[[], object], set[int]]] = {
        "mkdir": (hidden.mkdir, {errno.EEXIST}),
        "create": (lambda: os.open(hidden, os.O_CREAT | os.O_WRONLY), {errno.EISDIR}),
        "symlink": (lambda: hidden.symlink_to("x"), {errno.EEXIST}),
        "link": (lambda: os.link(mount.path / "large", hidden), {errno.EEXIST}),
        "rmdir": (hidden.rmdir, {errno.EPERM}),
        "rename away": (lambda: hidden.rename(mount.path / "x"), {errno.EPERM}),
        "rename onto": (lambda: directory.rename(hidden), {errno.EPERM}),
        "file onto": (lambda: file.rename(hidden), {errno.EISDIR}),
        "chmod": (lambda: hidden.chmod(0o700), {errno.EROFS}),
        "utime": (lambda: os.utime(inside), {errno.EROFS}),
        "setxattr": (lambda: os.setxattr(inside, "user.x", b""), {errno.EROFS}),
        "touch": (lambda: (hidden / "x").touch(), {errno.EROFS}),
        "mkdir at": (lambda: (inside / "x").mkdir(), {errno.EROFS}),
        "rmdir at": (inside.rmdir, {errno.EROFS}),
        "rmdir main": ((inside / "main").rmdir, {errno.EROFS}),
        "rename main": (lambda: (inside / "main").rename(inside / "x"), {errno.EROFS}),
    }
    before = tree_of(mount.path)

    found = {}
    for name, (call, _) in refused.items():
        with pytest.raises(OSError) as told:
            call()
        found[name] = told.value.errno

    assert found == {name: next(iter(numbers)) for name, (_, numbers) in refused.items()}
    assert tree_of(mount.path) == before
    assert mount.status() == {}
    (mount.path / "d" / HIDDEN).mkdir()  # elsewhere it is a name as any other
    assert os.listdir(mount.path / "d" / HIDDEN) == []


def test_a_real_directory_of_that_name_wins(machine: Machine, tmp_path: Path) -> None:
    """What a workspace really has is shown and can be changed; without it the past is back."""
    source = tmp_path / "source"
    (source / HIDDEN / "at").mkdir(parents=True)
    (source / HIDDEN / "at/mine").write_text("mine")
    machine.run("import", machine.store, source, "-m", "import")
    mount = machine.mount()
    real = mount.path / HIDDEN

    assert os.listdir(mount.path) == [HIDDEN]
    assert (real / "at/mine").read_text() == "mine"
    (real / "at/mine").write_text("changed")
    (real / "more").write_text("more")
    assert set(mount.status()) == {f"{HIDDEN}/at/mine", f"{HIDDEN}/more"}
    real.rename(mount.path / "moved")
    assert os.listdir(past(mount, "at", "main")) == [HIDDEN]
    assert (past(mount, "at", "main") / HIDDEN / "at/mine").read_text() == "mine"
    with pytest.raises(PermissionError):
        (mount.path / "moved").rename(real)
    mount.commit("moved")
    assert os.listdir(mount.path) == ["moved"]


def test_a_name_that_moves_is_never_shown_as_it_was(machine: Machine, mount: Mount) -> None:
    """A branch that another session moves; a checkpoint that is made anew."""
    other = machine.mount("other", session="other")
    shown = []
    for number in range(5):
        (other.path / "d/changed").write_text(f"{number}")
        (other.path / f"only{number}").touch()
        other.commit("next", "--into", "main")
        names = os.listdir(past(mount, "at", "main"))
        shown.append(
            ((past(mount, "at", "main") / "d/changed").read_text(), f"only{number}" in names)
        )
    assert shown == [(str(number), True) for number in range(5)]

    for number in range(3):
        (mount.path / "d/changed").write_text(f"{number}")
        machine.run("checkpoint", mount.path, "--name", "cp")
        (mount.path / "d/changed").write_text("since")
        assert (past(mount, "checkpoints", "cp") / "d/changed").read_text() == str(number)
        machine.run("checkpoint", "delete", "cp", "--path", mount.path)
        assert not past(mount, "checkpoints", "cp").exists()
        assert os.listdir(past(mount, "checkpoints")) == []


def test_reader_of_a_deleted_checkpoint_gets_its_bytes_or_an_error(
    machine: Machine, mount: Mount
) -> None:
    """Never others; and what the checkpoint took is free though it is held."""
    change_everything(mount.path)
    wanted = (mount.path / "large").read_bytes()
    machine.run("checkpoint", mount.path, "--name", "cp")
    file = (past(mount, "checkpoints", "cp") / "large").open("rb")
    directory = os.open(past(mount, "checkpoints", "cp"), os.O_RDONLY)
    begin = file.read(4096)

    machine.run("checkpoint", "delete", "cp", "--path", mount.path)
    with (mount.path / "large").open("r+b") as live:
        live.write(b"overwritten")
    mount.commit("gone")

    assert begin == wanted[:4096]
    for offset in range(0, len(wanted), 100_000):
        try:
            assert os.pread(file.fileno(), 1000, offset) == wanted[offset : offset + 1000]
        except OSError as exc:
            assert exc.errno in (errno.ESTALE, errno.EIO)
    with pytest.raises(OSError) as stale:
        os.stat("d/changed", dir_fd=directory)
    assert stale.value.errno in (errno.ESTALE, errno.ENOENT)
    assert _deleted_layers(mount) == []
    file.close()
    os.close(directory)
    assert tree_of(past(mount, "at", "s")) == tree_of(mount.path)


def _deleted_layers(mount: Mount) -> list[str]:
    """Return files of layers that are deleted and that the session's process holds open."""
    paths = []
    for entry in Path(f"/proc/{mount.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed just now
            paths.append(str(entry.readlink()))
    return [path for path in paths if "/layers/" in path and path.endswith(" (deleted)")]


def test_many_revisions_visited_do_not_pile_up(kernel_caches: None, mount: Mount) -> None:
    """The session's process lets go of those visited longest ago, without the kernel's wish."""
    for number in range(20):
        (mount.path / f"d/f{number}").write_text("x")
    last = mount.commit("more", "--into", "main")
    assert last["is_new"]
    one = len(tree_of(past(mount, "at", "main")))
    peak = 0
    commits = []
    for number in range(24):
        (mount.path / "d/changed").write_text(f"{number}")
        commits.append(str(mount.commit("next")["commit"]))

    for number, commit in enumerate(commits):
        assert len(tree_of(past(mount, "at", commit))) == one
        assert (past(mount, "at", commit) / "d/changed").read_text() == f"{number}"
        peak = max(peak, past_inodes(mount))

    assert peak > 5 * one
    wait_until(lambda: past_inodes(mount) <= 16 * (one + 1))
    assert past_inodes(mount) > 0


def test_a_view_without_a_session_shows_history_too(machine: Machine, mount: Mount) -> None:
    """Of checkpoints it has none."""
    first = tree_of(mount.path)
    change_everything(mount.path)
    mount.commit("second", "--into", "main")
    view = machine.mount("view", session=None, read_only=True)

    assert tree_of(view.path) == tree_of(mount.path)
    assert tree_of(past(view, "at", "main~1")) == first
    assert os.listdir(past(view, "checkpoints")) == []
    assert not past(view, "checkpoints", "x").exists()


def test_checkpoints_come_and_go_under_many_readers(machine: Machine, mount: Mount) -> None:
    """Whatever a reader gets is of the moment that it asked for; the mount lives through it."""
    wrong: list[str] = []
    ends = threading.Event()
    reads = [0]

    def read(seed: int) -> None:
        rng = random.Random(seed)
        while not ends.is_set():
            number = rng.randrange(6)
            root = past(mount, "checkpoints", f"cp{number}")
            try:
                for name in ("small", "big"):
                    text = (root / name).read_bytes()
                    if text != _content(name, number):
                        wrong.append(f"{name} of {number}: {text[:20]!r}")
                    reads[0] += 1
                os.listdir(root)
            except OSError as exc:
                if exc.errno not in (errno.ENOENT, errno.ESTALE, errno.EIO):
                    wrong.append(repr(exc))

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read, seed) for seed in range(4)]
        for turn in range(16):
            number = turn % 6
            if turn >= 6:
                machine.run("checkpoint", "delete", f"cp{number}", "--path", mount.path)
            for name in ("small", "big"):
                (mount.path / name).write_bytes(_content(name, number))
            machine.run("checkpoint", mount.path, "--name", f"cp{number}")
            if turn % 5 == 4:
                mount.commit("turn")
        ends.set()
        for reader in readers:
            reader.result(timeout=60)

    assert wrong == []
    assert reads[0] > 100
    assert (past(mount, "checkpoints", "cp5") / "big").read_bytes() == _content("big", 5)
    assert "handler_bug" not in machine.log_tail()


def _content(name: str, number: int) -> bytes:
    return (f"{name} {number} " * (10 if name == "small" else 60_000)).encode()


# -- far stores ----------------------------------------------------------------------------------


def test_cold_revision_of_a_far_store(s3: S3Machine) -> None:
    """It is fetched when it is read, by many at once; its checkpoints over a base as well."""
    mount = s3.mount(prefetch="none")
    make_sources(mount.path / "src")
    (mount.path / "large").write_bytes(random.Random(2).randbytes(5_000_000))
    first = tree_of(mount.path)
    mount.commit("first", "--into", "main")
    shutil.rmtree(mount.path / "src/pkg1")
    s3.run("checkpoint", mount.path, "--name", "cp")
    second = tree_of(mount.path)
    mount.commit("second", "--into", "main")
    mount.kill()
    kill_all(s3.transfer_pids())
    s3.clear_cache()
    mount = mount.again()

    with ThreadPoolExecutor(4) as pool:
        names = [("at", "main~1"), ("at", "main"), ("checkpoints", "cp"), ("at", "main~1")]
        trees = list(pool.map(lambda name: tree_of(past(mount, *name)), names))

    assert trees == [first, second, second, first]
    assert not past(mount, "at", "nothing").exists()


def test_a_commit_of_ones_own_is_seen_at_once(s3: S3Machine) -> None:
    """Though what the store said of a name counts for a moment, so that paths through it do not
    ask for every file.
    """
    mount = s3.mount()
    for number in range(4):
        (mount.path / "f").write_text(f"{number}")
        mount.commit("next", "--into", "main")
        assert (past(mount, "at", "main") / "f").read_text() == f"{number}"
        assert (past(mount, "at", "s") / "f").read_text() == f"{number}"


def test_branch_moved_from_another_machine_is_seen_soon(s3: S3Machine) -> None:
    """Without anything done here."""
    mount = s3.mount()
    (mount.path / "f").write_text("old")
    mount.commit("old", "--into", "main")
    assert (past(mount, "at", "main") / "f").read_text() == "old"
    other = s3.beside().mount("other", session="other")
    (other.path / "f").write_text("new")

    other.commit("new", "--into", "main")

    wait_until(lambda: (past(mount, "at", "main") / "f").read_text() == "new")


def test_store_that_is_away_is_an_error_and_not_an_absent_name(s3: S3Machine) -> None:
    """And when it is back, all is as before."""
    mount = s3.mount(store_timeout=str(SOON_S))
    (mount.path / "f").write_text("old")
    mount.commit("old", "--into", "main")
    s3.proxy.down()

    with pytest.raises(OSError) as away:
        os.stat(past(mount, "at", "main"))

    assert away.value.errno == errno.EIO
    assert (mount.path / "f").read_text() == "old"
    s3.proxy.up()
    wait_until(lambda: past(mount, "at", "main").exists())
    assert (past(mount, "at", "main") / "f").read_text() == "old"


def test_nothing_is_mounted_within_it(machine: Machine, mount: Mount) -> None:
    """As in no mount of ours."""
    words = ("mount", machine.store, past(mount, "at", "main") / "d", "--session", "x")
    assert machine.start(*words).returncode in (ExitCode.EXISTS_OR_BUSY, ExitCode.USAGE)
