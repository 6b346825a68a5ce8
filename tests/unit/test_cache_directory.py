"""The cache of one machine: found again, kept under its limit, deleted at any time."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from workspacefs.cache.block_file import BLOCK_BYTES
from workspacefs.cache.directory import CacheDirectory, clear, evict, usage
from workspacefs.cache.evictor import Evictor

URL = "s3://bucket/prefix"
_ROOMY = (1 << 50, 1 << 49)


def no_bound(root: Path) -> tuple[int, int]:
    """Return (total, free) of a disk that is never full."""
    return _ROOMY


@pytest.fixture
def directory(tmp_path: Path) -> CacheDirectory:
    return CacheDirectory(tmp_path / "cache", URL, is_writable=True)


def fill(directory: CacheDirectory, key: str, data: bytes = b"x" * BLOCK_BYTES) -> Path:
    """Keep a whole value; return its path."""
    file = directory.open(key)
    file.note_total(len(data))
    file.write(0, data)
    file.set_present(0, -(-len(data) // BLOCK_BYTES))
    return file.path


def read(directory: CacheDirectory, key: str, length: int = BLOCK_BYTES) -> bytes | None:
    """Return the beginning of a value, as a session process would look for it."""
    file = directory.find(key)
    found = None if file is None else file.read(0, length)
    return None if found is None else found.data


def values(root: Path) -> set[str]:
    """Return the names of all values on disk."""
    return {path.name for path in root.glob("*/values/*")}


def test_reader_finds_what_a_writer_keeps(directory: CacheDirectory) -> None:
    """A second process finds values of the same store, and none of another store."""
    same = CacheDirectory(directory.root, URL, is_writable=False)
    other = CacheDirectory(directory.root, URL + "2", is_writable=False)
    assert read(same, "packs/a") is None

    fill(directory, "packs/a", b"value" * 20_000)

    assert read(same, "packs/a", 100_000) == b"value" * 20_000
    assert read(other, "packs/a") is None


def test_reader_makes_nothing(tmp_path: Path) -> None:
    """Looking for something leaves no directory behind."""
    reader = CacheDirectory(tmp_path / "cache", URL, is_writable=False)

    assert reader.find("packs/a") is None
    reader.remove("packs/a")

    assert not (tmp_path / "cache").exists()


def test_keys_lead_to_files_of_their_own(directory: CacheDirectory) -> None:
    """No two keys share a file, and none leads out of the directory."""
    keys = ["packs/a", "packs/b", "packs/a/b", "a", "packs/../../../a", ".."]

    for key in keys[:5]:
        fill(directory, key, key.encode() * 1000)
    with pytest.raises(OSError):
        directory.open("..")

    for key in keys[:5]:
        assert read(directory, key, 1000) == (key.encode() * 1000)[:1000]
    assert {path.parent for path in directory.root.rglob("*") if path.is_file()} == {
        directory.store_dir,
        directory.store_dir / "values",
    }


def test_values_used_longest_ago_go_first(directory: CacheDirectory) -> None:
    """Eviction takes whole values in order of last use, down to nine tenths of the limit."""
    paths = {name: fill(directory, name) for name in ("c", "a", "d", "b")}
    each = paths["a"].stat().st_blocks * 512
    for age, name in enumerate(("a", "b", "c", "d")):
        os.utime(paths[name], (1000 + age, 1000 + age))

    freed = evict(directory.root, 3 * each, disk_of=no_bound)

    assert values(directory.root) == {"c", "d"}
    assert freed == 2 * each


def test_use_keeps_a_value(directory: CacheDirectory) -> None:
    """A value that a session opens counts as used, though it was fetched long ago."""
    for name in ("old", "new"):
        os.utime(fill(directory, name), (1000, 1000 + len(name)))
    reader = CacheDirectory(directory.root, URL, is_writable=False)

    reader.find("new")

    assert evict(directory.root, 100_000, disk_of=no_bound) > 0
    assert values(directory.root) == {"new"}


def test_nothing_goes_below_the_limit(directory: CacheDirectory) -> None:
    """A cache that fits stays as it is."""
    path = fill(directory, "a")

    assert evict(directory.root, path.stat().st_blocks * 512, disk_of=no_bound) == 0
    assert values(directory.root) == {"a"}


def test_last_part_of_the_disk_stays_free(directory: CacheDirectory) -> None:
    """On a disk that is nearly full the cache makes room, whatever its limit."""
    fill(directory, "a")
    tera = 1 << 40

    assert evict(directory.root, tera, disk_of=lambda root: (tera, tera // 19)) == 0
    assert evict(directory.root, tera, disk_of=lambda root: (tera, tera // 21)) > 0
    assert values(directory.root) == set()


def test_limit_holds_for_all_stores_together(directory: CacheDirectory) -> None:
    """Values of another store are evicted as well."""
    other = CacheDirectory(directory.root, URL + "2", is_writable=True)
    os.utime(fill(other, "theirs"), (1000, 1000))
    fill(directory, "ours")

    evict(directory.root, 100_000, disk_of=no_bound)

    assert values(directory.root) == {"ours"}


def test_evicted_space_is_free_though_the_value_is_open(directory: CacheDirectory) -> None:
    """A value that some process still has open takes no room once it was evicted."""
    fill(directory, "a")
    held = CacheDirectory(directory.root, URL, is_writable=False).find("a")
    assert held is not None
    assert held.allocated_bytes() > 0

    evict(directory.root, 0, disk_of=no_bound)

    assert held.allocated_bytes() == 0
    assert not held.is_linked()
    assert held.read(0, 1) is None


def test_foreign_things_do_not_stop_eviction(directory: CacheDirectory) -> None:
    """What cannot be deleted is passed over."""
    path = fill(directory, "b")
    foreign = path.with_name("a")
    foreign.mkdir()
    (foreign / "x").write_bytes(b"x" * 100_000)
    os.utime(foreign, (10, 10))
    os.utime(path, (1000, 1000))

    evict(directory.root, 0, disk_of=no_bound)

    assert values(directory.root) == {"a"}


def test_evicted_value_is_made_anew(directory: CacheDirectory) -> None:
    """Who writes after an eviction writes where others look for it."""
    fill(directory, "a", b"1" * BLOCK_BYTES)
    evict(directory.root, 0, disk_of=no_bound)

    fill(directory, "a", b"2" * BLOCK_BYTES)

    reader = CacheDirectory(directory.root, URL, is_writable=False)
    assert read(reader, "a") == b"2" * BLOCK_BYTES
    assert read(directory, "a") == b"2" * BLOCK_BYTES


def test_whole_cache_may_be_deleted_while_it_is_in_use(directory: CacheDirectory) -> None:
    """After rm -rf values are missing and can be kept again."""
    fill(directory, "a")
    reader = CacheDirectory(directory.root, URL, is_writable=False)
    assert read(reader, "a") is not None

    shutil.rmtree(directory.root)

    fill(directory, "b")
    fill(directory, "a", b"n" * BLOCK_BYTES)
    assert read(CacheDirectory(directory.root, URL, is_writable=False), "a") == b"n" * BLOCK_BYTES
    assert values(directory.root) == {"a", "b"}
    assert (directory.store_dir / "url").read_text() == URL + "\n"


@pytest.mark.parametrize("content", [b"", b"foreign", b"wsfsblk1", bytes(100_000)])
def test_foreign_file_is_replaced(directory: CacheDirectory, content: bytes) -> None:
    """A file that is none of ours is not read, and makes way when the value comes."""
    path = fill(directory, "a")
    directory.drop("a")
    path.write_bytes(content)

    assert directory.find("a") is None
    fill(directory, "a", b"ours" * 1000)

    assert read(directory, "a", 4000) == b"ours" * 1000


def test_threads_that_begin_a_value_share_its_file(tmp_path: Path) -> None:
    """The first blocks of a value, in a cache that is not there yet, come to one file."""
    for number in range(20):
        directory = CacheDirectory(tmp_path / str(number), URL, is_writable=True)
        meeting = threading.Barrier(8)

        def begin(block: int, directory: CacheDirectory = directory) -> None:
            meeting.wait(20.0)  # noqa: B023 (joined below)
            directory.open("a").set_present(block, block + 1)

        threads = [threading.Thread(target=begin, args=(block,)) for block in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20.0)

        file = CacheDirectory(tmp_path / str(number), URL, is_writable=False).find("a")
        assert file is not None
        assert file.missing_runs(0, 8) == []


def test_removed_value_is_gone(directory: CacheDirectory) -> None:
    """A value that was deleted in the store is not found any more, nor is there on disk."""
    fill(directory, "a")

    directory.remove("a")
    directory.remove("never")

    assert directory.find("a") is None
    assert values(directory.root) == set()


def test_open_values_are_bounded(directory: CacheDirectory) -> None:
    """However many values are used, only so many descriptors stay open."""
    before = len(os.listdir("/proc/self/fd"))

    for number in range(300):
        fill(directory, f"v{number}", b"x")

    assert len(os.listdir("/proc/self/fd")) - before <= 256
    assert read(directory, "v0", 1) == b"x"


def test_usage_and_clearing_by_store(directory: CacheDirectory) -> None:
    """Each store is told with its URL and size, and can be cleared alone, also while open."""
    other = CacheDirectory(directory.root, URL + "2", is_writable=True)
    fill(directory, "a")
    fill(directory, "b")
    fill(other, "a", b"x" * 5 * BLOCK_BYTES)
    held = other.find("a")
    assert held is not None

    found = usage(directory.root)
    freed = clear(directory.root, url=URL + "2")

    assert [(use.url, use.values) for use in found] == [(URL + "2", 1), (URL, 2)]
    assert freed == found[0].size_bytes
    assert held.allocated_bytes() == 0
    assert [use.url for use in usage(directory.root)] == [URL]
    assert clear(directory.root) == found[1].size_bytes
    assert usage(directory.root) == []
    assert clear(directory.root / "absent") == 0


def test_evictor_acts_when_enough_has_come(directory: CacheDirectory) -> None:
    """It looks at the cache at once, and then each time that an eighth of the limit came."""
    evictor = Evictor(directory.root, 8 * BLOCK_BYTES)
    fill(directory, "a", b"x" * 9 * BLOCK_BYTES)

    evictor.note(1)
    assert values(directory.root) == set()
    fill(directory, "a", b"x" * 9 * BLOCK_BYTES)
    evictor.note(BLOCK_BYTES - 1)
    assert values(directory.root) == {"a"}
    evictor.note(1)

    assert values(directory.root) == set()
    assert evictor.evicted_bytes >= 2 * 9 * BLOCK_BYTES
