"""A fork of a fork of a fork …: what a session costs does not grow with its ancestors.

WORKSPACEFS_TEST_EFFORT=full goes a thousand deep.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from workspacefs.statedir import StateDir, ensure_state_dir
from workspacefs.workspace.session_deletion import delete_session
from workspacefs.workspace.workspace import Workspace
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.opening import open_mounted
from workspacefs_daemon.spec import SessionSpec

DEEP = 1000 if os.environ.get("WORKSPACEFS_TEST_EFFORT") == "full" else 60
FILE = 0o100644
LAYERS_MAX = 34
"""A chain of 32 is flattened before another layer comes on top; and the live one."""


def add_file(mounted: Mounted, name: str, data: bytes) -> int:
    """Create a file at the top; return its id."""
    root = mounted.overlay.root
    while True:
        if mounted.file_ids is not None and mounted.file_ids.needs_spare:
            mounted.file_ids.claim_spare()
        inode = mounted.fs.namespace.create(root, name.encode(), FILE, 0, 0)
        mounted.fs.files.write(inode, 0, data)
        return inode.file_id


@pytest.mark.timeout(1200)
def test_a_thousand_forks_deep(tmp_path: Path) -> None:
    """Each adds a file and forks; the last one has all of them, in few layers, and needs none of
    its ancestors.
    """
    workspace = Workspace.create(f"file://{tmp_path / 'store'}")
    state = StateDir(str(tmp_path / "state"))
    ensure_state_dir(state)
    file_ids: set[int] = set()
    deepest = 0

    async def live(name: str, number: int) -> str:
        spec = SessionSpec(
            store_url=workspace.url, mountpoint="/nowhere", state_dir=state.root, session_name=name
        )
        mounted = open_mounted(spec, {})
        file_ids.add(add_file(mounted, f"f{number}", b"%d" % number))
        async with mounted.committing:
            (fork,) = await mounted.fork([f"s{number + 1}"], owner="me")
        nonlocal deepest
        deepest = max(deepest, len(mounted.overlay.layers))
        await mounted.close()
        return fork.session

    name = "s0"
    for number in range(DEEP):
        name = trio.run(live, name, number)
        delete_session(workspace, state, f"s{number}", deleted_by="me", is_forced=True)

    assert len(file_ids) == DEEP
    assert deepest <= LAYERS_MAX

    async def look(name: str) -> dict[bytes, bytes]:
        spec = SessionSpec(
            store_url=workspace.url, mountpoint="/nowhere", state_dir=state.root, session_name=name
        )
        mounted = open_mounted(spec, {})
        listed = mounted.overlay.list_after(mounted.overlay.root, b"", DEEP + 1)
        found = {name: mounted.fs.files.read(inode, 0, inode.size_bytes) for name, inode in listed}
        await mounted.close()
        return found

    assert trio.run(look, name) == {b"f%d" % number: b"%d" % number for number in range(DEEP)}
    kept = [path for path in (tmp_path / "state/layers").glob("*/*") if path.is_dir()]
    assert len(kept) <= LAYERS_MAX
