"""Power loss, as far as a directory can show it: the database of every layer is worth nothing, and
the machine has another boot id.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.harness import Mount

PAGE_BYTES = 4096


def session_directory(mount: Mount) -> Path:
    """Return where the session keeps its record."""
    found = list((mount.machine.state_dir / "sessions").glob("*/" + str(mount.document["session"])))
    assert len(found) == 1
    return found[0]


def layer_directories(mount: Mount) -> list[Path]:
    """Return the session's layers, the eldest first."""
    home = session_directory(mount)
    record = json.loads((home / "session.json").read_text())
    pool = mount.machine.state_dir / "layers" / home.parent.name
    return [pool / name for _, name in record["layers"]]


def cut_power(mount: Mount) -> None:
    """Kill the session, and leave of its databases what power loss may leave: nothing of those that
    were not synced.
    """
    mount.kill()
    for directory in layer_directories(mount):
        if (directory / "boot").read_text() == "clean":
            continue  # all of it was synced before it was marked so
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
