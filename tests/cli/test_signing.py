"""Keys, signed commits of mounts and commands, and what `verify` says of a history."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import Machine
from tests.s3_machine import S3Machine
from workspacefs.errors import ExitCode


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings of an account that has none yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("WORKSPACEFS_SIGNING_KEY", raising=False)
    return tmp_path / "config" / "workspacefs"


def check_signing(machine: Machine, directory: Path) -> None:
    """All ways to make a commit of a history; verify counts them, and finds what is not signed."""
    source = directory / "src"
    source.mkdir()
    (source / "f").write_text("1\n")
    machine.run("import", machine.store, source, "-m", "before there was a key")
    made = machine.json("key", "new", "--name", "ana")
    assert machine.json("key", "show")["key"] == made["key"]
    one = machine.mount("one", session="one")
    two = machine.fork(one, "two", session="two")
    (one.path / "a").write_text("a\n")
    (two.path / "b").write_text("b\n")
    one.commit("a", "--into", "main")
    two.commit("b", "--into", "main")
    (one.path / "c").write_text("c\n")
    one.commit("c")
    proposal = machine.json("propose", one.path, "--into", "main", "-m", "c")["proposal"]
    machine.run("accept", machine.store, str(proposal))

    found = machine.json("verify", machine.store)

    assert found["ok"] is True
    assert found["bad"] == []
    assert found["unsigned"] == 1
    assert found["signers"] == [{"name": "ana", "key": made["key"], "commits": 5}]
    log = machine.json("log", machine.store)["commits"]
    assert isinstance(log, list)
    assert [row["signed_by"] for row in log] == [*[made["key"]] * 5, None]
    strict = machine.json("verify", machine.store, "--require-signed", code=ExitCode.REFUSED)
    assert strict["first_unsigned"] == log[-1]["commit"]
    machine.run("key", "distrust", "ana")
    assert machine.json("verify", machine.store)["untrusted"] == 5
    team = directory / "team"
    team.write_text(f"{made['key']} ana of the team\n")
    said = machine.run("verify", machine.store, "--trusted", team, "--contains", log[0]["commit"])
    assert "5 signed by ana of the team" in said
    cut = machine.json(
        *("verify", machine.store, "main~1", "--contains", log[0]["commit"]),
        code=ExitCode.DAMAGED,
    )
    assert [row["commit"] for row in cut["bad"]] == [log[0]["commit"]]  # type: ignore[attr-defined]


def test_history_of_a_directory(machine: Machine, tmp_path: Path) -> None:
    """Imports, commits, landings, accepted proposals."""
    check_signing(machine, tmp_path)


def test_history_of_a_bucket(s3: S3Machine, tmp_path: Path) -> None:
    """As of a directory."""
    check_signing(s3, tmp_path)


def test_key_that_went_bad_stops_commits_and_loses_nothing(machine: Machine, config: Path) -> None:
    """The mount says why; when the key is as it should be, the same commit goes through. Nothing
    of the key is in an argument list or a log.
    """
    machine.run("key", "new")
    key = config / "signing-key.pem"
    mount = machine.mount()
    (mount.path / "f").write_text("work\n")
    key.chmod(0o644)

    refused = mount.commit("w", "--into", "main", code=ExitCode.REFUSED)
    assert refused["error"]["kind"] == "key.permissions"  # type: ignore[index]
    assert mount.status() == {"f": "added"}
    again = machine.json("mount", machine.store, machine.directory / "x", "--mkdir", code=8)
    assert again["error"]["kind"] == "key.permissions"  # type: ignore[index]
    key.rename(key.with_suffix(".away"))
    refused = mount.commit("w", code=ExitCode.NOT_FOUND)
    assert refused["error"]["kind"] == "key.absent"  # type: ignore[index]
    key.with_suffix(".away").rename(key)
    key.chmod(0o600)
    assert mount.commit("w", "--into", "main")["landed_on"] == "main"

    assert machine.json("verify", machine.store, "--require-signed")["commits"] == 1
    secret = key.read_text().splitlines()[1]
    assert secret not in Path(f"/proc/{mount.pid}/cmdline").read_text()
    assert secret not in Path(f"/proc/{mount.pid}/environ").read_text(errors="replace")
    assert secret not in machine.log_tail()


def test_key_of_the_environment_wins_and_off_is_off(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must be there; the one among the settings counts if it is."""
    own = machine.json("key", "new")["key"]
    other = machine.json("key", "new", "--file", tmp_path / "k.pem", "--name", "bot")
    assert other["is_used"] is False
    source = tmp_path / "src"
    source.mkdir()

    def signer(number: int, code: int = 0) -> object:
        (source / "f").write_text(str(number))
        document = machine.json("import", machine.store, source, "-m", "x", code=code)
        return document.get("signed_by", document.get("error"))

    assert signer(1) == own
    monkeypatch.setenv("WORKSPACEFS_SIGNING_KEY", str(tmp_path / "k.pem"))
    assert signer(2) == other["key"]
    monkeypatch.setenv("WORKSPACEFS_SIGNING_KEY", "off")
    assert signer(3) is None
    monkeypatch.setenv("WORKSPACEFS_SIGNING_KEY", str(tmp_path / "nowhere.pem"))
    assert signer(4, code=ExitCode.NOT_FOUND)["kind"] == "key.absent"  # type: ignore[index]


