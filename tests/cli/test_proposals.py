"""Proposals from a mount to the branch, on the command line."""

from __future__ import annotations

import pytest

from tests.harness import Machine, Mount
from tests.s3_machine import S3Machine
from workspacefs.errors import ExitCode


def proposed(machine: Machine, mount: Mount, *words: str) -> str:
    """Propose what a mount has committed; return the proposal's id."""
    document = machine.json("propose", mount.path, "--into", "main", "-m", "please look", *words)
    return str(document["proposal"])


def begin(machine: Machine) -> Mount:
    """Return a session with a commit that main, which has moved on, does not have."""
    seed = machine.mount("seed", session="seed")
    (seed.path / "f").write_text("1\n")
    (seed.path / "g").write_text("1\n")
    seed.commit("base", "--into", "main")
    mount = machine.mount("m", session="s")
    (seed.path / "f").write_text("1\nmain\n")
    seed.commit("more", "--into", "main")
    (mount.path / "g").write_text("2\n")
    (mount.path / "h").write_text("new\n")
    mount.commit("work")
    return mount


def check_proposals(machine: Machine) -> None:
    """Propose, list, look, accept in part, propose the rest, reject."""
    mount = begin(machine)
    (mount.path / "later").write_text("x")
    first = proposed(machine, mount, "--agent", "coder-1")

    (row,) = machine.json("review", machine.store)["proposals"]  # type: ignore[misc]
    assert (row["proposal"], row["state"], row["agent"]) == (first, "open", "coder-1")
    assert (row["session"], row["message"]) == ("s", "please look")
    shown = machine.run("review", machine.store, first)
    assert "+new\n" in shown
    assert "later" not in shown
    assert "no conflict with main" in shown
    landed = machine.json("accept", machine.store, first, "--paths", "h", "-m", "only h")
    assert (landed["landed_on"], landed["state"]) == ("main", "accepted")
    newest = machine.json("log", machine.store, "-n", "1")["commits"][0]  # type: ignore[index]
    assert newest["meta"]["proposal"] == first
    assert newest["message"] == f"accept {first} into main in part: please look\n\nonly h"
    assert machine.run("cat", machine.store, "g") == "1\n"
    assert machine.run("cat", machine.store, "f") == "1\nmain\n"
    again = machine.json("accept", machine.store, first, code=ExitCode.MOVED)
    assert again["error"]["kind"] == "proposal.decided"  # type: ignore[index]

    second = proposed(machine, mount)
    machine.run("reject", machine.store, second, "-m", "no tests")
    assert "no tests" in machine.run("review", machine.store, "--all")
    assert machine.json("review", machine.store)["proposals"] == []
    third = proposed(machine, mount)
    machine.run("propose", machine.store, "--withdraw", third, "-m", "wrong")
    fourth = machine.json("propose", machine.store, "s", "--into", "main", "-m", "by name")
    machine.run("accept", machine.store, str(fourth["proposal"]))
    assert machine.run("cat", machine.store, "g") == "2\n"
    states = {
        row["proposal"]: row["state"]
        for row in machine.json("review", machine.store, "--all")["proposals"]  # type: ignore[attr-defined]
    }
    assert sorted(states.values()) == ["accepted", "accepted", "rejected", "withdrawn"]
    assert "propose: proposal" in machine.run("oplog", machine.store, "-n", "50")


def test_proposals_in_a_directory(machine: Machine) -> None:
    """Each step by its command, and what the others say of it."""
    check_proposals(machine)


def test_proposals_in_a_bucket(s3: S3Machine) -> None:
    """As in a directory."""
    check_proposals(s3)


def test_agent_without_keys_may_propose(s3: S3Machine) -> None:
    """The session does it: a sandbox need not be able to reach the store."""
    mount = begin(s3)
    s3.variables = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    proposal = proposed(s3, mount)
    s3.variables = {}

    assert s3.json("review", s3.store, proposal)["state"] == "open"


def test_conflicts_are_told_and_nothing_lands(machine: Machine) -> None:
    """Exit code 5; review shows them, with their kinds."""
    mount = begin(machine)
    (mount.path / "f").write_text("1\nother\n")
    mount.commit("clash")
    proposal = proposed(machine, mount)
    before = machine.json("log", machine.store)["commits"]

    refused = machine.json("accept", mount.path, proposal, code=ExitCode.MOVED)

    assert refused["landed_on"] is None
    assert [row["kind"] for row in refused["conflicts"]] == ["content"]  # type: ignore[attr-defined]
    assert machine.json("log", machine.store)["commits"] == before
    shown = machine.run("review", mount.path, proposal)
    assert "content " in shown
    assert "cannot land like this" in shown
    assert machine.json("review", machine.store, proposal)["state"] == "open"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["accept", "{store}"], ExitCode.USAGE),
        (["accept", "{store}", "p-00000000"], ExitCode.NOT_FOUND),
        (["accept", "{store}", "p-00000000", "--paths", "../x"], ExitCode.USAGE),
        (["reject", "{store}", "p-00000000", "-m", " "], ExitCode.USAGE),
        (["review", "{store}", "p-00000000"], ExitCode.NOT_FOUND),
        (["propose", "{store}", "main", "--into", "x", "-m", "w"], ExitCode.NOT_FOUND),
    ],
)
def test_nonsense_is_told(machine: Machine, words: list[str], code: ExitCode) -> None:
    """With the exit code of what is wrong."""
    document = machine.json(*(word.format(store=machine.store) for word in words), code=code)

    assert document["error"]


def test_session_without_commits_has_nothing_to_propose(machine: Machine) -> None:
    """It says what makes some."""
    mount = machine.mount()

    document = machine.json(
        *("propose", mount.path, "--into", "main", "-m", "x"), code=ExitCode.REFUSED
    )

    assert "commit -m WHY" in document["error"]["message"]  # type: ignore[index]
