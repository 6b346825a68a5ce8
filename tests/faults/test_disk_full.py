"""A full local disk: ENOSPC to the writer, the mount lives, and freed space makes it work again."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Machine

MIB = 1 << 20


@pytest.fixture
def small_machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine whose state directory is on a file system of 48 MiB."""
    machine = Machine(tmp_path)
    machine.state_dir.mkdir(mode=0o700)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m,mode=0700", "tmpfs", machine.state_dir],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        machine.init()
        yield machine
    finally:
        machine.close()
        subprocess.run(["umount", "-l", machine.state_dir], check=False)


def fill(path: Path, *, piece: int) -> int:
    """Write until the disk is full; return the bytes that write(2) said were written."""
    done = 0
    with path.open("wb", buffering=0) as file:
        while True:
            try:
                done += file.write(os.urandom(piece))
            except OSError as exc:
                assert exc.errno == errno.ENOSPC
                return done


def test_large_file_fills_the_disk(small_machine: Machine) -> None:
    """What was accepted is readable, everything else goes on, and deleting frees the space."""
    mount = small_machine.mount()
    (mount.path / "before").write_bytes(b"kept")

    written = fill(mount.path / "large", piece=MIB // 2)

    assert written > 20 * MIB
    assert (mount.path / "large").stat().st_size == written
    assert len((mount.path / "large").read_bytes()) == written
    assert (mount.path / "before").read_bytes() == b"kept"
    os.unlink(mount.path / "large")
    (mount.path / "after").write_bytes(os.urandom(10 * MIB))
    assert (mount.path / "after").stat().st_size == 10 * MIB


def test_small_files_fill_the_disk(small_machine: Machine) -> None:
    """Creating fails with ENOSPC at some point; all files made before are whole; deletes work."""
    mount = small_machine.mount()
    data = os.urandom(8000)
    made = 0
    with pytest.raises(OSError, match="No space left"):
        while True:
            (mount.path / f"f{made}").write_bytes(data)
            made += 1

    assert made > 1000
    for number in range(0, made, 97):
        assert (mount.path / f"f{number}").read_bytes() == data
    for number in range(made):
        os.unlink(mount.path / f"f{number}")
    (mount.path / "after").write_bytes(os.urandom(5 * MIB))
    assert (mount.path / "after").stat().st_size == 5 * MIB


def test_a_full_disk_survives_kill_and_mount(small_machine: Machine) -> None:
    """kill -9 on a full disk, then mount: the files are there and can be committed."""
    mount = small_machine.mount()
    (mount.path / "small").write_bytes(b"kept")
    written = fill(mount.path / "large", piece=MIB)
    mount.kill()

    again = mount.again()

    assert (again.path / "small").read_bytes() == b"kept"
    assert (again.path / "large").stat().st_size >= written
    os.truncate(again.path / "large", 4 * MIB)
    again.commit("after the flood", "--into", "main")
    assert again.status() == {}
    other = small_machine.mount("other", session="other")
    assert (other.path / "large").stat().st_size == 4 * MIB
