"""Programs that show the objects of a bucket as files: rclone and s3fs.

Both get options that their manuals advise for such a use, not the slowest defaults.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

from bench.failures import BenchError, TimeUpError
from bench.machine import find_program, is_mounted, remove_tree
from bench.processes import attempt, find_by_arguments, run_tool
from bench.s3.server import REGION
from bench.s3.site import Site
from bench.s3.systems import S3JuiceFs, S3Plain, S3System, S3WorkspaceFs
from bench.s3.uploads import iter_directory, iter_synthetic, upload_all
from bench.synthetic import SyntheticWorkspace
from bench.systems import detach, end_processes, wait_for

_STEP_TIMEOUT_S: Final = 120.0
_TRANSFERS: Final = "32"
_IDLE_LOOKS: Final = 6
_HANDLES_END_S: Final = 7.0


class _Peer(S3System):
    """Base of both: how they are mounted, unmounted and cleaned up."""

    program_name: str

    def __init__(self, home: Path, site: Callable[[], Site]) -> None:
        super().__init__(home, site)
        self._program = find_program(self.program_name)
        self._cache = home / "cache"

    def _last_output(self) -> str:
        return (self.home / "output").read_text(errors="replace").strip()[-400:]

    @abstractmethod
    def _mount_command(self) -> list[str | os.PathLike[str]]:
        """Return the command that mounts in the background."""

    def mount(self) -> None:
        self._cache.mkdir(exist_ok=True)
        # What goes to the background keeps standard output and error: a pipe would never end.
        with open(self.home / "output", "ab") as output:
            done = subprocess.run(
                self._mount_command(),
                env={**os.environ, **self.environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=_STEP_TIMEOUT_S,
                check=False,
            )
        if done.returncode:
            raise BenchError(f"{self.name} does not mount: {self._last_output()}")
        wait_for(
            lambda: is_mounted(self.mountpoint), _STEP_TIMEOUT_S, f"{self.name} does not mount"
        )

    def unmount(self) -> None:
        run_tool(["fusermount3", "-u", self.mountpoint], timeout_s=_STEP_TIMEOUT_S)
        wait_for(lambda: not self.pids(), _STEP_TIMEOUT_S, f"{self.name} does not end")

    def empty_caches(self) -> None:
        remove_tree(self._cache)

    def pids(self) -> list[int]:
        return find_by_arguments(self._program, str(self.mountpoint))

    def put_synthetic(self, tree: SyntheticWorkspace) -> None:
        uploads = iter_synthetic(tree)
        upload_all(self.site.server, self.bucket, uploads, self.prepare_budget_s)

    def _closing_steps(self) -> list[Callable[[], object]]:
        return [
            self.calm,
            lambda: is_mounted(self.mountpoint) and attempt(self.unmount),
            lambda: end_processes(self.pids()),
            lambda: detach(self.mountpoint),
            *super()._closing_steps(),
        ]


class Rclone(_Peer):
    """rclone mount with its full cache of files."""

    name = "rclone"
    program_name = "rclone"

    def create(self) -> None:
        super().create()
        self.environ = self._environ_for(self.endpoint)

    def _mount_command(self) -> list[str | os.PathLike[str]]:
        # Times of objects instead of times in metadata save a request for each file. A pause
        # before uploads would be measured; without any, rclone does not tell how many wait.
        return [
            self._program, "mount", f"bench:{self.bucket}", self.mountpoint, "--daemon",
            "--vfs-cache-mode", "full", "--cache-dir", self._cache, "--use-server-modtime",
            "--vfs-write-back", "10ms", "--transfers", _TRANSFERS, "--links",
            "--log-file", self.home / "log",
            "--rc", "--rc-no-auth", "--rc-addr", f"unix://{self._socket}",
        ]  # fmt: skip

    def mount(self) -> None:
        self._socket.unlink(missing_ok=True)
        super().mount()

    def settle(self) -> None:
        deadline = time.monotonic() + self.prepare_budget_s
        idle = 0
        while idle < _IDLE_LOOKS:  # a file is queued a moment after it was closed
            idle = 0 if self._uploads_waiting() else idle + 1
            if time.monotonic() > deadline:
                raise TimeUpError("uploads of rclone", self.prepare_budget_s)
            time.sleep(0.005)

    def rest(self) -> None:
        # Handles live on for 5 s; what is cached of a file is noted when they end.
        time.sleep(_HANDLES_END_S)

    def pids(self) -> list[int]:
        return find_by_arguments(self._program, f"bench:{self.bucket}")

    def put_directory(self, source: Path) -> None:
        environ = self._environ_for(self.site.server.endpoint)
        self._copy(source, environ, self.prepare_budget_s)

    def import_directory(self, source: Path, timeout_s: float) -> None:
        self._copy(source, self.environ, timeout_s)

    def version(self) -> str:
        return run_tool([self._program, "version"]).decode().split()[1]

    @property
    def _socket(self) -> Path:
        return self.home / "rc.sock"

    def _copy(self, source: Path, environ: Mapping[str, str], timeout_s: float) -> None:
        words = ("--links", "--fast-list", "--transfers", _TRANSFERS, "--checkers", _TRANSFERS)
        command = [self._program, "copy", str(source), f"bench:{self.bucket}", *words]
        run_tool(command, environ=environ, timeout_s=timeout_s)

    def _environ_for(self, endpoint: str) -> dict[str, str]:
        config = {
            "TYPE": "s3", "PROVIDER": "SeaweedFS", "ENV_AUTH": "true", "ENDPOINT": endpoint,
            "REGION": REGION, "FORCE_PATH_STYLE": "true", "NO_CHECK_BUCKET": "true",
        }  # fmt: skip
        return {
            **self.site.server.environ,
            "RCLONE_CONFIG": os.devnull,
            **{f"RCLONE_CONFIG_BENCH_{name}": value for name, value in config.items()},
        }

    def _uploads_waiting(self) -> int:
        found = _ask_socket(self._socket, "/vfs/stats").get("diskCache")
        if not isinstance(found, dict):
            raise BenchError("rclone does not say how many uploads wait")
        return int(found["uploadsInProgress"]) + int(found["uploadsQueued"])


class S3fs(_Peer):
    """s3fs with its cache of files."""

    name = "s3fs"
    program_name = "s3fs"

    def _mount_command(self) -> list[str | os.PathLike[str]]:
        passwords = self.home / "passwd"
        passwords.touch(0o600)
        keys = self.environ["AWS_ACCESS_KEY_ID"], self.environ["AWS_SECRET_ACCESS_KEY"]
        passwords.write_text(":".join(keys))
        options = (
            f"url={self.endpoint}", "use_path_request_style", f"endpoint={REGION}",
            f"passwd_file={passwords}", f"use_cache={self._cache}",
        )  # fmt: skip
        return [self._program, self.bucket, self.mountpoint, "-o", ",".join(options)]

    def settle(self) -> None:
        return  # close() returns when the object is stored

    def put_directory(self, source: Path) -> None:
        uploads = iter_directory(source)
        upload_all(self.site.server, self.bucket, uploads, self.prepare_budget_s)

    def import_directory(self, source: Path, timeout_s: float) -> None:
        self.mount()
        run_tool(["cp", "-a", f"{source}/.", self.mountpoint], timeout_s=timeout_s)

    def version(self) -> str:
        return run_tool([self._program, "--version"]).decode().split("V", 1)[1].split()[0]


def without_site() -> Site:
    """Stand in for the site where a system is only asked whether it is there."""
    raise BenchError("no server has been started")


def _ask_socket(path: Path, question: str) -> dict[str, object]:
    connection = HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.connect(str(path))
        connection.request("POST", question)
        answer = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return answer if isinstance(answer, dict) else {}


Kind = Callable[[Path, Callable[[], Site]], S3System]
S3_KINDS: Final[Mapping[str, Kind]] = {
    "ext4": S3Plain,
    "workspacefs": S3WorkspaceFs,
    "juicefs": S3JuiceFs,
    "rclone": Rclone,
    "s3fs": S3fs,
}
