"""The command line before any work is done: help, errors, exit codes, start-up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workspacefs.cli.main import COMMANDS, main
from workspacefs.client.mounting import with_reason
from workspacefs.errors import ExitCode, UnavailableError


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command explains itself and shows how it is used."""
    code = main([command, "--help"])

    said = capsys.readouterr().out
    assert code == ExitCode.OK
    assert f"workspacefs {command}" in said.partition("example:")[2]
    assert "--json" in said
    assert "--state-dir" in said


def test_no_command_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever types nothing learns what there is."""
    main(["--help"])

    said = capsys.readouterr().out
    assert all(f"  {command} " in said for command in COMMANDS)


def test_misspelt_command_is_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    """A typo gets the right word."""
    code = main(["comit"])

    assert code == ExitCode.USAGE
    assert "did you mean commit?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["nonsense"], "usage.command"),
        (["mount"], "usage.arguments"),
        (["commit", "-m", "x", "--meta", "novalue"], "usage.arguments"),
        (["mount", "./s", "/m", "--at", "main"], "usage.at"),
        (["ls", "s3://user:secret@bucket/x"], "store.url"),
        (["export", "./s", "-"], "usage.output"),
    ],
)
def test_wrong_usage_is_json_too(
    words: list[str], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under --json even arguments that make no sense give one document and exit code 2."""
    code = main([*words, "--json"])

    said = capsys.readouterr()
    document = json.loads(said.out)
    assert code == ExitCode.USAGE == document["error"]["exit_code"]
    assert document["error"]["kind"] == kind
    assert said.err == ""


@pytest.mark.parametrize("command", ["status", "commit", "mount", "umount", "diff"])
def test_start_up_loads_little(command: str) -> None:
    """What every command waits for holds no heavy module; each costs 5 ms and more."""
    program = (
        "import sys; before = set(sys.modules); from workspacefs.cli.main import _load; "
        f"_load({command!r}); print(*set(sys.modules) - before)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    heavy = {
        "boto3",
        "dataclasses",
        "logging",
        "inspect",
        "lmdb",
        "zstandard",
        "blake3",
        "trio",
        "tqdm",
    }
    if command != "umount":
        heavy |= {"subprocess", "ctypes"}
    assert not heavy & set(done.stdout.split())


def test_module_can_be_run() -> None:
    """python -m workspacefs.cli is the command."""
    done = subprocess.run(
        [sys.executable, "-m", "workspacefs.cli", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.startswith("workspacefs ")


def test_reader_that_leaves_is_no_error() -> None:
    """`workspacefs … | head` ends without a traceback."""
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m workspacefs.cli --help | true"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert "Traceback" not in done.stderr


def test_reason_of_fusermount_is_told(tmp_path: Path) -> None:
    """What it said of this mount, not of an earlier one."""
    said = tmp_path / "said"
    said.write_text("fusermount3: earlier\n")
    before = said.stat().st_size
    with said.open("a") as file:
        file.write("Trace\nfusermount3: option allow_other only allowed if ...\n")
    error = UnavailableError("/m cannot be mounted", kind="mount.refused", mountpoint="/m")

    told = with_reason(error, str(said), before)

    assert str(told) == "fusermount3: option allow_other only allowed if ... (/m cannot be mounted)"
    assert told.context == {"mountpoint": "/m"}
