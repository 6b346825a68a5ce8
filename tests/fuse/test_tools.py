"""Ordinary tools on a mount: git, rg, sqlite, make, tar, and pip into a virtual environment."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.harness import Machine, Mount, tree_of
from workspacefs.client.locate import session_of
from workspacefs.statedir import StateDir

GIT_ENVIRON = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",
}


def run(*words: str | Path, cwd: Path) -> str:
    """Run a program; it must succeed."""
    environ = {**os.environ, **GIT_ENVIRON, "HOME": str(cwd)}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


def make_sources(root: Path) -> int:
    """Write some 300 source files; return how many."""
    rng = random.Random(3)
    for number in range(300):
        path = root / f"pkg{number % 7}" / f"sub{number % 3}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        words = " ".join(rng.choice(["alpha", "beta", "gamma", "needle"]) for _ in range(400))
        path.write_text(f"# {number}\n{words}\n")
        # git reads a file again that is as new as its index, by the second ("racy git").
        os.utime(path, ns=(10**18 + number, 10**18 + number))
    return 300


def messages_of(mount: Mount) -> dict[str, int]:
    """Return how many FUSE messages of each kind a session has answered."""
    address = session_of(str(mount.path), StateDir(str(mount.machine.state_dir)))
    with address.connect() as connection:
        found = connection.call("counters", {})["messages"]
    assert isinstance(found, dict)
    return found


def test_git_status_in_a_fresh_mount_reads_no_file(
    kernel_caches: None, mount: Mount, machine: Machine
) -> None:
    """File ids, sizes and times are kept, so git believes its index: it reads .git, and no more."""
    files = make_sources(mount.path)
    run("git", "init", "-q", cwd=mount.path)
    run("git", "add", "-A", cwd=mount.path)
    run("git", "commit", "-qm", "first", cwd=mount.path)
    assert run("git", "status", "--porcelain", cwd=mount.path) == ""
    mount.commit("with git", "--into", "main")
    fresh = machine.mount("fresh", session="fresh")

    assert run("git", "status", "--porcelain", cwd=fresh.path) == ""

    assert messages_of(fresh).get("read", 0) < 30 < files
    run("git", "fsck", "--strict", cwd=fresh.path)
    (fresh.path / "pkg0/sub0/module0.py").write_text("changed\n")
    assert run("git", "status", "--porcelain", cwd=fresh.path) == " M pkg0/sub0/module0.py\n"


def test_git_clone_branch_merge_and_gc(mount: Mount) -> None:
    """git's locks, renames, packs and temporary files work."""
    origin = mount.path / "origin"
    origin.mkdir()
    make_sources(origin)
    run("git", "init", "-q", "-b", "main", cwd=origin)
    run("git", "add", "-A", cwd=origin)
    run("git", "commit", "-qm", "first", cwd=origin)
    run("git", "clone", "-q", "origin", "copy", cwd=mount.path)
    copy = mount.path / "copy"
    run("git", "checkout", "-qb", "topic", cwd=copy)
    (copy / "pkg1/sub1/module1.py").write_text("topic\n")
    run("git", "commit", "-qam", "topic", cwd=copy)
    run("git", "checkout", "-q", "main", cwd=copy)
    (copy / "new.txt").write_text("main\n")
    run("git", "add", "new.txt", cwd=copy)
    run("git", "commit", "-qm", "main", cwd=copy)

    run("git", "merge", "-q", "--no-edit", "topic", cwd=copy)
    run("git", "gc", "-q", "--prune=now", cwd=copy)

    run("git", "fsck", "--strict", cwd=copy)
    assert (copy / "pkg1/sub1/module1.py").read_text() == "topic\n"


