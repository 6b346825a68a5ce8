"""Power loss, as far as a directory can show it: the database of every layer is worth nothing, and
the machine has another boot id.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.harness import Mount

PAGE_BYTES = 4096


def session_directory(mount: Mount) -> Path:
    """Return where the session keeps its layers."""
    found = list((mount.machine.state_dir / "sessions").glob("*/" + str(mount.document["session"])))
    assert len(found) == 1
    return found[0]


def layer_directories(mount: Mount) -> list[Path]:
    """Return the session's layers, the eldest first."""
    return sorted((session_directory(mount) / "layers").iterdir(), key=lambda path: int(path.name))


def cut_power(mount: Mount) -> None:
    """Kill the session, and leave of its databases what power loss may leave."""
    mount.kill()
    for directory in layer_directories(mount):
        data = bytearray((directory / "data.mdb").read_bytes())
        for page in range(0, len(data), 2 * PAGE_BYTES):
            data[page : page + PAGE_BYTES] = os.urandom(PAGE_BYTES)
        (directory / "data.mdb").write_bytes(data)
        (directory / "boot").write_text("another boot\n")


def sync(path: Path) -> None:
    """Make all work of the session on `path` durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
