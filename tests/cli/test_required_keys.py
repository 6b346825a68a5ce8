"""A workspace that wants commits to say who made them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import Machine
from workspacefs.errors import ExitCode


@pytest.fixture
def demanding(tmp_path: Path) -> Machine:
    """A machine whose workspace wants an agent and a ticket."""
    made = Machine(tmp_path)
    assert made.json("init", made.store, "--require", "ticket,agent")["require"] == [
        "agent", "ticket",
    ]  # fmt: skip
    return made


def test_commit_must_say_what_is_required(demanding: Machine) -> None:
    """It is refused with what to do; then taken; and nothing was lost in between."""
    try:
        mount = demanding.mount()
        (mount.path / "f").write_text("data")
        answer = demanding.json(
            "commit", mount.path, "-m", "w", "--agent", "a", code=ExitCode.REFUSED
        )
        error = answer["error"]
        assert isinstance(error, dict)
        assert (error["kind"], error["context"]["missing"]) == ("commit.required", "ticket")
        assert "--meta ticket=VALUE" in error["message"]
        assert mount.status() == {"f": "added"}

        made = mount.commit("w", "--agent", "a", "--meta", "ticket=1")
        assert made["is_new"]
        (mount.path / "f").write_text("more")
        demanding.run("config", demanding.store, "--require", "")
        assert mount.commit("w")["is_new"]
    finally:
        demanding.close()


def test_landing_must_say_who_lands(demanding: Machine) -> None:
    """Keys of --meta are for commits that people make."""
    try:
        mount = demanding.mount()
        (mount.path / "f").write_text("data")
        mount.commit("w", "--agent", "a", "--meta", "ticket=1")
        demanding.run("merge", mount.path, "--into", "main", code=ExitCode.REFUSED)
        demanding.run("merge", mount.path, "--into", "main", "--agent", "a")
    finally:
        demanding.close()


def test_work_is_saved_without_it(demanding: Machine) -> None:
    """A pause is no commit."""
    try:
        mount = demanding.mount()
        (mount.path / "f").write_text("data")
        demanding.run("pause", mount.path)
        assert (demanding.resume().path / "f").read_text() == "data"
    finally:
        demanding.close()


def test_import_must_say_it(demanding: Machine, tmp_path: Path) -> None:
    """And nothing lands."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/f").touch()
    words = ("import", demanding.store, tmp_path / "tree", "-m", "m", "--agent", "a")

    demanding.run(*words, code=ExitCode.REFUSED)
    assert demanding.json("log", demanding.store)["commits"] == []
    demanding.run(*words, "--meta", "ticket=1")

    assert len(demanding.json("log", demanding.store)["commits"]) == 1  # type: ignore[arg-type]


def test_config_tells_and_refuses_what_is_no_key(demanding: Machine) -> None:
    """As a person reads it."""
    assert "agent, ticket" in demanding.run("config", demanding.store)
    demanding.run("config", demanding.store, "--require", "a b", code=ExitCode.USAGE)
    assert demanding.json("config", demanding.store)["require"] == ["agent", "ticket"]


def test_whoever_changes_a_session_or_accepts_must_say_who(demanding: Machine) -> None:
    """Merges into a session and accepted proposals are commits too."""
    who = ("--agent", "a", "--run", "r", "--meta", "ticket=1")
    try:
        mount = demanding.mount()
        (mount.path / "f").write_text("x")
        mount.commit("made", *who)
        made = demanding.json("propose", mount.path, "--into", "main", "-m", "take it", *who[:4])

        for words in (("update", mount.path), ("accept", mount.path, str(made["proposal"]))):
            error = demanding.json(*words, code=8)["error"]
            assert isinstance(error, dict)
            assert error["kind"] == "commit.required"
        demanding.run("accept", mount.path, str(made["proposal"]), *who[:4])
    finally:
        demanding.close()
