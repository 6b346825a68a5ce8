"""Commands that look into a store without a mount."""

from __future__ import annotations

import base64
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from tests.harness import Machine
from workspacefs.errors import ExitCode

_ODD_NAME = b"caf\xe9 \xff"


@pytest.fixture
def imported(tmp_path: Path) -> Machine:
    """A workspace with two commits on main."""
    machine = Machine(tmp_path)
    machine.init()
    source = tmp_path / "src"
    (source / "sub").mkdir(parents=True)
    (source / "a.txt").write_text("one\n")
    (source / "sub" / "b.bin").write_bytes(b"\0\xff")
    (source / "link").symlink_to("a.txt")
    Path(os.fsdecode(os.fsencode(source) + b"/" + _ODD_NAME)).write_text("odd")
    machine.run("import", machine.store, source, "-m", "first", "--meta", "ticket=42")
    (source / "a.txt").write_text("one\ntwo\n")
    machine.run("import", machine.store, source, "-m", "second", "--agent", "bot")
    return machine


def test_init_twice_is_told(imported: Machine) -> None:
    """A workspace is never made over another one."""
    document = imported.json("init", imported.store, code=ExitCode.EXISTS_OR_BUSY)

    assert document["error"]["kind"] == "workspace.exists"  # type: ignore[index]


def test_import_needs_a_reason(imported: Machine, tmp_path: Path) -> None:
    """As commit does."""
    document = imported.json(*("import", imported.store, tmp_path, "-m", " "), code=ExitCode.USAGE)

    assert document["error"]["kind"] == "commit.message"  # type: ignore[index]


def test_import_over_a_commit_says_what_it_removes(imported: Machine, tmp_path: Path) -> None:
    """What stands on the branch and not in the directory goes: nothing of that is silent."""
    (tmp_path / "other").mkdir()

    text = imported.run("import", imported.store, tmp_path / "other", "-m", "nothing")

    assert ": 0 added, 0 modified, 5 removed" in text


def test_import_of_the_same_makes_no_commit(imported: Machine, tmp_path: Path) -> None:
    """It says so, and names the head."""
    words = ("import", imported.store, tmp_path / "src", "-m", "again")
    newest = imported.json("log", imported.store)["commits"][0]  # type: ignore[index]

    document = imported.json(*words)

    assert (document["commit"], document["is_new"]) == (newest["commit"], False)
    assert "nothing to import: main is the same as" in imported.run(*words)
    assert len(imported.json("log", imported.store)["commits"]) == 2  # type: ignore[arg-type]


def test_log_tells_who_when_why(imported: Machine) -> None:
    """Newest first, with provenance, metadata and counts."""
    newest, oldest = imported.json("log", imported.store)["commits"]  # type: ignore[misc]

    assert (newest["message"], newest["agent"]) == ("second", "bot")
    assert newest["parents"] == [oldest["commit"]]
    assert oldest["meta"] == {"ticket": "42"}
    assert oldest["changes"] == {"added": 5, "modified": 0, "removed": 0}
    text = imported.run("log", imported.store, "--stat", "-n", "1")
    assert "agent    bot" in text
    assert "a.txt | " in text
    assert "first" not in text


def test_show_names_what_changed(imported: Machine) -> None:
    """Names by default, the patch when asked for."""
    document = imported.json("show", imported.store, "--patch")

    assert [row["path"] for row in document["names"]] == ["a.txt"]  # type: ignore[attr-defined]
    assert "+two\n" in str(document["patch"])
    assert "  M a.txt" in imported.run("show", imported.store)


def test_ls_of_a_revision(imported: Machine) -> None:
    """Names as stored, whatever their bytes; long form and recursion on demand."""
    rows = imported.json("ls", f"{imported.store}@main~1", "--recursive")["entries"]

    paths = {os.fsencode(row["path"]): row for row in rows}  # type: ignore[attr-defined]
    assert set(paths) == {b"a.txt", b"link", b"sub", b"sub/b.bin", _ODD_NAME}
    assert paths[b"a.txt"]["size"] == 4
    assert paths[b"link"]["target"] == "a.txt"
    assert "link -> a.txt" in imported.run("ls", "-l", imported.store)
    assert os.fsdecode(_ODD_NAME) in imported.run("ls", imported.store)


