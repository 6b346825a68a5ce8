"""Branches and tags by the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_s3_store import Shell
from tests.harness import Machine
from tests.servers import Server
from workspacefs.errors import ExitCode


@pytest.fixture
def imported(tmp_path: Path) -> Machine:
    """A workspace with two commits on main."""
    machine = Machine(tmp_path)
    machine.init()
    source = tmp_path / "src"
    source.mkdir()
    for text in ("first", "second"):
        (source / "a").write_text(text)
        machine.run("import", machine.store, source, "-m", f"{text}\n\nand why")
    return machine


def commits_of(machine: Machine) -> list[str]:
    """Return the commits of main, the newest first."""
    return [row["commit"] for row in machine.json("log", machine.store)["commits"]]  # type: ignore[attr-defined]


def branches_of(machine: Machine, kind: str = "branch", plural: str = "branches") -> dict[str, str]:
    """Return commit by name."""
    rows = machine.json(kind, machine.store)[plural]
    return {row[kind]: row["commit"] for row in rows}  # type: ignore[attr-defined]


def newest_operation(machine: Machine) -> str:
    """Return the id of what happened last."""
    return str(machine.json("oplog", machine.store)["operations"][0]["operation"])  # type: ignore[index]


def test_branches_are_listed_with_who_and_why(imported: Machine) -> None:
    """Name, commit, when, who, and the first line of the message; all of it as JSON."""
    second, first = commits_of(imported)

    made = imported.json("branch", "create", imported.store, "release/1", "main~1")

    assert (made["branch"], made["commit"], made["is_new"]) == ("release/1", first, True)
    assert branches_of(imported) == {"main": second, "release/1": first}
    (line,) = [
        line for line in imported.run("branch", imported.store).splitlines() if "release" in line
    ]
    assert line.startswith(f"release/1  {first[:12]}  20")
    assert line.endswith("  first")
    (row, _) = imported.json("branch", "list", imported.store)["branches"]  # type: ignore[misc]
    assert row["message"] == "second\n\nand why"
    assert {"moved", "moved_ns", "moved_by", "time", "author"} <= set(row)
    assert imported.json("log", imported.store, "release/1")["commits"][0]["commit"] == first  # type: ignore[index]


def test_branch_is_deleted_renamed_and_brought_back(imported: Machine) -> None:
    """What is done is told, and undone by its operation."""
    second, first = commits_of(imported)
    imported.run("branch", "create", f"{imported.store}@main~1", "old")

    assert "called new now" in imported.run("branch", "rename", imported.store, "old", "new")
    assert branches_of(imported) == {"main": second, "new": first}
    undone = imported.json("undo", imported.store, "--op", newest_operation(imported))
    assert (undone["name"], undone["head"]) == ("old", first)
    assert branches_of(imported) == {"main": second, "old": first}
    assert f"at {first[:12]}" in imported.run("branch", "delete", imported.store, "old")
    assert branches_of(imported) == {"main": second}
    said = imported.run("undo", imported.store, "--op", newest_operation(imported))
    assert said == f"undid delete: branch old is at {first[:12]}\n"
    said = imported.run("undo", imported.store, "--op", newest_operation(imported))
    assert said == "undid undo: there is no branch old any more\n"


def test_last_way_to_commits_needs_force(imported: Machine) -> None:
    """Exit code 8, with words that say how."""
    words = ("branch", "delete", imported.store, "main")

    document = imported.json(*words, code=ExitCode.REFUSED)

    assert document["error"]["kind"] == "ref.last"  # type: ignore[index]
    assert "--force" in document["error"]["message"]  # type: ignore[index]
    imported.run(*words, "--force")
    assert branches_of(imported) == {}
    assert imported.json("log", imported.store)["commits"] == []
    imported.run("undo", imported.store, "--op", newest_operation(imported))
    assert len(commits_of(imported)) == 2


def test_tag_stays_where_it_is(imported: Machine) -> None:
    """Another commit is refused with exit code 4; the same one is no error."""
    second, first = commits_of(imported)
    imported.run("tag", "create", imported.store, "v1", "main~1")

    again = imported.json("tag", "create", imported.store, "v1", first[:12])
    refused = imported.json(
        "tag", "create", imported.store, "v1", "main", code=ExitCode.EXISTS_OR_BUSY
    )

    assert again["is_new"] is False
    assert refused["error"]["kind"] == "tag.exists"  # type: ignore[index]
    assert branches_of(imported, "tag", "tags") == {"v1": first}
    assert imported.run("cat", f"{imported.store}@v1", "a") == "first"
    imported.run("tag", "delete", imported.store, "v1")
    assert imported.run("tag", imported.store).startswith("no tags yet")
    imported.run("tag", "create", imported.store, "v1")
    assert branches_of(imported, "tag", "tags") == {"v1": second}


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [
        (["branch", "create", "{store}", "main"], ExitCode.EXISTS_OR_BUSY, "branch.exists"),
        (["branch", "create", "{store}", "a..b"], ExitCode.USAGE, "name.invalid"),
        (["branch", "create", "{store}", "x", "nope"], ExitCode.NOT_FOUND, "rev.absent"),
        (["branch", "create"], ExitCode.USAGE, "usage.words"),
        (["branch", "delete", "{store}", "mian"], ExitCode.NOT_FOUND, "branch.absent"),
        (["branch", "delete", "{store}", "a", "b"], ExitCode.USAGE, "usage.words"),
        (["branch", "topic"], ExitCode.USAGE, "usage.words"),
        (["branch", "create", "{store}", "x", "--force"], ExitCode.USAGE, "usage.arguments"),
        (["tag", "delete", "{store}", "v9"], ExitCode.NOT_FOUND, "tag.absent"),
        (["tag", "rename", "{store}", "v1", "v2"], ExitCode.USAGE, "usage.words"),
    ],
)
def test_what_makes_no_sense_is_told(
    imported: Machine, words: list[str], code: int, kind: str
) -> None:
    """With a constant kind, and nothing is changed."""
    document = imported.json(*(word.format(store=imported.store) for word in words), code=code)

    assert document["error"]["kind"] == kind  # type: ignore[index]
    assert list(branches_of(imported)) == ["main"]


def test_branch_begins_at_the_session_one_is_in(machine: Machine) -> None:
    """In a mount the newest commit of the session is meant, and names need no store."""
    mount = machine.mount()
    (mount.path / "a").write_text("x")
    commit = mount.commit()["commit"]

    made = machine.json("branch", "create", mount.path, "try-2")
    hidden = machine.start("branch", "create", mount.path, "s")

    assert made["commit"] == commit
    assert b"there is a session s, too" in hidden.stderr
    assert branches_of(machine) == {"s": commit, "try-2": commit}
    machine.run("branch", "delete", mount.path, "s")
    assert sorted(path.name for path in (mount.path / ".workspacefs/at").iterdir()) == [
        "s",  # the session
        "try-2",
    ]
    machine.run("branch", "delete", mount.path, "try-2")
    assert [path.name for path in (mount.path / ".workspacefs/at").iterdir()] == ["s"]


def test_branches_and_tags_of_a_bucket(
    seaweedfs: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a directory: made, listed, renamed, deleted, brought back."""
    shell = Shell(seaweedfs, tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a").write_text("x")
    url = seaweedfs.new_store()
    shell.run("init", url)
    commit = shell.json("import", url, "src", "-m", "first")["commit"]
    listed: Callable[[], list[object]] = lambda: [  # noqa: E731
        row["branch"]
        for row in shell.json("branch", url)["branches"]  # type: ignore[attr-defined]
    ]

    for number in range(3):
        shell.run("branch", "create", url, f"b{number}", "main")
    shell.run("branch", "rename", url, "b0", "c")
    shell.run("branch", "delete", url, "b1")

    assert listed() == ["b2", "c", "main"]
    operation = shell.json("oplog", url)["operations"][0]["operation"]  # type: ignore[index]
    shell.run("undo", url, "--op", operation)
    assert listed() == ["b1", "b2", "c", "main"]
    shell.run("tag", "create", url, "v1")
    assert shell.json("tag", "create", url, "v1")["is_new"] is False
    assert shell.json("tag", url)["tags"][0]["commit"] == commit  # type: ignore[index]


def test_proposal_is_no_way_to_commits(machine: Machine) -> None:
    """What only a rejected proposal has left is not deleted without a word."""
    mount = machine.mount(session="s")
    (mount.path / "base").write_text("base")
    mount.commit("base", "--into", "main")
    (mount.path / "f").write_text("f")
    head = str(mount.commit("alone")["commit"])
    machine.run("branch", "create", machine.store, "dev", head)
    made = machine.json("propose", mount.path, "--into", "main", "-m", "take it")
    machine.run("reject", machine.store, str(made["proposal"]), "-m", "no")
    mount.umount()
    machine.run("session", "delete", machine.store, "s", "--force")

    machine.run("branch", "delete", machine.store, "dev", code=8)

    machine.run("branch", "delete", machine.store, "dev", "--force")
