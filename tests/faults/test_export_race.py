"""An attacker swaps directories and links in the target while a tree is exported (goal H5)."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

from workspacefs.backend.memory import MemoryBackend
from workspacefs.errors import WorkspaceError
from workspacefs.ids import FileId
from workspacefs.objects.entry import Entry
from workspacefs.trees.build import build_directory
from workspacefs.workspace.export import export_tree
from workspacefs.workspace.workspace import Workspace

EXPORTS = 150


def make_tree(workspace: Workspace) -> Entry:
    """Directories d0..d9 of ten files each, one of them a hard link to the next."""
    writer = workspace.new_writer()
    params = workspace.tree_params
    owner = (os.geteuid(), os.getegid())

    def directory(name: bytes, file_id: int, entries: list[Entry]) -> Entry:
        below = build_directory(entries, writer, params)
        return Entry(name, stat.S_IFDIR | 0o755, *owner, 0, 1, 1, FileId(file_id), 2, below)

    directories = []
    for d in range(10):
        files = [
            Entry(b"f%d" % n, stat.S_IFREG | 0o644, *owner, 4, 1, 1, FileId(2 + n), 10, b"evil")
            for n in range(10)
        ]
        directories.append(directory(b"d%d" % d, 100 + d, files))
    root = directory(b"", 1, directories)
    writer.finish()
    return root


def test_nothing_outside_the_target_is_touched(tmp_path: Path) -> None:
    """However often a directory becomes a link at the wrong moment, the outside stays as it was."""
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o711)
    for n in range(10):
        (outside / f"f{n}").write_text("safe")
    before = {path.name: path.stat() for path in (outside, *outside.iterdir())}
    workspace = Workspace.create(MemoryBackend(tmp_path.name))
    root = make_tree(workspace)
    targets = [tmp_path / f"out{n}" for n in range(EXPORTS)]
    is_over = threading.Event()
    swaps = 0

    def attack() -> None:
        nonlocal swaps
        while not is_over.is_set():
            for target in [path for path in tmp_path.glob("out[0-9]*") if path.is_dir()][-2:]:
                for n in range(10):
                    victim = target / f"d{n}"
                    try:
                        victim.rename(target / "away")
                        victim.symlink_to(outside)
                        victim.unlink()
                        (target / "away").rename(victim)
                        swaps += 1
                    except OSError:
                        continue

    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        for target in targets:
            try:
                export_tree(root, workspace.store, target)
            except WorkspaceError:
                pass  # it may fail, it may not stray
    finally:
        is_over.set()
        attacker.join()

    after = {path.name: path.stat() for path in (outside, *outside.iterdir())}
    assert swaps > EXPORTS, "the attack did not take place"
    assert {
        name: (s.st_mode, s.st_ctime_ns, s.st_nlink, s.st_ino) for name, s in after.items()
    } == {name: (s.st_mode, s.st_ctime_ns, s.st_nlink, s.st_ino) for name, s in before.items()}
    assert all(path.read_text() == "safe" for path in outside.iterdir())
