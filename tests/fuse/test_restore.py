"""Restoring under a live mount: programs go on, the kernel shows what was restored."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.faults.power import cut_power, sync
from tests.harness import Machine, Mount, tree_of
from workspacefs.errors import ExitCode


@pytest.fixture
def mount(machine: Machine) -> Mount:
    """A session with a base commit, changes on top, and a checkpoint "early" of that."""
    mount = machine.mount()
    for name in ("d", "d/sub", "other"):
        (mount.path / name).mkdir()
    for name in ("d/kept", "d/changed", "d/removed", "d/sub/deep", "other/file"):
        (mount.path / name).write_text(f"base of {name}\n")
    (mount.path / "large").write_bytes(os.urandom(1_000_000))
    os.symlink("d/kept", mount.path / "link")
    mount.commit("base")
    (mount.path / "d/changed").write_text("changed\n")
    (mount.path / "new").write_text("new\n")
    with (mount.path / "large").open("r+b") as file:
        file.write(b"begin")
    machine.run("checkpoint", mount.path, "--name", "early")
    return mount


def wreck(mount: Mount) -> None:
    """Do what one wants to take back."""
    path = mount.path
    (path / "d/changed").write_text("wrecked and longer\n")
    (path / "d/removed").unlink()
    shutil.rmtree(path / "other")
    (path / "d/sub").rename(path / "elsewhere")
    with (path / "large").open("r+b") as file:
        file.seek(500_000)
        file.write(b"wrecked")
    (path / "link").unlink()
    os.symlink("nowhere", path / "link")
    (path / "d/kept").chmod(0o600)
    (path / "brand").mkdir()
    (path / "brand/new").write_text("brand new\n")


def restore(machine: Machine, mount: Mount, target: str) -> dict[str, object]:
    """Restore; return the answer."""
    return machine.json("restore", mount.path, target)


def test_everything_is_as_it_was(machine: Machine, mount: Mount) -> None:
    """Contents, names, modes, links and inode numbers; nothing was mounted anew."""
    before, status = tree_of(mount.path), mount.status()
    wreck(mount)
    assert tree_of(mount.path) != before

    answer = restore(machine, mount, "early")

    assert tree_of(mount.path) == before
    assert mount.status() == status
    receipt = answer["receipt"]
    assert isinstance(receipt, dict)
    assert receipt["files"] >= 5
    assert receipt["bytes"] >= 1_000_000
    assert receipt["removed"] >= 2
    assert receipt["kept_open"] == 0
    assert answer["safety"] == "before-restore-1"


def test_what_was_there_is_kept(machine: Machine, mount: Mount) -> None:
    """The safety checkpoint has everything up to the restore."""
    wreck(mount)
    wrecked = tree_of(mount.path)
    restore(machine, mount, "early")

    restore(machine, mount, "before-restore-1")

    assert tree_of(mount.path) == wrecked


def test_head_takes_back_all_that_is_not_committed(machine: Machine, mount: Mount) -> None:
    """After that there is nothing to commit, and files have the ids that they had."""
    wreck(mount)

    restore(machine, mount, "HEAD")

    assert mount.status() == {}
    assert (mount.path / "d/changed").read_text() == "base of d/changed\n"
    assert not (mount.path / "new").exists()
    assert mount.commit("nothing")["is_new"] is False


def test_commit_of_other_times(machine: Machine, mount: Mount) -> None:
    """A commit, and a checkpoint from before a commit, are restored as changes over the head."""
    early = tree_of(mount.path)
    mount.commit("second")
    wreck(mount)
    mount.commit("third")
    wrecked = tree_of(mount.path)

    restore(machine, mount, "early")

    assert tree_of(mount.path) == early
    assert mount.status()["brand"] == "deleted"
    restore(machine, mount, "s~2")
    assert (mount.path / "d/changed").read_text() == "base of d/changed\n"
    restore(machine, mount, "HEAD")
    assert tree_of(mount.path) == wrecked
    assert mount.status() == {}
    restore(machine, mount, "early")
    mount.commit("as it was early")
    assert tree_of(mount.path) == early


def test_open_files_keep_what_they_are(machine: Machine, mount: Mount) -> None:
    """Who has a file open reads and writes on in it; whoever opens it now gets the restored one."""
    with (mount.path / "d/changed").open("r+") as held, (mount.path / "large").open("r+b") as large:
        held.write("mine\n")
        held.flush()
        large.seek(999_000)
        large.write(b"mine")
        large.flush()

        answer = restore(machine, mount, "early")

        receipt = answer["receipt"]
        assert isinstance(receipt, dict)
        assert receipt["kept_open"] == 2
        held.seek(0)
        assert held.read().startswith("mine\n")
        assert os.fstat(held.fileno()).st_nlink == 0
        assert (mount.path / "d/changed").read_text() == "changed\n"
        large.seek(999_000)
        assert large.read(4) == b"mine"
        large.seek(0)
        large.write(b"to nobody")
        large.flush()
        assert (mount.path / "large").read_bytes()[:5] == b"begin"
        with (mount.path / "large").open("r+b") as again:
            again.seek(700_000)
            again.write(b"restored")
        large.seek(700_000)
        assert large.read(8) != b"restored"
    kept = tree_of(mount.path)
    mount.kill()
    assert tree_of(mount.again().path) == kept


def test_shell_stays_where_it_is(machine: Machine, mount: Mount) -> None:
    """The working directory of a running program stays usable, one that came back too."""
    shell = subprocess.Popen(
        ["sh"], cwd=mount.path / "d", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert shell.stdin is not None
    assert shell.stdout is not None

    def ask(command: str) -> str:
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write(f"{command}; echo; echo END\n")
        shell.stdin.flush()
        lines = []
        while (line := shell.stdout.readline()) != "END\n":
            lines.append(line)
        return "".join(lines).rstrip("\n")

    try:
        assert ask("cat changed") == "changed"
        wreck(mount)
        assert ask("cat changed") == "wrecked and longer"
        restore(machine, mount, "early")
        assert ask("cat changed") == "changed"
        assert ask("pwd") == str(mount.path / "d")
        assert ask("echo more > made-here && cat made-here") == "more"
        assert (mount.path / "d/made-here").read_text() == "more\n"
        assert ask("ls sub") == "deep"
    finally:
        shell.stdin.close()
        shell.wait(timeout=30)


def test_removed_directory_can_be_used_again(machine: Machine, mount: Mount) -> None:
    """A directory that was removed while a program stood in it comes back whole."""
    sleeper = subprocess.Popen(["sleep", "600"], cwd=mount.path / "other")
    try:
        shutil.rmtree(mount.path / "other")
        restore(machine, mount, "early")
        assert (mount.path / "other/file").read_text() == "base of other/file\n"
        (mount.path / "other/made").write_text("made\n")
        assert sorted(os.listdir(mount.path / "other")) == ["file", "made"]
    finally:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.parametrize("end", ["kill", "power"])
def test_restore_outlives_the_process(machine: Machine, mount: Mount, end: str) -> None:
    """After kill -9 or power loss the session is where it was restored to; safety is there."""
    before = tree_of(mount.path)
    wreck(mount)
    wrecked = tree_of(mount.path)
    sync(mount.path)
    restore(machine, mount, "early")

    cut_power(mount) if end == "power" else mount.kill()
    again = mount.again()

    assert tree_of(again.path) == before
    (again.path / "after").write_text("after\n")
    restore(machine, again, "before-restore-1")
    assert tree_of(again.path) == wrecked


def test_forks_and_commits_go_on_from_what_was_restored(machine: Machine, mount: Mount) -> None:
    """A fork stands at the restored state; new files never get an id that is in use."""
    wreck(mount)
    made = os.stat(mount.path / "brand/new").st_ino
    restore(machine, mount, "early")
    before = tree_of(mount.path)

    fork = machine.fork(mount, "fork")

    assert tree_of(fork.path) == before
    (mount.path / "later").write_text("later\n")
    (fork.path / "later").write_text("later\n")
    numbers = {os.stat(one.path / "later").st_ino for one in (mount, fork)}
    assert len(numbers | {made}) == 3
    fork.commit("restored")
    restore(machine, fork, "HEAD~1")
    assert (fork.path / "d/changed").read_text() == "base of d/changed\n"


def test_what_cannot_be_restored_says_why(machine: Machine, mount: Mount) -> None:
    """Unknown names are told with near ones; nothing has changed then."""
    before = tree_of(mount.path)

    done = machine.start("restore", mount.path, "erly")

    assert done.returncode == ExitCode.NOT_FOUND
    assert "early" in done.stderr.decode()
    assert tree_of(mount.path) == before
    assert machine.json("checkpoint", "list", mount.path)["checkpoints"][0]["checkpoint"] == "early"  # type: ignore[index]


def test_undo_takes_a_restore_back_and_again(machine: Machine, mount: Mount) -> None:
    """Undo, undo of the undo, and several at once; the oplog lists them."""
    early = tree_of(mount.path)
    wreck(mount)
    wrecked = tree_of(mount.path)
    restore(machine, mount, "early")

    machine.run("undo", mount.path)
    assert tree_of(mount.path) == wrecked
    machine.run("undo", mount.path)
    assert tree_of(mount.path) == early
    machine.run("undo", mount.path, "2")
    assert tree_of(mount.path) == early
    machine.run("undo", mount.path, "4")
    assert tree_of(mount.path) == wrecked

    rows = machine.json("oplog", mount.path)["operations"]
    assert isinstance(rows, list)
    assert [row["action"] for row in rows] == ["restore"] * 5 + ["commit"]
    assert machine.start("undo", mount.path, "9").returncode == ExitCode.NOT_FOUND
    mount.commit("on")
    assert machine.start("undo", mount.path).returncode == ExitCode.REFUSED


def test_undo_of_moves_of_refs(machine: Machine, mount: Mount) -> None:
    """A landing, a commit and a deletion are taken back one by one, if nothing came after them."""

    def latest(action: str) -> str:
        rows = machine.json("oplog", machine.store)["operations"]
        assert isinstance(rows, list)
        return next(str(row["operation"]) for row in rows if row["action"] == action)

    first = mount.commit("first", "--into", "main")["commit"]
    (mount.path / "later").write_text("later\n")
    kept = tree_of(mount.path)
    mount.commit("second", "--into", "main")
    landing, commit = latest("land"), latest("commit")
    machine.run("checkpoint", "delete", "early", "--path", mount.path)
    mount.umount()

    answer = machine.json("undo", machine.store, "--op", landing[:8])

    assert answer["head"] == first
    assert machine.json("show", machine.store, "main")["commit"] == first
    machine.run("undo", machine.store, "--op", landing[:8], code=ExitCode.MOVED)
    machine.run("session", "delete", machine.store, "s")
    machine.run("mount", machine.store, mount.path, "--session", "s", code=ExitCode.REFUSED)
    machine.run("undo", machine.store, "--op", latest("delete"))
    assert machine.json("undo", machine.store, "--op", commit)["head"] == first
    again = machine.mount()
    assert tree_of(again.path) == kept
    assert again.status() == {"later": "added"}
    machine.run("undo", machine.store, "--op", latest("undo"), code=ExitCode.EXISTS_OR_BUSY)


def test_durable_checkpoint_outlives_the_machine(machine: Machine, mount: Mount) -> None:
    """It is restored where the session is resumed; one that was not stored keeps a pause back."""
    early = tree_of(mount.path)
    machine.run("checkpoint", "delete", "early", "--path", mount.path)
    machine.run("checkpoint", mount.path, "--name", "kept", "--durable", "-m", "as it was")
    machine.run("checkpoint", mount.path, "--name", "local")
    wreck(mount)
    wrecked = tree_of(mount.path)
    machine.run("pause", mount.path, code=ExitCode.REFUSED)
    machine.run("checkpoint", "delete", "local", "--path", mount.path)
    machine.run("pause", mount.path)
    other = Machine(machine.directory)
    other.state_dir = machine.directory / "other state"
    try:
        resumed = other.mount("elsewhere")
        assert tree_of(resumed.path) == wrecked
        rows = other.json("checkpoint", "list", resumed.path)["checkpoints"]
        assert isinstance(rows, list)
        assert [(row["checkpoint"], row["is_durable"], row["message"]) for row in rows] == [
            ("kept", True, "as it was")
        ]
        changes = other.json("checkpoint", "show", "kept", "--path", resumed.path)["changes"]
        assert isinstance(changes, list)
        assert "brand/new" in {change["path"] for change in changes}

        restore(other, resumed, "kept")

        assert tree_of(resumed.path) == early
        other.run("checkpoint", resumed.path, "--name", "kept", code=ExitCode.EXISTS_OR_BUSY)
        other.run("checkpoint", "delete", "kept", "--path", resumed.path)
        other.run("restore", resumed.path, "kept", code=ExitCode.NOT_FOUND)
    finally:
        other.close()


def test_some_paths_are_restored(machine: Machine, mount: Mount) -> None:
    """Files, directories, links and absence; all else stays; who has one open keeps it; undo."""
    early = tree_of(mount.path)
    os.link(mount.path / "d/sub/deep", mount.path / "d/sub/deeper")
    machine.run("checkpoint", mount.path, "--name", "linked")
    wreck(mount)
    (mount.path / "d/sub").mkdir()
    (mount.path / "d/sub/other").write_text("other\n")
    wrecked = tree_of(mount.path)
    with (mount.path / "d/changed").open() as held:
        answer = machine.json(
            "restore", mount.path, "early", "--paths",
            *(mount.path / name for name in ("d/changed", "other", "link", "brand", "d/sub")),
        )  # fmt: skip

        assert held.read() == "wrecked and longer\n"
    receipt = answer["receipt"]
    assert isinstance(receipt, dict)
    assert (receipt["files"], receipt["symlinks"], receipt["removed"]) == (3, 1, 1)
    now = tree_of(mount.path)
    for name in ("d/changed", "other/file", "link", "d/sub/deep"):
        assert now[name] == early[name]
    assert "brand" not in now
    assert "d/sub/other" not in now
    assert now["d/kept"] == wrecked["d/kept"]
    assert not [name for name in now if "restoring" in name or "replaced" in name]
    machine.run("restore", mount.path, "linked", "--paths", mount.path / "d/sub")
    assert os.stat(mount.path / "d/sub/deep").st_nlink == 2
    machine.run("restore", mount.path, "HEAD", "--paths", mount.path / "d/changed")
    assert (mount.path / "d/changed").read_text() == "base of d/changed\n"
    machine.run("undo", mount.path, "3")
    assert tree_of(mount.path) == wrecked
    machine.run("restore", mount.path, "early", "--paths", mount.path / "none", code=3)


def test_only_the_latest_restores_can_be_undone(machine: Machine, mount: Mount) -> None:
    """Layers that only older ones needed go, but for what an open file still reads."""
    big = os.urandom(400_000)
    (mount.path / "d/big").write_bytes(big)
    machine.run("checkpoint", mount.path, "--name", "big")
    with (mount.path / "d/big").open("rb") as held:
        restore(machine, mount, "HEAD")
        for number in range(20):
            (mount.path / "d/big").write_bytes(b"%d" % number * 300_000)
            restore(machine, mount, "early" if number % 2 else "HEAD")
        assert held.read() == big
    rows = machine.json("checkpoint", "list", mount.path)["checkpoints"]
    assert isinstance(rows, list)
    automatic = [str(row["checkpoint"]) for row in rows if row["is_automatic"]]
    assert len(automatic) == 16
    assert automatic[-1] == "before-restore-21"
    machine.run("undo", mount.path, "16")
    assert (mount.path / "d/big").read_bytes() == b"4" * 300_000
    restore(machine, mount, "big")
    assert (mount.path / "d/big").read_bytes() == big
    rows = machine.json("checkpoint", "list", mount.path)["checkpoints"]
    assert isinstance(rows, list)
    assert len(rows) == 18
    for row in rows:
        machine.run("checkpoint", "delete", str(row["checkpoint"]), "--path", mount.path, code=0)