def test_cat_gives_the_bytes(imported: Machine) -> None:
    """As they are on standard output, as base64 in JSON when they are no text."""
    assert imported.start("cat", imported.store, "sub/b.bin").stdout == b"\0\xff"
    assert imported.run("cat", f"{imported.store}@main~1", "a.txt") == "one\n"
    document = imported.json("cat", imported.store, "sub/b.bin")
    assert base64.b64decode(str(document["content"])) == b"\0\xff"


def test_export_to_directory_and_tar(imported: Machine) -> None:
    """Both hold the same tree."""
    target = imported.directory / "out"

    document = imported.json("export", imported.store, target)
    tar = imported.start("export", f"{imported.store}@main", "-").stdout

    assert document["files"] == 4
    assert (target / "a.txt").read_text() == "one\ntwo\n"
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        assert sorted(archive.getnames())[:2] == ["a.txt", os.fsdecode(_ODD_NAME)]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["log", "{absent}"], "workspace.absent"),
        (["show", "{store}", "nope"], "rev.absent"),
        (["show", "{store}", "main~9"], "rev.absent"),
        (["show", "{store}", "no such thing"], "rev.absent"),
        (["cat", "{store}", "a.tx"], "path.absent"),
        (["cat", "{store}@nope", "a.txt"], "rev.absent"),
        (["sessions", "{absent}"], "workspace.absent"),
        (["mount", "{absent}", "{empty}"], "workspace.absent"),
    ],
)
def test_what_is_not_there_is_told(imported: Machine, words: list[str], kind: str) -> None:
    """Exit code 3 and a constant kind for everything that does not exist."""
    (imported.directory / "empty").mkdir()
    names = {
        "store": imported.store,
        "absent": imported.directory / "absent",
        "empty": imported.directory / "empty",
    }

    document = imported.json(*(word.format(**names) for word in words), code=ExitCode.NOT_FOUND)

    assert document["error"]["kind"] == kind  # type: ignore[index]
    imported.close()


def test_empty_workspace_is_no_error(tmp_path: Path) -> None:
    """A workspace without commits has an empty log and an empty root."""
    machine = Machine(tmp_path)
    machine.init()

    assert machine.json("log", machine.store)["commits"] == []
    assert machine.json("ls", machine.store)["entries"] == []
    exported = machine.json("export", machine.store, tmp_path / "out")
    assert (exported["commit"], exported["files"]) == (None, 0)
    assert b"main has no commits yet" in machine.start("export", machine.store, "-").stderr
    assert machine.json("sessions", machine.store) == {"sessions": []}
    assert machine.json("sessions", "--local") == {"sessions": []}


def test_unreadable_file_is_named_and_can_be_skipped(tmp_path: Path) -> None:
    """An import lands whole or not at all, unless it may leave out what it cannot read."""
    machine = Machine(tmp_path)
    machine.init()
    source = tmp_path / "src"
    source.mkdir()
    (source / "good").write_text("x")
    (source / "bad").write_text("x")
    (source / "bad").chmod(0)
    if os.access(source / "bad", os.R_OK):
        pytest.skip("this account may read everything")

    document = machine.json("import", machine.store, source, "-m", "x", code=ExitCode.FAILED)
    assert "bad" in document["error"]["message"]  # type: ignore[index]
    document = machine.json("import", machine.store, source, "-m", "x", "--skip-unreadable")
    assert [row["path"] for row in document["skipped"]] == ["bad"]  # type: ignore[attr-defined]


def test_broken_ref_is_damage_not_absence(imported: Machine) -> None:
    """A flipped byte in a ref gives exit code 6 and names the value."""
    path = imported.store / "refs" / "branches" / "main"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))

    document = imported.json("log", imported.store, code=ExitCode.DAMAGED)

    assert "refs/branches/main" in json.dumps(document)
