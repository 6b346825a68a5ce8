"""Logs of some commits only: by who made them, when, why, and what they changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.test_s3_store import Shell
from tests.harness import Machine
from tests.servers import Server
from workspacefs.errors import ExitCode
from workspacefs.workspace.workspace import Workspace


@pytest.fixture
def imported(tmp_path: Path) -> Machine:
    """A workspace with four commits on main, of two agents and runs."""
    machine = Machine(tmp_path)
    machine.init()
    source = tmp_path / "src"
    (source / "docs").mkdir(parents=True)
    (source / "docs" / "a").write_text("1")
    (source / "code").write_text("1")
    words: tuple[str, ...] = ("--agent", "one", "--run", "r1")
    machine.run("import", machine.store, source, "-m", "begin", *words)
    (source / "code").write_text("2")
    machine.run("import", machine.store, source, "-m", "Mend the code", *words)
    (source / "docs" / "a").write_text("2")
    words = ("--agent", "two", "--run", "r2", "--tool-call", "t1")
    machine.run("import", machine.store, source, "-m", "tell of it", *words)
    (source / "code").write_text("3")
    machine.run("import", machine.store, source, "-m", "mend more", *words)
    return machine


def messages(machine: Machine, *words: str) -> list[str]:
    """Return the messages of what `log` shows."""
    rows = machine.json("log", machine.store, *words)["commits"]
    return [row["message"] for row in rows]  # type: ignore[attr-defined]


def test_commits_are_chosen_by_who_when_and_why(imported: Machine) -> None:
    """All that is given must be true; the limit counts what is shown."""
    everything = ["mend more", "tell of it", "Mend the code", "begin"]

    assert messages(imported, "--agent", "two") == everything[:2]
    assert messages(imported, "--run", "r1", "--grep", "MEND") == ["Mend the code"]
    assert messages(imported, "--tool-call", "t1", "-n", "1") == ["mend more"]
    assert messages(imported, "--grep", "mend", "-n", "2") == ["mend more", "Mend the code"]
    assert messages(imported, "--session", "s") == []
    newest = imported.json("log", imported.store)["commits"][0]  # type: ignore[index]
    assert messages(imported, "--author", newest["author"]) == everything
    assert messages(imported, "--author", newest["author"].partition("@")[0]) == everything
    assert messages(imported, "--author", "nobody") == []
    assert messages(imported, "--since", "2h") == everything
    assert messages(imported, "--until", "2h") == []
    assert messages(imported, "--since", newest["time"][:10], "--until", newest["time"][:10])
    assert messages(imported, "--since", "2001-01-01", "--until", "2001-12-31T23:59Z") == []


def test_commits_are_chosen_by_what_they_changed(imported: Machine) -> None:
    """At or below a path; several may be given, and JSON says which was changed."""
    assert messages(imported, "--path", "docs") == ["tell of it", "begin"]
    assert messages(imported, "--path", "/docs/a") == ["tell of it", "begin"]
    assert messages(imported, "--path", "code", "--agent", "one", "-n", "1") == ["Mend the code"]
    assert messages(imported, "--path", "nothing") == []
    rows = imported.json("log", imported.store, "--path", "code", "--path", "docs")["commits"]
    assert [row["paths"] for row in rows] == [  # type: ignore[attr-defined]
        ["code"], ["docs"], ["code"], ["code", "docs"],
    ]  # fmt: skip
    text = imported.run("log", imported.store, "main~1", "--path", "code", "--stat")
    assert "Mend the code" in text
    assert "mend more" not in text
    assert "code | " in text


@pytest.mark.parametrize("words", [("--since", "soon"), ("--until", "2026-13-01")])
def test_what_is_no_time_is_told(imported: Machine, words: tuple[str, str]) -> None:
    """With what would be one."""
    document = imported.json("log", imported.store, *words, code=ExitCode.USAGE)

    assert document["error"]["kind"] == "usage.arguments"  # type: ignore[index]
    assert "2026-11-30" in document["error"]["message"]  # type: ignore[index]


def test_commits_are_printed_as_they_are_found(machine: Machine, tmp_path: Path) -> None:
    """Whoever reads the first one need not wait for the last one."""
    source = tmp_path / "src"
    source.mkdir()
    for number in range(3):
        (source / "a").write_text(str(number))
        machine.run("import", machine.store, source, "-m", f"number {number}")
    oldest = machine.json("log", machine.store)["commits"][-1]  # type: ignore[index]
    # Reading the oldest one blocks: its pack is a pipe that nobody writes to.
    (pack,) = [
        path
        for path in (machine.store / "packs").iterdir()
        if path.name.startswith(_pack_of(machine, oldest["commit"]))
    ]
    pack.unlink()
    subprocess.run(["mkfifo", pack], check=True)

    log = subprocess.Popen(
        machine.command("log", machine.store), stdout=subprocess.PIPE, env=machine.environ()
    )
    assert log.stdout is not None
    seen = b""
    while b"number 2" not in seen:
        piece = log.stdout.read1()
        assert piece, seen
        seen += piece
    log.kill()
    log.wait()
    log.stdout.close()


def _pack_of(machine: Machine, commit: str) -> str:
    ref, _ = Workspace.open(str(machine.store)).resolve(commit)
    assert ref.locator is not None
    return ref.locator.pack_id.hex()


def test_paths_in_a_mount_are_those_one_sees(machine: Machine) -> None:
    """From the working directory on; a file is followed under the name that it had."""
    mount = machine.mount()
    (mount.path / "d").mkdir()
    (mount.path / "d" / "old").write_text("x")
    (mount.path / "other").write_text("x")
    mount.commit("begin")
    (mount.path / "d" / "old").rename(mount.path / "d" / "new")
    mount.commit("rename")
    (mount.path / "other").write_text("y")
    mount.commit("other")

    def log(*words: str) -> bytes:
        done = subprocess.run(
            machine.command("log", *words),
            cwd=mount.path / "d",
            env=machine.environ(),
            capture_output=True,
            check=True,
        )
        return done.stdout

    for words in (("--path", "new"), ("--path", "."), ("--path", str(mount.path / "d/new")),
                  ("s", "--path", "new")):  # fmt: skip
        said = log(*words)
        assert b"rename" in said
        assert b"begin" in said
        assert b"other" not in said
    assert b"rename" not in log("--path", "../other")
    assert messages(machine, "s", "--path", "d/new", "--session", "s") == ["rename", "begin"]
    seen = machine.mount("part", session="s2", read_only=True, at="s", subpath="d")
    text = machine.run("log", seen.path, "--path", str(seen.path / "new"))
    assert "begin" in text
    assert "other" not in text


def test_log_of_a_bucket(seaweedfs: Server, tmp_path: Path) -> None:
    """The same filters."""
    shell = Shell(seaweedfs, tmp_path)
    (tmp_path / "src").mkdir()
    url = seaweedfs.new_store()
    shell.run("init", url)
    for name in ("a", "b"):
        (tmp_path / "src" / name).write_text("x")
        shell.run("import", url, "src", "-m", name, "--agent", f"agent-{name}")

    rows = shell.json("log", url, "--path", "a")["commits"]
    assert [row["message"] for row in rows] == ["a"]  # type: ignore[attr-defined]
    rows = shell.json("log", url, "--agent", "agent-b", "--since", "1d")["commits"]
    assert [row["message"] for row in rows] == ["b"]  # type: ignore[attr-defined]
