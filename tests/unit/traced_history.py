"""Histories of small trees in memory, for tests of what is traced through them."""

from __future__ import annotations

import itertools
from collections import Counter

from tests.unit.merge_files import Files, do
from workspacefs.ids import commit_id_of
from workspacefs.objects.commits import Commit, Provenance, encode_commit
from workspacefs.objects.entry import Entry
from workspacefs.objects.nodes import Node
from workspacefs.objects.refs import Ref
from workspacefs.testing.objects import MemoryObjects

Head = tuple[Ref, Commit]


class History(MemoryObjects):
    """Commits and all that is in them; counts what is read."""

    def __init__(self) -> None:
        super().__init__()
        self._commits: dict[bytes, Commit] = {}
        self._times = itertools.count(1)
        self.commit_loads: Counter[bytes] = Counter()
        self.nodes_read = 0

    def load_commit(self, ref: Ref) -> Commit:
        """Return a commit."""
        self.commit_loads[ref.id] += 1
        return self._commits[ref.id]

    def load_node(self, ref: Ref) -> Node:
        """Return a node."""
        self.nodes_read += 1
        return super().load_node(ref)

    def commit(
        self,
        files: Files | Entry,
        *parents: Head,
        message: str = "",
        time_ns: int | None = None,
        who: Provenance | None = None,
    ) -> Head:
        """Store what the files are now; each commit is a nanosecond later, unless time is given."""
        commit = Commit(
            root=files if isinstance(files, Entry) else files.tree(self),
            parents=tuple(parent[0] for parent in parents),
            message=message,
            time_ns=next(self._times) if time_ns is None else time_ns,
            provenance=who or Provenance(),
        )
        ref = Ref(commit_id_of(encode_commit(commit)[0]))
        self._commits[ref.id] = commit
        return ref, commit

    def line(self, *programs: str) -> list[Head]:
        """Commit after each of these (see merge_files.do), one on the other; the message is it."""
        files, heads = Files(), list[Head]()
        for program in programs:
            do(files, program)
            heads.append(self.commit(files, *heads[-1:], message=program))
        return heads
