"""Mountpoints that are not fit are refused with words that help, before anything is mounted."""

from __future__ import annotations

from pathlib import Path

import pytest

from workspacefs.errors import BusyError, NotFoundError, UsageError
from workspacefs_daemon.mountpoints import prepare_mountpoint
from workspacefs_daemon.spec import SessionSpec, spec_document, spec_from_document


def _spec(tmp_path: Path, mountpoint: Path, store: str = "store") -> SessionSpec:
    return SessionSpec(
        store_url=f"file://{tmp_path}/{store}",
        mountpoint=str(mountpoint),
        state_dir=str(tmp_path / "state"),
    )


def test_empty_directory_is_fit(tmp_path: Path) -> None:
    """An empty directory of ours passes, and stays as it is."""
    (tmp_path / "m").mkdir()

    prepare_mountpoint(_spec(tmp_path, tmp_path / "m"))

    assert list((tmp_path / "m").iterdir()) == []


def test_absent_one_says_how_to_make_it(tmp_path: Path) -> None:
    """The message is the command to type."""
    with pytest.raises(NotFoundError, match=f"mkdir -p '{tmp_path}/a b'"):
        prepare_mountpoint(_spec(tmp_path, tmp_path / "a b"))


def test_file_is_refused(tmp_path: Path) -> None:
    """A file is no mountpoint."""
    (tmp_path / "m").write_text("")

    with pytest.raises(UsageError, match="not a directory"):
        prepare_mountpoint(_spec(tmp_path, tmp_path / "m"))


def test_directory_with_content_is_refused(tmp_path: Path) -> None:
    """A mount would hide what is there; one name is told."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "precious").write_text("")

    with pytest.raises(BusyError, match="precious") as caught:
        prepare_mountpoint(_spec(tmp_path, tmp_path / "m"))

    assert caught.value.kind == "mountpoint.not_empty"


def test_mount_point_is_refused() -> None:
    """What is mounted on already is not mounted on again."""
    with pytest.raises(BusyError, match="mount point already"):
        prepare_mountpoint(_spec(Path("/nowhere"), Path("/proc")))


def test_directory_inside_the_store_is_refused(tmp_path: Path) -> None:
    """A mount there would look like stored values."""
    (tmp_path / "a store" / "m").mkdir(parents=True)

    with pytest.raises(UsageError, match="inside the store"):
        prepare_mountpoint(_spec(tmp_path, tmp_path / "a store" / "m", "a%20store"))


def test_spec_survives_its_document(tmp_path: Path) -> None:
    """What the command line asks for is what the session process gets."""
    spec = _spec(tmp_path, tmp_path)

    assert spec_from_document(spec_document(spec)) == spec
