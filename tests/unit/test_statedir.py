"""The state directory and the settings: private, found where the user said, free of secrets."""

from __future__ import annotations

import json
import logging
import os
import stat
from pathlib import Path

import pytest

from workspacefs.config import daemon_environment, load_commit_defaults, load_state_dir
from workspacefs.errors import RefusedError, UnavailableError
from workspacefs.logs import install_log_file, set_aside_if_long
from workspacefs.statedir import StateDir, ensure_state_dir


def test_directories_are_private(tmp_path: Path) -> None:
    """All are made 0700, and one that was open to others is closed."""
    state = StateDir(str(tmp_path / "a" / "state"))
    (tmp_path / "a" / "state").mkdir(parents=True, mode=0o755)

    ensure_state_dir(state)

    for path in (state.root, state.run_dir, state.log_dir, state.sessions_dir):
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory away")
def test_directory_of_another_account_is_refused(tmp_path: Path) -> None:
    """We never put sockets where somebody else is the owner."""
    os.chown(tmp_path, 65534, 65534)

    with pytest.raises(RefusedError, match="65534"):
        ensure_state_dir(StateDir(str(tmp_path)))


def test_file_in_the_way_is_told(tmp_path: Path) -> None:
    """A state directory that cannot be made says which and why."""
    (tmp_path / "file").write_text("")

    with pytest.raises(UnavailableError, match="file/state"):
        ensure_state_dir(StateDir(str(tmp_path / "file" / "state")))


def test_state_dir_is_found_in_order() -> None:
    """Flag, then our variable, then XDG's, then the home directory; relative XDG is ignored."""
    environ = {"WORKSPACEFS_STATE_DIR": "/ours", "XDG_STATE_HOME": "/xdg"}

    assert load_state_dir(environ, "/flag").root == "/flag"
    assert load_state_dir(environ).root == "/ours"
    assert load_state_dir({"XDG_STATE_HOME": "/xdg"}).root == "/xdg/workspacefs"
    at_home = os.path.expanduser("~/.local/state/workspacefs")
    assert load_state_dir({"XDG_STATE_HOME": "relative"}).root == at_home


def test_daemon_inherits_no_secrets() -> None:
    """Keys, tokens and what tells of one run stay out of a process that outlives its caller."""
    environ = {
        "PATH": "/bin",
        "HOME": "/root",
        "AWS_SECRET_ACCESS_KEY": "canary",
        "GITHUB_TOKEN": "canary",
        "WORKSPACEFS_AGENT": "canary",
        "WORKSPACEFS_LOG_LEVEL": "debug",
    }

    inherited = daemon_environment(environ)

    assert "canary" not in inherited.values()
    assert inherited == {"PATH": "/bin", "HOME": "/root", "WORKSPACEFS_LOG_LEVEL": "debug"}


def test_environment_says_who_is_at_work() -> None:
    """Provenance has defaults from the environment."""
    found = load_commit_defaults({"WORKSPACEFS_AGENT": "a", "WORKSPACEFS_TOOL_CALL": "t"})

    assert (found.agent, found.run, found.tool_call, found.model) == ("a", "", "t", "")


def test_log_lines_are_json_with_fields(tmp_path: Path) -> None:
    """One document a line, private, with the fields of the event and the trace of an error."""
    path = tmp_path / "x.jsonl"
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    for handler in before:
        root.removeHandler(handler)
    try:
        install_log_file(str(path), role="test")
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            logging.getLogger("a.b").exception("it.failed", extra={"name_of": "x\n\udcff"})
    finally:
        for handler in list(root.handlers):
            root.removeHandler(handler)
            handler.close()
        for handler in before:
            root.addHandler(handler)
        root.setLevel(level)

    (line,) = path.read_text().splitlines()
    document = json.loads(line)
    assert document["event"] == "it.failed"
    assert document["name_of"] == "x\n\udcff"
    assert (document["role"], document["level"]) == ("test", "error")
    assert "ZeroDivisionError" in document["trace"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_long_log_is_set_aside(tmp_path: Path) -> None:
    """Past the limit the file gets another name; an absent one is no error."""
    path = tmp_path / "x.jsonl"
    set_aside_if_long(str(path), limit_bytes=3)
    path.write_text("four")

    set_aside_if_long(str(path), limit_bytes=3)

    assert not path.exists()
    assert (tmp_path / "x.jsonl.1").read_text() == "four"
