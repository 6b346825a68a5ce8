"""Agents that work beside each other land on one branch: nothing of anybody is lost."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.harness import Machine, Mount, tree_of

LINES = [f"line {number}\n" for number in range(40)]


def begin(machine: Machine) -> Mount:
    """Return a session that has landed a few files on main."""
    seed = machine.mount("seed", session="seed")
    (seed.path / "text").write_text("".join(LINES))
    (seed.path / "d").mkdir()
    for number in range(5):
        (seed.path / f"d/f{number}").write_text(f"file {number}\n")
    seed.commit("base", "--into", "main")
    return seed


def at_main(machine: Machine, *words: str) -> str:
    """Return a file of main."""
    return machine.run("cat", f"{machine.store}@main", *words)


def log_of(machine: Machine) -> list[dict[str, object]]:
    """Return the commits of main, newest first."""
    rows = machine.json("log", machine.store)["commits"]
    assert isinstance(rows, list)
    return rows


def test_changes_of_both_sides_are_on_the_branch(machine: Machine) -> None:
    """Edits of other lines of one file, a rename, an addition; the sessions stay as they are."""
    begin(machine)
    one, two = machine.mount("one", session="one"), machine.mount("two", session="two")
    (one.path / "text").write_text("".join(["first\n", *LINES[1:]]))
    (one.path / "d").rename(one.path / "e")
    one.commit("one", "--into", "main")
    (two.path / "text").write_text("".join([*LINES[:-1], "last\n"]))
    (two.path / "d/f1").write_text("edited\n")
    (two.path / "d/new").write_text("added\n")
    before = tree_of(two.path)

    answer = two.commit("two", "--into", "main", "--agent", "a2")

    assert answer["landed_on"] == "main"
    assert answer["is_merge"] is True
    assert at_main(machine, "text") == "".join(["first\n", *LINES[1:-1], "last\n"])
    assert at_main(machine, "e/f1") == "edited\n"
    assert at_main(machine, "e/new") == "added\n"
    assert "d" not in machine.run("ls", f"{machine.store}@main").split()
    assert tree_of(two.path) == before
    merge, *rest = log_of(machine)
    assert merge["commit"] == answer["branch_commit"]
    assert merge["agent"] == "a2"
    assert [row["message"] for row in rest] == ["two", "one", "base"]
    fresh = machine.mount("fresh", session="fresh")
    assert (fresh.path / "e/new").read_text() == "added\n"


def test_what_was_committed_lands_later(machine: Machine) -> None:
    """`merge --into`: again and again, with uncommitted work beside, and when it is there."""
    begin(machine)
    one, two = machine.mount("one", session="one"), machine.mount("two", session="two")
    for number in range(3):
        (one.path / f"one{number}").write_text("1")
        one.commit(f"one {number}", "--into", "main")
        (two.path / f"two{number}").write_text("2")
        two.commit(f"two {number}")
        (two.path / "not yet").write_text(f"{number}")

        landed = machine.json("merge", "--into", "main", two.path)

        assert (landed["is_moved"], landed["has_changes"]) == (True, True)
    again = machine.json("merge", "--into", "main", two.path)
    names = machine.run("ls", f"{machine.store}@main").split()

    assert (again["landed_on"], again["is_moved"]) == ("main", False)
    assert {f"one{n}" for n in range(3)} | {f"two{n}" for n in range(3)} < set(names)
    assert (two.path / "not yet").read_text() == "2"
    assert two.status() == {"not yet": "modified"}


def test_conflict_lands_nothing_and_can_be_settled(machine: Machine) -> None:
    """Every path is told with its kind; once the session has what both need, it lands."""
    begin(machine)
    one, two = machine.mount("one", session="one"), machine.mount("two", session="two")
    (one.path / "text").write_text("".join(["ours\n", *LINES[1:]]))
    (one.path / "d/f1").unlink()
    one.commit("one", "--into", "main")
    (two.path / "text").write_text("".join(["theirs\n", *LINES[1:]]))
    (two.path / "d/f1").write_text("edited\n")
    (two.path / "free").write_text("of conflicts")
    two.commit("two")
    before = log_of(machine)

    refused = machine.json("merge", "--into", "main", two.path, code=5)

    assert refused["landed_on"] is None
    assert log_of(machine) == before
    rows = refused["conflicts"]
    assert isinstance(rows, list)
    assert [(row["path"], row["kind"]) for row in rows] == [
        ("d/f1", "modify/delete"),
        ("text", "content"),
    ]
    assert rows[0]["theirs"] is None
    assert {rows[1][side]["path"] for side in ("base", "ours", "theirs")} == {"text"}
    assert len({rows[1][side]["id"] for side in ("base", "ours", "theirs")}) == 3
    told = machine.start("merge", "--into", "main", two.path)
    assert told.returncode == 5
    assert b"modify/delete   d/f1" in told.stdout
    (two.path / "text").write_text("".join(["ours\n", *LINES[1:]]))
    (two.path / "d/f1").unlink()
    assert two.commit("settled", "--into", "main")["landed_on"] == "main"
    assert at_main(machine, "free") == "of conflicts"


def test_session_without_commits_has_nothing_to_land(machine: Machine, mount: Mount) -> None:
    """It says what to do instead."""
    (mount.path / "f").write_text("x")

    refused = machine.start("merge", "--into", "main", mount.path)

    assert refused.returncode == 8
    assert b"workspacefs commit -m WHY --into main" in refused.stderr


@pytest.mark.parametrize("agents", [6])
def test_agents_that_land_at_once_all_land(machine: Machine, agents: int) -> None:
    """Each adds to a file of its own and to a shared one; all of it is in the end on main."""
    begin(machine)
    mounts = [machine.mount(f"m{number}", session=f"s{number}") for number in range(agents)]
    rounds = 3

    def work(number: int) -> None:
        mount = mounts[number]
        for at in range(rounds):
            (mount.path / f"own{number}-{at}").write_text(f"{number} {at}")
            text = (mount.path / "text").read_text().splitlines(keepends=True)
            text[number * 6 + at] = f"agent {number} in round {at}\n"
            (mount.path / "text").write_text("".join(text))
            assert mount.commit(f"{number} {at}", "--into", "main")["landed_on"] == "main"

    with ThreadPoolExecutor(agents) as threads:
        list(threads.map(work, range(agents)))

    wanted = list(LINES)
    for number in range(agents):
        for at in range(rounds):
            wanted[number * 6 + at] = f"agent {number} in round {at}\n"
            assert at_main(machine, f"own{number}-{at}") == f"{number} {at}"
    assert at_main(machine, "text") == "".join(wanted)
    messages = [row["message"] for row in log_of(machine)]
    assert {f"{number} {at}" for number in range(agents) for at in range(rounds)} < set(messages)
    (exported := Path(machine.directory) / "exported").mkdir()
    machine.run("export", f"{machine.store}@main", exported)
    assert len(os.listdir(exported)) == agents * rounds + 2
