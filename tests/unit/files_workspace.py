"""A workspace in memory whose commits are made of `Files`, and whose clock is turned by hand."""

from __future__ import annotations

import secrets

from tests.unit.merge_files import Files, do, read
from workspacefs.backend.contract import Backend
from workspacefs.backend.memory import MemoryBackend
from workspacefs.objects.commits import Commit, Provenance
from workspacefs.objects.refs import Ref
from workspacefs.trees.walk import walk
from workspacefs.workspace.land import land_commit
from workspacefs.workspace.publish import seal_commit
from workspacefs.workspace.workspace import Workspace

SECOND_NS = 1_000_000_000


class SkewedClock:
    """Goes on a little with each look, from wherever it was set."""

    def __init__(self, now_ns: int = 1_000_000 * SECOND_NS) -> None:
        self.time_ns = now_ns

    def now_ns(self) -> int:
        """Return its time."""
        self.time_ns += 1000
        return self.time_ns


class FilesWorkspace:
    """Makes commits and lands them."""

    def __init__(self, backend: Backend | None = None) -> None:
        self.backend = backend or MemoryBackend(secrets.token_hex(8))
        self.clock = SkewedClock()
        self.workspace = Workspace.create(self.backend, clock=self.clock)
        self.files = Files()

    def commit(
        self, files: Files, *parents: Ref, name: str = "s", message: str = "work"
    ) -> tuple[Ref, Commit]:
        """Store a commit that no ref names."""
        with self.workspace.new_writer(is_small=True) as writer:
            commit = Commit(
                root=files.tree(writer, self.workspace.tree_params),  # type: ignore[arg-type]
                parents=parents,
                message=message,
                time_ns=self.clock.now_ns(),
                provenance=Provenance(author="a@h", session=name, agent="bot"),
            )
            ref = seal_commit(writer, commit).ref
        return ref, commit

    def begin(self, program: str) -> tuple[Ref, Commit]:
        """Have main be at what a program makes of nothing; see merge_files.do."""
        do(self.files, program)
        made = self.commit(self.files, message="base")
        self.land(made[0])
        return made

    def land(self, ref: Ref, branch: str = "main") -> None:
        """Move a branch forward to a commit."""
        assert land_commit(self.workspace, ref, branch, moved_by="a@h") is not None

    def show(self, rev: str = "main") -> dict[bytes, bytes]:
        """Return the files of a revision by path; directories are left out."""
        _, commit = self.workspace.resolve(rev)
        store = self.workspace.store
        return {
            path: read(entry, store)  # type: ignore[arg-type]
            for path, entry in walk(commit.root, store)
            if not entry.is_dir
        }
