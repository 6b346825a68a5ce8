"""S3 servers that tests talk to: real programs and moto, on loopback, one of each a test run.

A server starts with the first test that asks for it and ends, by its process id, with the run.
What a test stores is its own: it takes a bucket nobody else has.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlencode, urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from moto.moto_server.threaded_moto_server import MotoRequestHandler
from moto.server import DomainDispatcherApplication, create_backend_app
from mypy_boto3_s3.client import S3Client
from werkzeug.serving import make_server
from werkzeug.wsgi import get_input_stream

READY_TIMEOUT_S: Final = 60.0
ACCESS_KEY: Final = "AKIDTESTSERVER"
_PR_SET_PDEATHSIG: Final = 1
SECRET_KEY: Final = "canary-secret-0123456789abcdefghij"
"""A secret that must turn up in no log, message or argument list."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running S3 server and the keys it takes."""

    url: str
    access_key: str
    secret_key: str
    bucket: str = ""
    """A bucket that is there; each test takes a prefix of its own in it."""

    def environ(self) -> dict[str, str]:
        """Return the variables that give a process access."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> S3Client:
        """Return a client of one's own, past the code under test."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name="us-east-1",
            config=Config(request_checksum_calculation="when_required"),
        )

    def new_bucket(self) -> str:
        """Make a bucket of a name that nobody else has."""
        name = "b" + secrets.token_hex(8)
        self.client().create_bucket(Bucket=name)
        return name

    def new_store(self, *, endpoint: str | None = None, **options: str) -> str:
        """Return the URL of a new, empty store; `endpoint`: by way of a proxy."""
        query = urlencode({"endpoint_url": endpoint or self.url, **options})
        return f"s3://{self.bucket}/{secrets.token_hex(8)}?{query}"


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(bound.getsockname()[1]) for bound in sockets]
    for bound in sockets:
        bound.close()
    return ports


@contextmanager
def running(command: list[str], *, log: Path, probe_url: str) -> Iterator[None]:
    """Run a server until the body ends; the body begins when it answers at `probe_url`."""
    with log.open("wb") as output:
        process = _spawn(command, output, log.parent)
        try:
            _wait_until_ready(process, probe_url, log)
            yield
        finally:
            process.kill()  # all that it keeps goes with the run
            process.wait()


def _spawn(command: list[str], output: IO[bytes], directory: Path) -> subprocess.Popen[bytes]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environ["TMPDIR"] = str(directory)
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=environ,
        preexec_fn=_die_with_parent,
    )


def _die_with_parent() -> None:
    """Let the kernel end the server when a test run is killed. Source: prctl(2)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    host = urlsplit(url).netloc
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        connection = HTTPConnection(host, timeout=5)
        try:
            connection.request("GET", "/")
            if connection.getresponse().status < 500:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.02)
    raise RuntimeError(f"{process.args!r} did not start:\n{log.read_text(errors='replace')}")


@contextmanager
def run_seaweedfs(directory: Path) -> Iterator[Server]:
    """Run SeaweedFS with its S3 gateway; everything it keeps lies in `directory`."""
    program = _program("weed")
    master, volume, filer, s3, *grpc = free_ports(8)
    config = directory / "s3.json"
    identity = {
        "name": "test",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config.write_text(json.dumps({"identities": [identity]}))
    command = [
        program,
        "server",
        f"-dir={directory}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=256",
        "-master.peers=none",
        "-volume.max=200",
        "-s3",
        f"-s3.config={config}",
        "-s3.autoCreateBucket=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-filer.localSocket={directory / 'filer.sock'}",
        f"-s3.localSocket={directory / 's3.sock'}",
        *(f"-{name}.port={port}" for name, port in _named(master, volume, filer, s3)),
        *(f"-{name}.port.grpc={port}" for name, port in _named(*grpc)),
    ]
    url = f"http://127.0.0.1:{s3}"
    try:
        with running(command, log=directory / "log", probe_url=url):
            yield Server(url, ACCESS_KEY, SECRET_KEY)
    finally:
        # SeaweedFS 4.48 puts these there whatever TMPDIR says.
        for name, port in _named(*grpc):
            Path(f"/tmp/seaweedfs-{name}-grpc-{port}.sock").unlink(missing_ok=True)


def _named(*ports: int) -> list[tuple[str, int]]:
    return list(zip(("master", "volume", "filer", "s3"), ports, strict=True))


@contextmanager
def run_moto() -> Iterator[Server]:
    """Run moto in threads of this process; it takes any keys."""
    app = _OneWriteAtATime(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Server(f"http://127.0.0.1:{server.server_port}", ACCESS_KEY, SECRET_KEY)
    finally:
        server.shutdown()
        thread.join()


class _OneWriteAtATime:
    """moto looks at the condition of a write, and then writes: two threads can both be let in."""

    def __init__(self, app: DomainDispatcherApplication) -> None:
        self._app = app
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if environ["REQUEST_METHOD"] not in ("PUT", "DELETE"):
            return self._app(environ, start_response)
        # All of the body first: whoever sends slowly holds up nobody.
        environ["wsgi.input"] = BytesIO(get_input_stream(environ).read())
        with self._lock:
            return self._app(environ, start_response)


@contextmanager
def run_rclone(directory: Path) -> Iterator[Server]:
    """Run rclone's S3 server, which takes conditions and ignores them."""
    (port,) = free_ports(1)
    content = directory / "content"
    content.mkdir()
    command = [
        _program("rclone"),
        "serve",
        "s3",
        f"--addr=127.0.0.1:{port}",
        f"--auth-key={ACCESS_KEY},{SECRET_KEY}",
        f"--config={directory / 'no.conf'}",
        str(content),
    ]
    url = f"http://127.0.0.1:{port}"
    with running(command, log=directory / "log", probe_url=url):
        yield Server(url, ACCESS_KEY, SECRET_KEY)


def with_bucket(server: Server) -> Server:
    """Return the server with a bucket that can be written to; waits until it can."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            bucket = server.new_bucket()
            server.client().put_object(Bucket=bucket, Key="ready", Body=b"")
        except (BotoCoreError, ClientError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return replace(server, bucket=bucket)


def _program(name: str) -> str:
    """Return the path of a program that a package put beside Python."""
    beside = Path(sysconfig.get_path("scripts")) / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is not installed: pip install 'workspacefs[test]'")
    return found
