"""Fixtures that every test may use."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Machine, Mount
from tests.kernel_caches import kept_caches
from tests.s3_machine import S3Machine, s3_machine
from tests.servers import (
    ACCESS_KEY,
    SECRET_KEY,
    Server,
    run_moto,
    run_rclone,
    run_seaweedfs,
    with_bucket,
)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A user's machine with an empty workspace; everything it starts ends with the test."""
    made = Machine(tmp_path)
    made.init()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def other(tmp_path: Path, machine: Machine) -> Iterator[Machine]:
    """Another machine that reaches the same store and nothing else."""
    (tmp_path / "second").mkdir()
    made = Machine(tmp_path / "second")
    made.store = machine.store
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def kernel_caches() -> Iterator[None]:
    """Keeps tests that run at the same time from having the kernel forget what it knows."""
    with kept_caches():
        yield


@pytest.fixture
def mount(machine: Machine) -> Mount:
    """A mounted session of an empty workspace."""
    return machine.mount()


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """SeaweedFS: a real S3 server that honours conditions."""
    with run_seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield with_bucket(server)


@pytest.fixture
def s3(tmp_path: Path, seaweedfs: Server) -> Iterator[S3Machine]:
    """A user's machine with an empty workspace in a bucket."""
    with s3_machine(tmp_path / "machine", seaweedfs) as made:
        yield made


@pytest.fixture(scope="session")
def moto_server() -> Iterator[Server]:
    """moto: a model of S3 that honours conditions and checks no keys."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with run_moto() as server:
        yield with_bucket(server)


@pytest.fixture(scope="session")
def rclone_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """rclone's server: an S3 server that ignores conditions."""
    with run_rclone(tmp_path_factory.mktemp("rclone")) as server:
        yield with_bucket(server)


@pytest.fixture
def s3_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives this process, and all that it starts, the keys that the test servers take."""
    for name, value in Server("", ACCESS_KEY, SECRET_KEY).environ().items():
        monkeypatch.setenv(name, value)
