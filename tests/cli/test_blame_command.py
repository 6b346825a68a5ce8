"""Blame by the command line: in a store, in a mount, with what is not committed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.test_s3_store import Shell
from tests.harness import Machine, Mount
from tests.servers import Server
from workspacefs.errors import ExitCode


@pytest.fixture
def imported(tmp_path: Path) -> Machine:
    """A workspace with two commits on main."""
    machine = Machine(tmp_path)
    machine.init()
    source = tmp_path / "src"
    (source / "d").mkdir(parents=True)
    (source / "d" / "f").write_text("one\ntwo\n")
    (source / "binary").write_bytes(b"\0")
    (source / "link").symlink_to("d/f")
    machine.run("import", machine.store, source, "-m", "first", "--agent", "a", "--run", "r7")
    (source / "d" / "f").write_bytes(b"zero\none\nt\xffo\n")
    machine.run("import", machine.store, source, "-m", "second", "--tool-call", "t9")
    return machine


def blame(machine: Machine, *words: str | Path) -> list[tuple[str, str | None]]:
    """Return each line, and the message of its commit."""
    document = machine.json("blame", *words)
    messages = {row["commit"]: row["message"] for row in document["commits"]}  # type: ignore[attr-defined]
    return [
        (row["text"], messages.get(row["commit"]))
        for row in document["lines"]  # type: ignore[attr-defined]
    ]


def test_lines_of_a_store(imported: Machine) -> None:
    """With commit, agent, run, tool call, time and number; the line's bytes as they are."""
    done = imported.start("blame", imported.store, "d/f")
    second, first = imported.json("log", imported.store)["commits"]  # type: ignore[misc]

    rows = done.stdout.split(b"\n")
    assert [row.partition(b") ")[2] for row in rows] == [b"zero", b"one", b"t\xffo", b""]
    assert rows[1].startswith(first["commit"][:12].encode() + b"  a ")
    assert {b"r7", first["time"].encode(), b"2)"} <= set(rows[1].split())
    assert {b"t9", second["author"].encode()} <= set(rows[0].split())
    document = imported.json("blame", f"{imported.store}@main", "/d/f")
    assert (document["commit"], document["path"]) == (second["commit"], "d/f")
    assert document["lines"][1] == {  # type: ignore[index]
        "line": 2, "commit": first["commit"], "path": "d/f", "line_then": 1, "text": "one",
    }  # fmt: skip
    assert [row["run"] for row in document["commits"]] == ["", "r7"]  # type: ignore[attr-defined]


def test_revision_and_lines_can_be_chosen(imported: Machine) -> None:
    """Behind the path, or behind the store."""
    everything = [("one", "first"), ("two", "first")]

    assert blame(imported, imported.store, "d/f", "main~1") == everything
    assert blame(imported, f"{imported.store}@main~1", "d/f") == everything
    assert blame(imported, imported.store, "d/f", "main~1", "-L", "2,2") == everything[1:]
    assert blame(imported, imported.store, "d/f", "main~1", "-L", "2") == everything[1:]
    assert blame(imported, imported.store, "d/f", "main~1", "-L", ",1") == everything[:1]
    assert blame(imported, imported.store, "d/f", "main~1", "-L", "1,") == everything


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [
        (["{store}", "binary"], ExitCode.USAGE, "blame.binary"),
        (["{store}", "d"], ExitCode.USAGE, "path.kind"),
        (["{store}", "link"], ExitCode.USAGE, "path.kind"),
        (["{store}", "d/g"], ExitCode.NOT_FOUND, "path.absent"),
        (["{store}", "d/f", "nope"], ExitCode.NOT_FOUND, "rev.absent"),
        (["{store}", "d/f", "-L", "9"], ExitCode.USAGE, "blame.lines"),
        (["{store}", "d/f", "-L", "x"], ExitCode.USAGE, "usage.arguments"),
        (["{store}", "d/f", "main", "x"], ExitCode.USAGE, "usage.words"),
        (["d/f", "main", "x"], ExitCode.USAGE, "usage.words"),
        (["/d/f"], ExitCode.NOT_FOUND, "session.not_mounted"),
    ],
)
def test_what_makes_no_sense_is_told(
    imported: Machine, words: list[str], code: int, kind: str
) -> None:
    """With a constant kind."""
    document = imported.json(
        "blame", *(word.format(store=imported.store) for word in words), code=code
    )

    assert document["error"]["kind"] == kind  # type: ignore[index]


@pytest.fixture
def worked(machine: Machine) -> Mount:
    """A session with a commit."""
    mount = machine.mount()
    (mount.path / "d" / "sub").mkdir(parents=True)
    (mount.path / "f").write_text("one\ntwo\nthree\n")
    (mount.path / "d" / "sub" / "g").write_text("one\n")
    mount.commit("first", "--agent", "coder")
    return mount


def test_uncommitted_lines_of_a_mount(worked: Mount) -> None:
    """As the file is now; a file that is new has no others, and a commit makes them its own."""
    machine, path = worked.machine, worked.path
    (path / "f").write_text("one\nnew\nthree\n")
    (path / "h").write_text("h\n")

    assert blame(machine, path / "f") == [("one", "first"), ("new", None), ("three", "first")]
    assert blame(machine, path / "h") == [("h", None)]
    text = machine.run("blame", path / "f")
    assert text.splitlines()[1].startswith("not committed  ")
    assert text.splitlines()[1].endswith("  2) new")
    assert len({line.index(")") for line in text.splitlines()}) == 1
    assert blame(machine, path / "f", "s")[1] == ("two", "first")
    assert blame(machine, path, "f")[1] == ("two", "first")
    worked.commit("second")
    assert blame(machine, path / "f")[1] == ("new", "second")


