"""Stored bytes of tree nodes, chunk lists and commits never change silently.

A failure here means a new format version, with a design note and new golden files beside the old.
"""

from __future__ import annotations

import hashlib
import random
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from workspacefs.chunking.cut import iter_chunks
from workspacefs.chunking.parameters import ChunkParameters
from workspacefs.ids import (
    FileId,
    PackId,
    chunk_id_of,
    chunk_list_id_of,
    commit_id_of,
    node_id_of,
)
from workspacefs.objects.chunk_lists import decode_chunk_list, encode_chunk_list
from workspacefs.objects.commits import (
    ChangeCounts,
    Commit,
    Provenance,
    Signature,
    decode_commit,
    encode_commit,
)
from workspacefs.objects.entry import Chunks, Device, Entry, LongContent, Subtree, Totals
from workspacefs.objects.nodes import (
    BranchItem,
    BranchNode,
    LeafNode,
    decode_node,
    encode_branch,
    encode_leaf,
)
from workspacefs.objects.refs import ChunkRef, Locator, Ref
from workspacefs.testing.nodes import MemoryNodes
from workspacefs.trees.build import build_directory
from workspacefs.trees.parameters import TreeParameters

GOLDEN = Path(__file__).parent / "golden" / "objects"

A, B = b"\xaa" * 32, b"\xbb" * 32
NS = 1_700_000_000_123_456_789


def entry(name: bytes, mode: int, size: int, content: object, **more: object) -> Entry:
    fixed = Entry(name, mode, 1000, 1000, size, NS, NS + 1, FileId(1 << 24 | 5), 1)
    return fixed._replace(content=content, **more)


ENTRIES = [
    entry(b"\xff not text", stat.S_IFREG | 0o644, 0, None),
    entry(b"fifo", stat.S_IFIFO | 0o600, 0, None),
    entry(b"inline", stat.S_IFREG | 0o755, 5, b"hello", xattrs=((b"user.k", b"v\0"),)),
    entry(b"link", stat.S_IFLNK | 0o777, 6, b"inline"),
    entry(b"list", stat.S_IFREG | 0o644, 1 << 40, LongContent(Ref(A)), mtime_ns=-1),
    entry(b"null", stat.S_IFCHR | 0o666, 0, Device(259)),
    entry(b"sub", stat.S_IFDIR | 0o755, 0, Subtree(Ref(B), Totals(3, 1, 99, 2)), nlink=3),
    entry(b"two", stat.S_IFREG | 0o4711, 300, Chunks((ChunkRef(A, 100), ChunkRef(B, 200)))),
    entry(b"void", stat.S_IFDIR | 0o1777, 0, Subtree(), nlink=2),
]
ENTRIES.sort(key=lambda row: row.name)
ITEMS = (
    BranchItem(b"m", Ref(A), 300, Totals(290, 10, 12345, 0)),
    BranchItem(b"z", Ref(B), 2, Totals(2, 0, 0, 2)),
)
LIST = (ChunkRef(A, 65536), ChunkRef(B, 1))
COMMIT = Commit(
    root=entry(b"", stat.S_IFDIR | 0o755, 0, Subtree(Ref(A), Totals(5, 2, 640, 0)), nlink=4),
    parents=(Ref(B),),
    message="say ü",
    time_ns=NS,
    provenance=Provenance(
        author="me@host", agent="a", session="s", run="r", tool_call="t", model="m", host="h"
    ),
    changes=ChangeCounts(added=1, modified=2, removed=3),
    meta=(("k", "v"),),
)
NOTES = entry(b"", stat.S_IFDIR | 0o755, 0, Subtree(Ref(B), Totals(1, 0, 5, 0)), nlink=2)
SIGNATURE = Signature(b"\xcc" * 32, b"\xdd" * 64)
COMMITS = {
    "commit": COMMIT,
    "commit-notes": replace(COMMIT, notes=NOTES),
    "commit-signed": replace(COMMIT, signature=SIGNATURE),
    "commit-notes-signed": replace(COMMIT, notes=NOTES, signature=SIGNATURE),
}

BODIES = {
    "leaf": (encode_leaf(ENTRIES)[0], node_id_of),
    "branch": (encode_branch(1, ITEMS)[0], node_id_of),
    "chunk-list": (encode_chunk_list(LIST)[0], chunk_list_id_of),
    **{name: (encode_commit(commit)[0], commit_id_of) for name, commit in COMMITS.items()},
    "chunk": (b"plain bytes of a chunk\n", chunk_id_of),
}


def read_golden(name: str) -> tuple[str, bytes]:
    id_hex, *lines = (GOLDEN / f"{name}.hex").read_text().split()
    return id_hex, bytes.fromhex("".join(lines))


@pytest.mark.parametrize("name", BODIES)
def test_bytes_and_id_are_as_ever(name: str) -> None:
    """What is written today is what was written then, id included."""
    body, id_of = BODIES[name]

    id_hex, golden = read_golden(name)

    assert body == golden
    assert id_of(body).hex() == id_hex


def test_golden_files_are_read() -> None:
    """Old bytes give the values they were made from."""
    leaf = decode_node(read_golden("leaf")[1], (), what="leaf")
    branch = decode_node(read_golden("branch")[1], (), what="branch")

    assert isinstance(leaf, LeafNode)
    assert isinstance(branch, BranchNode)
    assert list(leaf.iter_entries()) == ENTRIES
    assert branch.items == ITEMS
    assert decode_chunk_list(read_golden("chunk-list")[1], (), what="list") == LIST
    for name, commit in COMMITS.items():
        assert decode_commit(read_golden(name)[1], (), what="commit") == commit


def test_references_stand_in_the_order_of_their_locators() -> None:
    """Parents, tree, notes: also where one of them has none."""
    here = [Locator(PackId(bytes([n]) * 16), n, 9, 0, 9) for n in range(3)]
    empty = COMMIT.root._replace(content=Subtree())
    for commit in (
        COMMITS["commit-notes"],
        replace(COMMIT, root=empty, notes=NOTES),
        replace(COMMIT, parents=(), notes=NOTES),
    ):
        body, references = encode_commit(commit)

        read = decode_commit(body, here[: len(references)], what="commit")

        assert [one.id for one in references] == [one.id for one in commit.references()]
        assert [one.locator for one in read.references()] == here[: len(references)]


def test_shape_of_a_large_directory_is_as_ever() -> None:
    """The same 20,000 names give the same top node for ever."""
    nodes = MemoryNodes()
    rows = [
        entry(b"file-%05d" % n, stat.S_IFREG | 0o644, 3, b"%03d" % (n % 1000))
        for n in range(20_000)
    ]

    tree = build_directory(rows, nodes, TreeParameters(seed=0x0123456789ABCDEF))

    assert tree.root is not None
    assert tree.root.id.hex() == read_golden("large-directory")[0]


def test_cuts_of_large_files_are_as_ever() -> None:
    """The same content is cut in the same places for ever, in every band and in pages."""
    lengths = []
    for size, head in ((1 << 20, b""), (9 << 20, b""), (1 << 20, b"SQLite format 3\0")):
        data = head + random.Random(size).randbytes(size - len(head))
        cuts = iter_chunks(lambda at, n, data=data: data[at : at + n], size, ChunkParameters())
        lengths += [len(chunk) for chunk in cuts]

    digest = hashlib.sha256(",".join(map(str, lengths)).encode()).hexdigest()

    assert digest == read_golden("cuts")[0]
