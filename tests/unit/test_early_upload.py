"""Content that is stored ahead of its commit: what, when, and what is left to the commit."""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar, cast

import pytest
import trio
from trio.testing import MockClock

from tests.unit.vfs_session import Session
from workspacefs.backend.memory import MemoryBackend
from workspacefs.errors import NoSpaceError
from workspacefs.objects.commits import Provenance
from workspacefs.testing.faulty import FaultyBackend
from workspacefs.workspace.commit import Committed, commit_pending
from workspacefs.workspace.early_upload import EarlyUpload
from workspacefs.workspace.pending import Pending
from workspacefs.workspace.workspace import Workspace
from workspacefs_daemon.background.uploading import PERIOD_S, upload_early
from workspacefs_daemon.mounted import Mounted

T = TypeVar("T")

_FILE_BYTES = 300_000
_FAR_FUTURE_NS = 1 << 62


def some_bytes(seed: object, size_bytes: int = _FILE_BYTES) -> bytes:
    return random.Random(str(seed)).randbytes(size_bytes)


class World:
    """A session over a store that can be made to fail, and the early upload of it."""

    def __init__(self, directory: Path) -> None:
        self.backend = FaultyBackend(MemoryBackend(secrets.token_hex(8)))
        self.workspace = Workspace.create(self.backend)
        self._directory = directory
        self.session = Session(directory / "own", workspace=self.workspace)
        self.slept: list[float] = []
        self.early = EarlyUpload(self.workspace, sleep=self.slept.append)

    def at_rest(self, *, before_ns: int = _FAR_FUTURE_NS) -> dict[str, int]:
        """Return the sizes of what would be uploaded, by name."""
        names = {self.session.at(name).file_id: name for name in self.names()}
        found = self.early.files_at_rest(self.session.pending(), before_ns=before_ns)
        return {names[file_id]: size_bytes for file_id, size_bytes in found}

    def names(self) -> list[str]:
        return [name.decode() for name in self.session.names(self.session.overlay.root)]

    def upload(self) -> None:
        """Upload all that is at rest."""
        pending = self.session.pending()
        files = self.early.files_at_rest(pending, before_ns=_FAR_FUTURE_NS)
        self.early.upload(pending, [file_id for file_id, _ in files])

    def commit(self) -> int:
        """Commit, and check what was; return the bytes that this stored."""
        expected = {name: self.session.read(self.session.at(name)) for name in self.names()}
        made = commit_pending(
            self.workspace, self.session.session, self.session.pending(), message="m",
            provenance=Provenance(), meta={}, before_move=lambda commit_id: None,
            find_stored=self.early.find,
        )  # fmt: skip
        assert isinstance(made, Committed)
        fresh = Session(self._directory / "fresh", workspace=Workspace.open(self.backend))
        read = {name: fresh.read(fresh.at(name)) for name in expected}
        fresh.close()
        assert read == expected
        return made.summary.stored_bytes

    def stored_bytes(self) -> int:
        """Return the bytes of all packs."""
        return sum(info.size_bytes for info in self.backend.iter_keys("packs/"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.session.close()


def test_commit_stores_no_content_that_was_uploaded(world: World) -> None:
    """Only names are left to be stored, and what was committed reads as it was written."""
    for number in range(5):
        world.session.make(f"f{number}", some_bytes(number))

    world.upload()
    uploaded_bytes = world.stored_bytes()
    stored_bytes = world.commit()

    assert uploaded_bytes > 5 * _FILE_BYTES
    assert world.early.uploaded_bytes == 5 * _FILE_BYTES
    assert stored_bytes < 20_000


def test_what_is_still_being_written_is_left_alone(world: World) -> None:
    """A file is at rest when it was not changed for a while; then once, unless it changes."""
    world.session.make("f", some_bytes(1))
    changed_ns = world.session.at("f").ctime_ns

    assert world.at_rest(before_ns=changed_ns - 1) == {}
    assert world.at_rest(before_ns=changed_ns) == {"f": _FILE_BYTES}
    world.upload()
    assert world.at_rest() == {}
    inode = world.session.at("f")
    world.session.run(lambda: world.session.fs.files.write(inode, 0, b"changed"))
    assert world.at_rest() == {"f": _FILE_BYTES}


def test_file_that_changed_since_is_committed_as_it_is(world: World) -> None:
    """What was uploaded of it before costs bytes, and nothing else."""
    world.session.make("f", some_bytes(1))
    world.session.make("gone", some_bytes(2))
    world.upload()
    inode = world.session.at("f")
    world.session.run(lambda: world.session.fs.files.write(inode, 100, b"changed"))
    root = world.session.overlay.root
    world.session.run(lambda: world.session.fs.namespace.unlink(root, b"gone"))

    stored_bytes = world.commit()

    assert 0 < stored_bytes < 2 * _FILE_BYTES


def test_frozen_layers_are_uploaded_too(world: World) -> None:
    """As a commit that failed leaves them."""
    world.session.make("f", some_bytes(1))
    world.session.freeze()

    world.upload()

    assert world.at_rest() == {}
    assert world.commit() < 20_000


def test_empty_files_and_removed_ones_are_not_uploaded(world: World) -> None:
    """There is nothing to store of them."""
    world.session.make("empty")
    world.session.make("gone", some_bytes(1))
    root = world.session.overlay.root
    world.session.run(lambda: world.session.fs.namespace.unlink(root, b"gone"))

    assert world.at_rest() == {}


def test_file_that_is_removed_before_its_turn_is_skipped(world: World) -> None:
    """It was at rest when the list was made."""
    world.session.make("gone", some_bytes(1))
    files = world.early.files_at_rest(world.session.pending(), before_ns=_FAR_FUTURE_NS)
    root = world.session.overlay.root
    world.session.run(lambda: world.session.fs.namespace.unlink(root, b"gone"))

    world.early.upload(world.session.pending(), [file_id for file_id, _ in files])

    assert world.stored_bytes() < _FILE_BYTES


def test_upload_that_fails_is_done_again(world: World) -> None:
    """Nothing of it counts as stored: a commit would name what is not there."""
    world.session.make("f", some_bytes(1))
    world.backend.full_after_writes = 0

    with pytest.raises(NoSpaceError):
        world.upload()

    world.backend.full_after_writes = None
    assert world.at_rest() == {"f": _FILE_BYTES}
    assert world.commit() > _FILE_BYTES


def test_what_was_uploaded_is_forgotten_with_a_commit(world: World) -> None:
    """The commit names it now; it is found there."""
    world.session.make("f", some_bytes(1))
    world.upload()

    world.early.forget()

    assert world.at_rest() == {"f": _FILE_BYTES}


def test_upload_leaves_time_to_others(world: World) -> None:
    """After each file it waits in proportion to the time that it took."""
    for number in range(3):
        world.session.make(f"f{number}", some_bytes(number))

    world.upload()

    assert len(world.slept) == 3
    assert all(seconds > 0 for seconds in world.slept)


class FakeMount:
    """What the background task uses of a mount; jobs are done at once, on the loop."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.fs = world.session.fs
        self.committing = trio.Lock()
        self.services = SimpleNamespace(now_ns=self._now_ns)
        self.blocking = self
        self.jobs = 0

    @contextmanager
    def viewed(self) -> Iterator[Pending]:
        """See Mounted.viewed."""
        yield self._world.session.pending()

    async def job(self, call: Callable[[], T]) -> T:
        """See Blocking.job."""
        self.jobs += 1
        await trio.lowlevel.checkpoint()
        return call()

    def _now_ns(self) -> int:
        return time.time_ns() + int(trio.current_time() * 1e9)


def during(world: World, script: Callable[[FakeMount], object]) -> FakeMount:
    """Run the background task while `script`, an async function, goes on; time flies."""

    async def main() -> FakeMount:
        mount = FakeMount(world)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(upload_early, world.early, cast("Mounted", mount))
            await script(mount)  # type: ignore[misc]
            nursery.cancel_scope.cancel()
        return mount

    return trio.run(main, clock=MockClock(autojump_threshold=0))


def write(world: World, name: str, size_bytes: int) -> None:
    """Write so much, in pieces as the kernel does."""
    inode = world.session.make(name)
    for offset in range(0, size_bytes, 1 << 20):
        piece = some_bytes((name, offset), 1 << 20)
        world.session.run(lambda: world.session.fs.files.write(inode, offset, piece))  # noqa: B023


def test_long_session_uploads_by_itself(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """40 MB, at rest for a period: then a commit has next to nothing to store."""
    caplog.set_level(logging.INFO)
    write(world, "a", 20 << 20)
    write(world, "b", 20 << 20)

    async def script(mount: FakeMount) -> None:
        await trio.sleep(PERIOD_S * 1.5)
        jobs = mount.jobs
        await trio.sleep(PERIOD_S * 5)
        assert mount.jobs == jobs, "it goes on although nothing was written"

    during(world, script)

    (done,) = [record for record in caplog.records if record.message == "upload.done"]
    assert done.bytes == 40 << 20  # type: ignore[attr-defined]
    assert world.commit() < 1 << 16


def test_little_is_left_to_the_commit(world: World) -> None:
    """It is short anyway, and early packs would be small."""
    write(world, "a", 4 << 20)

    async def script(mount: FakeMount) -> None:
        await trio.sleep(PERIOD_S * 5)

    assert during(world, script).jobs == 0
    assert world.stored_bytes() == 0


def test_upload_makes_way_for_a_commit(world: World) -> None:
    """While one runs it reads and stores everything by itself."""
    write(world, "a", 20 << 20)

    async def script(mount: FakeMount) -> None:
        async with mount.committing:
            await trio.sleep(PERIOD_S * 3)
            assert world.stored_bytes() == 0
        await trio.sleep(PERIOD_S * 1.5)

    during(world, script)

    assert world.stored_bytes() > 20 << 20


def test_upload_is_put_off_while_the_store_is_away(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Tried again by itself, until it is done."""
    caplog.set_level(logging.INFO)
    write(world, "a", 20 << 20)

    async def script(mount: FakeMount) -> None:
        world.backend.full_after_writes = 0
        await trio.sleep(PERIOD_S * 2.5)
        world.backend.full_after_writes = None
        await trio.sleep(PERIOD_S)

    during(world, script)

    events = [record.message for record in caplog.records if record.message.startswith("upload.")]
    assert events == ["upload.put_off", "upload.put_off", "upload.done"]
    assert world.commit() < 1 << 16
