"""Stored bytes of packs and refs never change silently.

A failure here means a new format version, with a design note and new golden files beside the old.
Golden files that are missing are made by: python tests/format/test_golden_packs.py
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from workspacefs.backend.memory import MemoryBackend
from workspacefs.ids import CommitId, FileId, PackId, commit_id_of
from workspacefs.objects.chunk_lists import encode_chunk_list
from workspacefs.objects.commits import Commit, encode_commit
from workspacefs.objects.entry import Chunks, Entry, LongContent, Subtree, Totals
from workspacefs.objects.nodes import encode_leaf
from workspacefs.objects.refs import ChunkRef, Locator, Ref
from workspacefs.packs.reader import ObjectStore
from workspacefs.packs.table import ObjectKind, load_table, pack_key
from workspacefs.packs.writer import ObjectWriter
from workspacefs.refs import (
    Lease,
    RefRecord,
    SavedWork,
    SessionPolicy,
    SessionRecord,
    StoredCheckpoint,
)
from workspacefs.refs.record import decode_ref, encode_ref

GOLDEN = Path(__file__).parent / "golden" / "packs"
GOLDEN_REFS = Path(__file__).parent / "golden" / "refs"
NS = 1_700_000_000_123_456_789
ZSTD_OF_GOLDEN = (1, 5, 7)
"""Other releases of zstd may compress to other bytes; they must only read these."""

FIRST, SECOND = PackId(b"\x01" * 16), PackId(b"\x02" * 16)
TEXT = b"".join(b"line %d of a text that compresses\n" % number for number in range(200))
NOISE = random.Random(1).randbytes(3000)
LARGE = random.Random(2).randbytes(140_000)


def entry(name: bytes, mode: int, size: int, content: Chunks | LongContent | Subtree) -> Entry:
    return Entry(name, mode, 0, 0, size, NS, NS, FileId(1 << 24 | len(name)), 1, content)


def write_packs() -> tuple[MemoryBackend, Commit, Ref]:
    """Write a pack of one chunk, and one that refers to it with objects of every kind."""
    backend = MemoryBackend(f"golden {random.random()}")
    old = ObjectWriter(backend, threads=0, draw_pack_id=lambda: FIRST)
    known = old.add_chunk(NOISE)
    old.finish()
    assert known.locator is not None
    writer = ObjectWriter(
        backend, threads=0, known={known.id: known.locator}, draw_pack_id=lambda: SECOND
    )
    text, noise, large = writer.add_chunk(TEXT), writer.add_chunk(NOISE), writer.add_chunk(LARGE)
    long_list = writer.add_chunk_list(*encode_chunk_list((large, text)))
    elsewhere = ChunkRef(b"\xee" * 32, 7)
    leaf = writer.add_node(
        *encode_leaf(
            [
                entry(b"far", 0o100644, 7, Chunks((elsewhere,))),
                entry(b"long", 0o100644, len(LARGE) + len(TEXT), LongContent(long_list)),
                entry(b"small", 0o100644, len(TEXT) + len(NOISE), Chunks((text, noise))),
            ]
        )
    )
    root = entry(b"", 0o40755, 0, Subtree(leaf, Totals(3, 0, 1, 0)))
    commit = Commit(root=root, parents=(), message="golden", time_ns=NS)
    ref = writer.add_commit(*encode_commit(commit))
    writer.finish()
    return backend, commit, ref


def refs() -> dict[str, RefRecord]:
    """Return a record of each kind."""
    body, _ = encode_commit(
        Commit(
            root=entry(b"", 0o40755, 0, Subtree(Ref(b"\xaa" * 32), Totals(1, 0, 5, 0))),
            parents=(Ref(b"\xbb" * 32),),
            message="say ü",
            time_ns=NS,
        )
    )
    branch = RefRecord(
        commit_id=commit_id_of(body),
        commit_body=body,
        commit_locators=(None, Locator(FIRST, 32, 500, 7, 90)),
        locator=Locator(SECOND, 1 << 33, 400, 0, 200),
        write_id="0123456789abcdef0123456789abcdef",
        moved_at_ns=NS,
        moved_by="ü@host",
    )
    session = SessionRecord(
        name="me/one",
        session_id="00ff",
        owner="me",
        base=CommitId(b"\xbb" * 32),
        branch="main",
        created_ns=NS,
        lineage=("aa", "bb"),
        fid_epochs=(1, 2**39 - 1),
    )
    saved = SavedWork(
        commit_id=CommitId(b"\xcc" * 32), locator=Locator(FIRST, 32, 500, 0, 90), saver="0f0f",
        host="box", saved_ns=NS,
    )  # fmt: skip
    return {
        "branch": branch,
        "empty": RefRecord(write_id="00", moved_at_ns=NS),
        "session": RefRecord(write_id="00", moved_at_ns=NS, session=session),
        "saved": replace(
            branch,
            session=replace(
                session, saved=saved, lease=Lease(saver="0f0f", host="box", since_ns=NS)
            ),
        ),
        "archived": replace(
            branch,
            session=replace(
                session,
                state="archived",
                left=Lease(saver="0e0e", host="other", since_ns=NS),
                policy=SessionPolicy(
                    idle_pause_s=60,
                    ttl_s=3600,
                    archive_after_s=604_800,
                    delete_after_s=2_592_000,
                    ephemeral=True,
                ),
                renamed_from="me/none",
            ),
        ),
        "kept": replace(
            branch,
            session=replace(
                session,
                checkpoints=(
                    StoredCheckpoint(
                        name="cp1",
                        message="tests pass ü",
                        created_ns=NS,
                        commit_id=CommitId(b"\xcc" * 32),
                        locator=saved.locator,
                    ),
                ),
            ),
        ),
        "renamed": replace(branch, session=replace(session, state="deleted", renamed_to="me/two")),
    }


@pytest.mark.skipif(
    zstandard.ZSTD_VERSION != ZSTD_OF_GOLDEN, reason="another zstd compresses to other bytes"
)
@pytest.mark.parametrize("pack_id", [FIRST, SECOND])
def test_packs_are_written_as_ever(pack_id: PackId) -> None:
    """What is written today is, to the byte, what was written then."""
    backend, _, _ = write_packs()

    assert backend.get(pack_key(pack_id)) == (GOLDEN / f"{pack_id.hex()}.pack").read_bytes()


def test_golden_packs_are_read() -> None:
    """Old packs give the objects they were made from, by locators and by their tables."""
    _, commit, ref = write_packs()
    backend = MemoryBackend(f"golden {random.random()}")
    for path in GOLDEN.iterdir():
        backend.put(f"packs/{path.name}", [path.read_bytes()])
    store = ObjectStore(backend)

    found = store.load_commit(ref)
    assert found == commit
    assert isinstance(found.root.content, Subtree)
    assert found.root.content.root is not None
    leaf = store.load_node(found.root.content.root)
    far, long, small = (row.content for row in leaf.iter_entries())  # type: ignore[union-attr]
    assert isinstance(far, Chunks)
    assert far.refs[0].locator is None
    assert isinstance(long, LongContent)
    chunks = store.load_chunk_list(long.ref)
    assert [store.load_chunk(chunk) for chunk in chunks] == [LARGE, TEXT]
    assert isinstance(small, Chunks)
    assert [store.load_chunk(chunk) for chunk in small.refs] == [TEXT, NOISE]
    assert small.refs[1].locator is not None
    assert small.refs[1].locator.pack_id == FIRST
    kinds = [kind for kind, _, _ in load_table(backend, SECOND).iter_objects(SECOND)]
    assert sorted(kinds) == [
        ObjectKind.CHUNK,
        ObjectKind.CHUNK,
        ObjectKind.NODE,
        ObjectKind.CHUNK_LIST,
        ObjectKind.COMMIT,
    ]


@pytest.mark.parametrize("name", refs())
def test_refs_are_as_ever(name: str) -> None:
    """Values of refs are written and read as they always were."""
    golden = (GOLDEN_REFS / f"{name}.json").read_bytes()

    assert encode_ref(refs()[name]) == golden
    assert decode_ref(golden, key="k") == refs()[name]


def make_missing() -> None:
    """Write the golden files that are not there; never replaces one."""
    backend, _, _ = write_packs()
    keys = [info.key for info in backend.iter_keys("packs/")]
    made = {GOLDEN / key.removeprefix("packs/"): backend.get(key) for key in keys}
    made |= {GOLDEN_REFS / f"{name}.json": encode_ref(ref) for name, ref in refs().items()}
    for path, data in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(data)


if __name__ == "__main__":
    make_missing()