def test_uncommitted_renames_are_followed(worked: Mount) -> None:
    """Of the file, of a directory above it, and of a file that was put in its place."""
    machine, path = worked.machine, worked.path
    (path / "f").rename(path / "moved")
    (path / "d").rename(path / "e")
    (path / "e" / "sub").rename(path / "e" / "below")
    with (path / "e" / "below" / "g").open("a") as file:
        file.write("more\n")

    assert blame(machine, path / "moved")[0] == ("one", "first")
    assert blame(machine, path / "e/below/g") == [("one", "first"), ("more", None)]
    (path / "f").write_text("zero\none\n")
    assert blame(machine, path / "f") == [("zero", None), ("one", "first")]


def test_mount_without_commits_has_lines(machine: Machine) -> None:
    """All of them not committed."""
    mount = machine.mount()
    (mount.path / "f").write_text("a\n")

    assert blame(machine, mount.path / "f") == [("a", None)]


def test_file_that_is_gone_needs_a_revision(worked: Mount) -> None:
    """It is said how; links and directories are refused as in a store."""
    machine, path = worked.machine, worked.path
    (path / "f").unlink()
    (path / "link").symlink_to("d/sub/g")
    (path / "pipe").parent.joinpath("binary").write_bytes(b"\0")

    for name, code, kind in (
        ("f", ExitCode.NOT_FOUND, "path.absent"),
        ("link", ExitCode.USAGE, "path.kind"),
        ("d", ExitCode.USAGE, "path.kind"),
        ("binary", ExitCode.USAGE, "blame.binary"),
    ):
        document = machine.json("blame", path / name, code=code)
        assert document["error"]["kind"] == kind  # type: ignore[index]
    assert blame(machine, path / "f", "s")[0] == ("one", "first")


def test_part_of_a_workspace_and_a_view(worked: Mount) -> None:
    """Paths are those that one sees; a view has nothing that is not committed."""
    machine = worked.machine
    machine.run("branch", "create", worked.path, "main")
    part = machine.mount("part", session="s2", subpath="d/sub")
    (part.path / "g").write_text("one\nmine\n")

    assert blame(machine, part.path / "g") == [("one", "first"), ("mine", None)]
    done = subprocess.run(
        machine.command("blame", "g"),
        cwd=part.path,
        env=machine.environ(),
        capture_output=True,
        check=True,
    )
    assert done.stdout.endswith(b") mine\n")
    view = machine.mount("view", session=None, read_only=True, at="s", subpath="d")
    assert blame(machine, view.path / "sub" / "g") == [("one", "first")]


def test_blame_after_a_merge_of_two_sessions(worked: Mount) -> None:
    """Each line is its session's, though a merge brought them together."""
    machine = worked.machine
    (worked.path / "f").write_text("".join(f"line {number}\n" for number in range(9)))
    worked.commit("base", "--into", "main")
    other = machine.mount("other", session="s2")
    for mount, number, name in ((worked, 1, "mine"), (other, 7, "theirs")):
        lines = (mount.path / "f").read_text().splitlines()
        lines[number] = name
        (mount.path / "f").write_text("\n".join(lines) + "\n")
        mount.commit(name, "--agent", f"agent-{name}", "--into", "main")

    found = dict(blame(machine, f"{machine.store}@main", "f"))

    assert (found["mine"], found["theirs"], found["line 4"]) == ("mine", "theirs", "base")


def test_blame_of_a_bucket(seaweedfs: Server, tmp_path: Path) -> None:
    """As of a directory."""
    shell = Shell(seaweedfs, tmp_path)
    (tmp_path / "src").mkdir()
    url = seaweedfs.new_store()
    shell.run("init", url)
    for text in ("a\n", "a\nb\n"):
        (tmp_path / "src" / "f").write_text(text)
        shell.run("import", url, "src", "-m", text)

    document = shell.json("blame", url, "f")

    messages = {row["commit"]: row["message"] for row in document["commits"]}  # type: ignore[attr-defined]
    assert [messages[row["commit"]] for row in document["lines"]] == ["a\n", "a\nb\n"]  # type: ignore[attr-defined]
    assert ") b" in shell.run("blame", f"{url}@main", "f", "-L", "2")


def test_processes_that_wrote_the_lines_are_told(machine: Machine) -> None:
    """As the mount saw them: a shell and its redirection, with the call that it ran in."""
    mount = machine.mount()
    for number, call in enumerate(("call-1", "call-2")):
        subprocess.run(
            ["sh", "-c", f"echo line {number} >> notes"],
            cwd=mount.path,
            env={**os.environ, "WORKSPACEFS_TOOL_CALL": call},
            check=True,
        )
        mount.commit(call)

    commits = machine.json("blame", mount.path / "notes")["commits"]

    assert isinstance(commits, list)
    told = {one["message"]: one["writers"] for one in commits}
    assert [one["tool_call"] for one in told["call-1"]] == ["call-1"]
    assert [one["tool_call"] for one in told["call-2"]] == ["call-2"]
    assert told["call-2"][0]["arguments"] == ["sh", "-c", "echo line 1 >> notes"]
    assert "call call-2" in machine.run("blame", mount.path / "notes", "--writers")
