"""Commands on a workspace in an S3 store: as on a directory, with URLs that lead there again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import SECRET_KEY, Server
from workspacefs.errors import ExitCode


class Shell:
    """Runs the command line as a user would, with the keys of a server in the environment."""

    def __init__(self, server: Server, directory: Path) -> None:
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            **server.environ(),
            "WORKSPACEFS_STATE_DIR": str(directory / "state"),
        }
        self._directory = directory

    def run(self, *words: str, code: int = 0, **environ: str) -> str:
        """Run it and return its output; secrets must never be in it."""
        done = subprocess.run(
            [sys.executable, "-m", "workspacefs.cli", *words],
            capture_output=True,
            text=True,
            cwd=self._directory,
            env={**self._environ, **environ},
            timeout=120,
        )
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        assert SECRET_KEY not in said
        return said

    def json(self, *words: str, code: int = 0, **environ: str) -> dict[str, object]:
        document = json.loads(self.run(*words, "--json", code=code, **environ))
        assert isinstance(document, dict)
        return document


@pytest.fixture
def shell(seaweedfs: Server, tmp_path: Path) -> Shell:
    return Shell(seaweedfs, tmp_path)


def test_workspace_lives_in_a_bucket(shell: Shell, seaweedfs: Server, tmp_path: Path) -> None:
    """From init to export; the endpoint by flag, by environment or in the URL."""
    (tmp_path / "src" / "d").mkdir(parents=True)
    (tmp_path / "src" / "d" / "hello").write_text("hello\n")
    bare = seaweedfs.new_store().partition("?")[0]
    full = f"{bare}?endpoint_url={seaweedfs.url}"

    made = shell.json("init", bare, "--endpoint-url", seaweedfs.url)
    shell.run("import", bare, "src", "-m", "first", AWS_ENDPOINT_URL_S3=seaweedfs.url)
    listed = shell.json("ls", "-R", full + "@main")
    shell.run("export", full, "out")

    assert made["url"] == listed["url"] == full
    assert "d/hello" in json.dumps(listed["entries"])
    assert shell.run("cat", full, "d/hello") == "hello\n"
    assert (tmp_path / "out" / "d" / "hello").read_text() == "hello\n"
    assert "first" in shell.run("log", full, "main")
    shell.run("init", full, code=ExitCode.EXISTS_OR_BUSY)


def test_wrong_bucket_and_wrong_keys_are_told(shell: Shell, seaweedfs: Server) -> None:
    """With the exit code of what is wrong, and words that say what to do."""
    full = seaweedfs.new_store()

    absent = shell.json("ls", full, code=ExitCode.NOT_FOUND)
    bucket = shell.json(
        "init", f"s3://no-such-bucket/p?endpoint_url={seaweedfs.url}", code=ExitCode.NOT_FOUND
    )
    keys = shell.json("ls", full, code=ExitCode.UNAVAILABLE, AWS_ACCESS_KEY_ID="AKIDWRONG")
    none = shell.json(
        *("ls", full), code=ExitCode.UNAVAILABLE, AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY=""
    )

    def kind_of(document: dict[str, object]) -> object:
        error = document["error"]
        assert isinstance(error, dict)
        return error["kind"]

    assert kind_of(absent) == "workspace.absent"
    assert kind_of(bucket) == "store.no_bucket"
    assert kind_of(keys) == kind_of(none) == "store.credentials"


def test_server_that_ignores_conditions_is_refused(rclone_s3: Server, tmp_path: Path) -> None:
    """init says why, and makes no workspace."""
    said = Shell(rclone_s3, tmp_path).run("init", rclone_s3.new_store(), code=ExitCode.REFUSED)

    assert "ignores conditions" in said
