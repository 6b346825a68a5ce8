"""A directory that is edited passes on where its unchanged rows lie, for every one of them."""

from __future__ import annotations

import random

import pytest

from workspacefs.backend.memory import MemoryBackend
from workspacefs.ids import FileId
from workspacefs.objects.entry import Chunks, Entry, Subtree
from workspacefs.packs.reader import ObjectStore
from workspacefs.packs.writer import ObjectWriter
from workspacefs.trees.build import build_directory
from workspacefs.trees.edit import edit_directory
from workspacefs.trees.parameters import TreeParameters
from workspacefs.trees.walk import iter_entries

PARAMS = TreeParameters(seed=7)


def entry(name: bytes, number: int, content: Chunks) -> Entry:
    size = sum(ref.size_bytes for ref in content.refs)
    return Entry(name, 0o100644, 0, 0, size, 0, 0, FileId(number + 10), 1, content)


@pytest.mark.parametrize("names", [20, 400, 3000])
@pytest.mark.parametrize("threads", [0, 2])
def test_locators_of_unchanged_rows_are_kept(names: int, threads: int) -> None:
    """Through ten generations of edits, each chunk is found by its locator alone."""
    backend = MemoryBackend(f"spans-{names}-{threads}")
    store = ObjectStore(backend)
    rng = random.Random(names)
    lying: dict[bytes, bytes] = {}
    subtree = Subtree()
    for generation in range(10):
        with ObjectWriter(backend, threads=threads) as writer:
            changes: dict[bytes, Entry | None] = {}
            picked = range(names) if generation == 0 else rng.sample(range(names), 5)
            for number in picked:
                name = b"f%06d" % number
                if generation and rng.random() < 0.3:
                    changes[name] = None
                    lying.pop(name, None)
                    continue
                data = rng.randbytes(rng.choice([200, 3000, 150_000]))
                refs = tuple(
                    writer.add_chunk(data[at : at + 70_000]) for at in range(0, len(data), 70_000)
                )
                changes[name] = entry(name, number, Chunks(refs))
                lying[name] = data
            if generation == 0:
                made = [changes[name] for name in sorted(changes)]
                subtree = build_directory([one for one in made if one], writer, PARAMS)
            else:
                subtree = edit_directory(subtree, changes, store, writer, PARAMS)
            writer.finish()
        store = ObjectStore(backend)

    seen = {}
    for found in iter_entries(subtree, store):
        assert isinstance(found.content, Chunks)
        assert all(ref.locator is not None for ref in found.content.refs)
        seen[found.name] = b"".join(store.load_chunk(ref) for ref in found.content.refs)
    assert seen == lying
