"""SeaweedFS as the S3 server: one process on loopback, everything in one directory."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final
from urllib.parse import quote
from xml.etree import ElementTree

from bench.failures import BenchError
from bench.machine import find_program, remove_tree
from bench.processes import run_tool

HOST: Final = "127.0.0.1"
REGION: Final = "us-east-1"
_START_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S: Final = 2.0
_REQUEST_TIMEOUT_S: Final = 120.0
_OK_MAX: Final = 299
_ROLES: Final = ("master", "volume", "filer", "s3")


class SeaweedFs:
    """The server. Signed requests are checked; the harness prepares with unsigned ones."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._program = find_program("weed")
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: list[int] = []
        self.port = 0
        self.environ = {
            "AWS_ACCESS_KEY_ID": "AK" + secrets.token_hex(9).upper(),
            "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20),
            "AWS_REGION": REGION,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        """What gives programs access."""

    @property
    def endpoint(self) -> str:
        """Its URL, without a link between."""
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it stores what it is given."""
        self._home.mkdir(parents=True)
        ports = _free_ports(2 * len(_ROLES))
        http, grpc = ports[: len(_ROLES)], ports[len(_ROLES) :]
        self.port = http[-1]
        self._ports = ports
        with open(self._home / "log", "wb") as log:
            self._process = subprocess.Popen(
                self._command(http, grpc),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Buckets are collections, and would begin with seven volumes each.
                env={**os.environ, "WEED_MASTER_VOLUME_GROWTH_COPY_1": "2"},
                start_new_session=True,
            )
        self._wait_until_ready()

    def close(self) -> None:
        """End it and remove what it stored."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for port in self._ports:  # SeaweedFS 4 leaves sockets there, whatever its options say
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)
        remove_tree(self._home)

    def version(self) -> str:
        """Return its version."""
        found = re.search(r"\d+\.\d+\S*", run_tool([self._program, "version"]).decode())
        return found[0] if found else ""

    def new_bucket(self) -> str:
        """Make an empty bucket."""
        name = f"bench-{secrets.token_hex(4)}"
        self.request("PUT", f"/{name}")
        return name

    def remove_bucket(self, bucket: str) -> None:
        """Remove a bucket and all in it."""
        self.request("DELETE", f"/{bucket}")

    def stored_bytes(self, bucket: str) -> int:
        """Return the length of all objects of a bucket together."""
        total, token = 0, ""
        while True:
            path = f"/{bucket}?list-type=2&max-keys=1000" + (token and "&continuation-token=")
            page = ElementTree.fromstring(self.request("GET", path + quote(token, safe="")))
            total += sum(int(size.text or 0) for size in page.iterfind("{*}Contents/{*}Size"))
            token = page.findtext("{*}NextContinuationToken") or ""
            if not token:
                return total

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Send one unsigned request, raise BenchError unless it succeeds, return the answer."""
        with self.connection() as connection:
            return exchange(connection, method, path, body)

    @contextmanager
    def connection(self) -> Iterator[HTTPConnection]:
        """Open a connection for `exchange`."""
        connection = HTTPConnection(HOST, self.port, timeout=_REQUEST_TIMEOUT_S)
        try:
            yield connection
        finally:
            connection.close()

    def _command(self, http: list[int], grpc: list[int]) -> list[str]:
        config = self._home / "s3.json"
        credentials = {
            "accessKey": self.environ["AWS_ACCESS_KEY_ID"],
            "secretKey": self.environ["AWS_SECRET_ACCESS_KEY"],
        }
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        identities = [
            {"name": "bench", "credentials": [credentials], "actions": actions},
            {"name": "anonymous", "actions": actions},
        ]
        config.write_text(json.dumps({"identities": identities}))
        return [
            self._program, "server", f"-dir={self._home}", f"-ip={HOST}", f"-ip.bind={HOST}",
            "-master.telemetry=false", "-master.volumeSizeLimitMB=1024",
            "-master.electionTimeout=1s", "-master.peers=none",
            "-volume.max=200", "-volume.preStopSeconds=0",
            "-s3", f"-s3.config={config}", "-s3.port.iceberg=0", "-s3.port.lance=0",
            f"-filer.localSocket={self._home / 'filer.sock'}",
            f"-s3.localSocket={self._home / 's3.sock'}",
            *(f"-{role}.port={port}" for role, port in zip(_ROLES, http, strict=True)),
            *(f"-{role}.port.grpc={port}" for role, port in zip(_ROLES, grpc, strict=True)),
        ]  # fmt: skip

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_TIMEOUT_S
        problem = ""
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                bucket = self.new_bucket()
                self.request("PUT", f"/{bucket}/ready", b"ready")
                self.remove_bucket(bucket)
            except (BenchError, OSError, HTTPException) as exc:
                problem = str(exc)
                time.sleep(0.1)
            else:
                return
        raise BenchError(f"SeaweedFS does not start ({problem}); see {self._home / 'log'}")


def exchange(
    connection: HTTPConnection,
    method: str,
    path: str,
    body: object = None,
    headers: dict[str, str] | None = None,
) -> bytes:
    """Send a request on a connection and return the answer's body.

    Raises:
        BenchError: The server does not answer with success.
    """
    connection.request(method, path, body, headers or {})  # type: ignore[arg-type]  # or a file
    answer = connection.getresponse()
    data = answer.read()
    if answer.status > _OK_MAX:
        raise BenchError(f"{method} {path}: {answer.status} {data[:200]!r}")
    return data


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [int(bound.getsockname()[1]) for bound in sockets]
    for bound in sockets:
        bound.close()
    return ports
