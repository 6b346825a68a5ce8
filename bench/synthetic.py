"""Workspaces of any number of files, published straight through the library.

Nothing is written to a disk but the store: a million files take seconds, not an hour. Files share
a thousand contents, so the store holds real chunks, and every entry names one.
"""

from __future__ import annotations

import random
import stat
from pathlib import Path
from typing import Final

from bench.trees import text_pool
from workspacefs.ids import ROOT_FILE_ID, FileId
from workspacefs.objects.commits import ChangeCounts, Commit
from workspacefs.objects.entry import Chunks, Entry, Subtree
from workspacefs.objects.refs import ChunkRef
from workspacefs.packs.writer import ObjectWriter
from workspacefs.refs import Moved, RefKind
from workspacefs.trees.build import build_directory
from workspacefs.workspace.publish import RefMove, publish_commit
from workspacefs.workspace.workspace import Workspace

FILES_PER_DIR: Final = 100
_DIRS_PER_DIR: Final = 100
_CONTENTS: Final = 1000
_SIZE_BYTES: Final = 2000
_TIME_NS: Final = 1_700_000_000_000_000_000


class SyntheticWorkspace:
    """A tree `dNN/dNN/fNNNNNNN.txt` of `files` files, and the content of each."""

    def __init__(self, files: int, seed: int) -> None:
        self.files = files
        rng = random.Random(seed)
        pool = text_pool(rng, _CONTENTS * _SIZE_BYTES + _SIZE_BYTES)
        self._contents = [
            f"# content {number}\n".encode() + pool[number * _SIZE_BYTES :][:_SIZE_BYTES]
            for number in range(_CONTENTS)
        ]

    def path(self, index: int) -> str:
        """Return where file `index` lies."""
        leaf = index // FILES_PER_DIR
        return f"d{leaf // _DIRS_PER_DIR:03d}/d{leaf % _DIRS_PER_DIR:02d}/f{index:07d}.txt"

    def content(self, index: int) -> bytes:
        """Return what file `index` holds at first."""
        return self._contents[index * 7 % _CONTENTS]

    def top_names(self) -> set[str]:
        """Return the names in the root."""
        return {self.path(index).split("/")[0] for index in range(0, self.files, FILES_PER_DIR)}

    def publish(self, store: Path) -> None:
        """Make the tree the first commit of main in the (empty) workspace at `store`."""
        workspace = Workspace.open(str(store))
        with workspace.new_writer() as writer:
            refs = [writer.add_chunk(content) for content in self._contents]
            root = _Builder(workspace, writer, self, refs).build()
            commit = Commit(
                root=root,
                parents=(),
                message="generated",
                time_ns=_TIME_NS,
                changes=ChangeCounts(added=self.files),
            )
            move = RefMove(
                kind=RefKind.BRANCH,
                name="main",
                expected=None,
                previous=None,
                action="import",
                moved_by="bench",
            )
            answer, _ = publish_commit(workspace, writer, commit, move)
        assert isinstance(answer, Moved), "nobody else writes to this store"


class _Builder:
    def __init__(
        self,
        workspace: Workspace,
        writer: ObjectWriter,
        tree: SyntheticWorkspace,
        refs: list[ChunkRef],
    ) -> None:
        self._params = workspace.tree_params
        self._writer = writer
        self._tree = tree
        self._refs = refs
        self._allocate = workspace.new_file_ids().allocate

    def build(self) -> Entry:
        """Write all nodes, bottom up and in order of path; return the root."""
        leaves = range(0, self._tree.files, FILES_PER_DIR)
        tops = []
        for first in range(0, len(leaves), _DIRS_PER_DIR):
            below = [self._leaf(start) for start in leaves[first : first + _DIRS_PER_DIR]]
            name = self._tree.path(leaves[first]).split("/")[0]
            tops.append(self._directory(name, below, self._allocate()))
        return self._directory("", tops, ROOT_FILE_ID)

    def _leaf(self, start: int) -> Entry:
        tree = self._tree
        files = []
        for index in range(start, min(start + FILES_PER_DIR, tree.files)):
            ref = self._refs[index * 7 % _CONTENTS]
            files.append(
                Entry(
                    tree.path(index).rpartition("/")[2].encode(),
                    stat.S_IFREG | 0o644,
                    0,
                    0,
                    ref.size_bytes,
                    _TIME_NS,
                    _TIME_NS,
                    self._allocate(),
                    1,
                    Chunks((ref,)),
                )
            )
        return self._directory(tree.path(start).split("/")[1], files, self._allocate())

    def _directory(self, name: str, entries: list[Entry], file_id: FileId) -> Entry:
        subtree: Subtree = build_directory(entries, self._writer, self._params)
        subdirs = sum(entry.is_dir for entry in entries)
        return Entry(
            name.encode(), stat.S_IFDIR | 0o755, 0, 0, 0, _TIME_NS, _TIME_NS, file_id,
            2 + subdirs, subtree,
        )  # fmt: skip
