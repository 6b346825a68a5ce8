"""Whether code has changed since it was loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from workspacefs_daemon.sources import Sources


def edit(package: Path) -> None:
    (package / "sub/a.py").write_text("x = 22")


def edit_keeping_size_and_directory(package: Path) -> None:
    path = package / "sub/a.py"
    with path.open("r+") as file:
        file.write("y")
    os.utime(path, ns=(1, 1))


def replace(package: Path) -> None:
    (package / "new").write_text("x = 1")
    os.utime(package / "new", ns=(5, 5))
    os.replace(package / "new", package / "sub/a.py")


def add(package: Path) -> None:
    (package / "sub/b.py").write_text("")


def remove(package: Path) -> None:
    (package / "sub/a.py").unlink()


def add_directory(package: Path) -> None:
    (package / "other").mkdir()
    (package / "other/c.py").write_text("")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.py").write_text("x = 1")
    (tmp_path / "native.so").write_bytes(b"ELF")
    return tmp_path


@pytest.mark.parametrize(
    "change", [edit, edit_keeping_size_and_directory, replace, add, remove, add_directory]
)
def test_change_is_noticed(package: Path, change: Callable[[Path], None]) -> None:
    """Whatever an editor, a checkout or an upgrade does to a file."""
    sources = Sources([str(package)])
    assert not sources.have_changed()

    change(package)

    assert sources.have_changed()
    assert sources.have_changed()


def test_what_is_no_code_is_no_change(package: Path) -> None:
    """Compiled files and notes come and go."""
    sources = Sources([str(package)])

    (package / "sub/__pycache__").mkdir()
    (package / "sub/__pycache__/a.cpython-311.pyc").write_bytes(b"")
    (package / "sub/notes.txt").write_text("")

    assert not sources.have_changed()
    edit(package)
    assert sources.have_changed()
