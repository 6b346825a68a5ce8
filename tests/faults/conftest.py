"""Fixtures of tests in which an S3 store goes wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.s3_store import IMPATIENT, FaultyStore, faulty_store
from tests.servers import Server


@pytest.fixture
def store(seaweedfs: Server, s3_environ: None) -> Iterator[FaultyStore]:
    """A store behind a proxy, and a backend that goes through it."""
    with faulty_store(seaweedfs) as made:
        yield made


@pytest.fixture
def impatient(seaweedfs: Server, s3_environ: None) -> Iterator[FaultyStore]:
    """The same; its backend soon gives up."""
    with faulty_store(seaweedfs, retry=IMPATIENT) as made:
        yield made