def test_rg_finds_what_grep_finds(mount: Mount, machine: Machine) -> None:
    """Cold, in a fresh mount, rg reads every file right."""
    make_sources(mount.path)
    expected = sorted(run("grep", "-rlw", "needle", ".", cwd=mount.path).splitlines())
    mount.commit("sources", "--into", "main")
    fresh = machine.mount("fresh", session="fresh")

    found = run("rg", "-lw", "needle", ".", cwd=fresh.path).splitlines()

    assert sorted(found) == expected


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_sqlite_keeps_what_it_committed_over_kill(mount: Mount, journal: str) -> None:
    """Transactions that returned are there after kill -9 of the session, in either journal mode."""
    path = mount.path / "data.db"
    database = sqlite3.connect(path, isolation_level=None)
    database.execute(f"pragma journal_mode={journal}")
    database.execute("create table t (n integer primary key, v blob)")
    for number in range(60):
        database.execute("insert into t values (?, ?)", (number, os.urandom(3000)))
    mount.kill()

    again = mount.again()

    with sqlite3.connect(again.path / "data.db") as reopened:
        assert reopened.execute("pragma integrity_check").fetchone() == ("ok",)
        assert reopened.execute("select count(*) from t").fetchone() == (60,)
    again.commit("database")
    assert sqlite3.connect(again.path / "data.db").execute("select max(n) from t").fetchone() == (
        59,
    )


def test_make_builds_and_rebuilds_only_what_changed(mount: Mount) -> None:
    """Times are fine and steady enough for make; fresh binaries run."""
    (mount.path / "main.c").write_text('#include "a.h"\nint main(void) { return a() - 41; }\n')
    (mount.path / "a.c").write_text("int a(void) { return 41; }\n")
    (mount.path / "a.h").write_text("int a(void);\n")
    (mount.path / "Makefile").write_text(
        "prog: main.o a.o\n\tcc -o $@ $^\n%.o: %.c a.h\n\tcc -c $<\n"
    )
    run("make", cwd=mount.path)
    run(mount.path / "prog", cwd=mount.path)

    assert "up to date" in run("make", cwd=mount.path)

    (mount.path / "a.c").write_text("int a(void) { return 42 - 1; }\n")
    assert "cc -c main.c" not in run("make", cwd=mount.path)
    run(mount.path / "prog", cwd=mount.path)


def test_pip_installs_into_a_venv_and_its_tests_run(mount: Mount) -> None:
    """A virtual environment on the mount: pip installs a package and its tests pass there."""
    project = mount.path / "project"
    (project / "tiny").mkdir(parents=True)
    (project / "tiny/__init__.py").write_text("def double(n):\n    return 2 * n\n")
    (project / "test_tiny.py").write_text(
        "import unittest, tiny\n\n\nclass T(unittest.TestCase):\n"
        "    def test(self):\n        self.assertEqual(tiny.double(4), 8)\n"
    )
    wheel = mount.path / "tiny-1-py3-none-any.whl"
    info = "tiny-1.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(project / "tiny/__init__.py", "tiny/__init__.py")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "tiny/__init__.py,,\n")
    run(sys.executable, "-m", "venv", "env", cwd=mount.path)
    python = mount.path / "env/bin/python"

    run(python, "-m", "pip", "install", "-q", "--no-index", wheel, cwd=mount.path)

    installed = run(python, "-c", "import tiny; print(tiny.__file__)", cwd=mount.path / "env")
    assert installed.startswith(str(mount.path / "env"))
    run(python, "-m", "unittest", "-q", "test_tiny", cwd=project)


def test_tar_gives_and_takes_everything(mount: Mount) -> None:
    """A tree packed on the mount and unpacked beside it is the same."""
    make_sources(mount.path / "tree")
    os.link(mount.path / "tree/pkg0/sub0/module0.py", mount.path / "tree/linked")
    os.symlink("pkg0", mount.path / "tree/link")
    os.mkfifo(mount.path / "tree/fifo")
    run("tar", "--xattrs", "--format=posix", "-cf", "t.tar", "-C", "tree", ".", cwd=mount.path)
    (mount.path / "again").mkdir()

    run("tar", "--xattrs", "-xpf", "t.tar", "-C", "again", cwd=mount.path)

    assert tree_of(mount.path / "again") == tree_of(mount.path / "tree")