def test_history_that_lost_a_pack_is_bad(machine: Machine, tmp_path: Path) -> None:
    """What is left is checked; the exit code is that of damage."""
    source = tmp_path / "src"
    source.mkdir()
    machine.run("key", "new")
    for number in range(3):
        (source / "f").write_text(str(number))
        machine.run("import", machine.store, source, "-m", f"{number}")
    oldest = min((machine.store / "packs").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    oldest.unlink()

    found = machine.json("verify", machine.store, code=ExitCode.DAMAGED)

    assert (found["commits"], found["signed"]) == (3, 2)
    assert len(found["bad"]) == 1  # type: ignore[arg-type]
    assert "BAD" in machine.run("verify", machine.store, code=ExitCode.DAMAGED)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["key", "trust", "ana", "0f"], ExitCode.USAGE),
        (["key", "distrust", "ana"], ExitCode.NOT_FOUND),
        (["key", "show"], ExitCode.NOT_FOUND),
        (["verify", "{store}", "--contains", "0f"], ExitCode.USAGE),
        (["verify", "{store}", "--trusted", "/nowhere"], ExitCode.NOT_FOUND),
    ],
)
def test_nonsense_is_told(machine: Machine, words: list[str], code: ExitCode) -> None:
    """With the exit code of what is wrong."""
    document = machine.json(*(word.format(store=machine.store) for word in words), code=code)

    assert document["error"]


def test_keys_are_listed(machine: Machine) -> None:
    """Those that were trusted, by name."""
    assert "nobody" in machine.run("key", "list")
    machine.run("key", "trust", "zoe", "0f" * 32)
    machine.run("key", "trust", "ana", "0e" * 32)

    assert machine.run("key", "list") == f"{'0e' * 32} ana\n{'0f' * 32} zoe\n"


def test_merge_into_a_session_is_signed(machine: Machine) -> None:
    """Its commit is part of the session's history as any."""
    machine.run("key", "new")
    one, two = machine.mount("one", session="one"), machine.mount("two", session="two")
    (one.path / "a").write_text("a\n")
    one.commit("a", "--into", "main")
    (two.path / "b").write_text("b\n")
    two.commit("b")

    merged = machine.json("merge", "--from", "main", two.path)

    assert merged["commit"]
    found = machine.json("verify", machine.store, "two", "--require-signed")
    assert (found["commit"], found["commits"], found["signed"]) == (merged["commit"], 3, 3)
