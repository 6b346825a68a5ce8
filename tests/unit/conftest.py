"""Fixtures that several unit tests use; a file may have others of the same names."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.vfs_session import Session
from workspacefs.backend.memory import MemoryBackend
from workspacefs.testing.faulty import FaultyBackend


@pytest.fixture
def backend() -> FaultyBackend:
    """A store in memory that goes wrong to order."""
    return FaultyBackend(MemoryBackend(secrets.token_hex(8)))


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """A session whose store is far away."""
    made = Session(tmp_path, is_local=False)
    yield made
    made.close()
