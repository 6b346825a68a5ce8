"""Fixtures that every test may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Machine, Mount


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
def mount(machine: Machine) -> Mount:
    """A mounted session of an empty workspace."""
    return machine.mount()
