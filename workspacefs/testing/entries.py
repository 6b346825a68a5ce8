"""Entries and directories made up for tests."""

from __future__ import annotations

import stat

from workspacefs.ids import FileId
from workspacefs.objects.entry import Device, Entry, Subtree, Totals
from workspacefs.objects.refs import Ref
from workspacefs.testing.nodes import MemoryNodes
from workspacefs.trees.build import build_directory
from workspacefs.trees.parameters import TreeParameters


def entry_of(name: bytes, version: int = 1) -> Entry:
    """Return an entry whose kind follows from its name; another version, another content."""
    kind = name[-1] % 5 if name else 0
    common = (0, 0)
    if kind == 0:
        below = Totals(version, 2, 10, 1)
        node = Subtree(Ref(bytes([version % 256]) * 32), below)
        return Entry(name, stat.S_IFDIR | 0o755, *common, 0, 1, 2, FileId(9), 2, node)
    if kind == 1:
        return Entry(
            name, stat.S_IFCHR | 0o600, *common, 0, 1, 2, FileId(9), 1, Device(version % 1000)
        )
    data = b"x" * (version % 100 + 1)
    return Entry(
        name, stat.S_IFREG | 0o644, *common, len(data), 1, 2, FileId(9), 1 + version % 2, data
    )


def build(entries: dict[bytes, Entry], params: TreeParameters) -> tuple[Subtree, MemoryNodes]:
    """Build one directory in memory."""
    nodes = MemoryNodes()
    return build_directory([entries[name] for name in sorted(entries)], nodes, params), nodes
