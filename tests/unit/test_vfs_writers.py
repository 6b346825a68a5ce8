"""Notes of writers beside what operations change, in a live layer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.vfs_session import Session
from workspacefs.clock import SystemClock
from workspacefs.layers.layer import Layer
from workspacefs.layers.writers import Process, ProcessId, iter_files, iter_processes, process_id_of
from workspacefs_daemon.vfs.filesystem import FileSystem
from workspacefs_daemon.vfs.inode import Inode
from workspacefs_daemon.vfs.marks import KnownProcess
from workspacefs_daemon.vfs.services import Services
from workspacefs_daemon.vfs.writers import WriteHandle, Writers


class Numbers:
    """Processes by number, each the child of the one before."""

    def __init__(self) -> None:
        self.known: dict[int, KnownProcess] = {}
        self.becomes: dict[int, int] = {}

    def find(self, number: int) -> KnownProcess:
        if number not in self.known:
            parent = self.find(number - 1).id if number > 1 else None
            process = Process(number, 1, b"/x", (b"x",), parent=parent)
            self.known[number] = KnownProcess(process_id_of(process), process, is_settled=False)
        return self.known[number]

    def find_later(self, number: int, before: KnownProcess) -> KnownProcess:
        return self.find(self.becomes.get(number, number))

    def find_by_id(self, process_id: ProcessId) -> Process | None:
        return next((one.process for one in self.known.values() if one.id == process_id), None)


class Noting:
    """A session whose operations are noted."""

    def __init__(self, directory: Path) -> None:
        self.session = Session(directory)
        self.numbers = Numbers()
        self.writers = Writers(self.numbers, lambda: 7)
        session = self.session
        services = Services(
            clock=SystemClock(), file_ids=session._file_ids, live=session.live,
            writers=self.writers,
        )  # fmt: skip
        session.fs = FileSystem(
            session.overlay, services, disk=str(directory), sync=session.fs.sync
        )

    @property
    def live(self) -> Layer:
        return self.session.live

    def by(self, number: int) -> Session:
        """Let what comes next be done by a process."""
        self.writers.begin(number, self.live)
        return self.session

    def told(self, inode: Inode) -> set[int]:
        """Return the numbers of those that a file is noted of."""
        with self.live.snapshot() as snapshot:
            numbers = {key: seen.process.pid for key, seen in iter_processes([snapshot])}
            files = dict(iter_files([snapshot]))
        found = files.get(inode.file_id)
        return set() if found is None else {numbers[one] for one in found.processes}


@pytest.fixture
def noting(tmp_path: Path) -> Iterator[Noting]:
    made = Noting(tmp_path)
    yield made
    made.session.close()


def test_each_change_is_by_whoever_makes_it(noting: Noting) -> None:
    """One file, several processes, each once."""
    inode = noting.by(1).make("f")
    noting.by(2).fs.files.set_attributes(inode, mode=0o600)
    noting.by(1).fs.files.resize(inode, 5)
    noting.by(3).fs.files.set_xattr(inode, b"user.a", b"b")

    assert noting.told(inode) == {1, 2, 3}


def test_what_is_not_in_memory_any_more_is_added_to(noting: Noting) -> None:
    """An inode that was forgotten does not know what the layer notes."""
    inode = noting.by(1).make("f")
    noting.session.fs.forget(inode.file_id, 1)
    again = noting.session.at("f")
    assert again is not inode

    noting.by(2).fs.files.resize(again, 5)

    assert noting.told(again) == {1, 2}


def test_file_that_was_made_and_removed_leaves_no_row(noting: Noting) -> None:
    """Whatever was done to it, also without a name."""
    inode = noting.by(1).make("f")
    root = noting.session.overlay.root
    noting.by(2).fs.namespace.unlink(root, b"f")
    noting.by(2).fs.files.write(inode, 0, b"data")

    with noting.live.snapshot() as snapshot:
        assert dict(iter_files([snapshot])) == {}


def test_layer_names_writers_and_what_started_them(noting: Noting) -> None:
    """Of the latter it says that they wrote nothing; until they do."""
    noting.by(3).make("f")
    with noting.live.snapshot() as snapshot:
        before = {seen.process.pid: seen.first_ns for _, seen in iter_processes([snapshot])}
    noting.by(2).make("g")
    with noting.live.snapshot() as snapshot:
        after = {seen.process.pid: seen.first_ns for _, seen in iter_processes([snapshot])}

    assert before == {1: 0, 2: 0, 3: 7}
    assert after == {1: 0, 2: 7, 3: 7}


def test_write_is_by_what_the_opener_became(noting: Noting) -> None:
    """And, in a layer, only the first one is looked at."""
    inode = noting.by(1).make("f")
    handle = WriteHandle(inode, 1, noting.numbers.find(1))
    noting.numbers.becomes[1] = 5

    noting.writers.begin_write(handle, noting.live)
    noting.session.fs.files.write(inode, 0, b"data")

    assert noting.told(inode) == {1, 5}


def test_change_that_does_not_come_through_is_by_nobody(noting: Noting) -> None:
    """A step that fails leaves neither row nor memory of it."""
    inode = noting.by(1).make("f")
    rows = noting.live.rows
    commit, rows.commit = rows.commit, _no_commit  # type: ignore[method-assign]
    noting.writers.begin(1, noting.live)
    try:
        with pytest.raises(OSError, match="full"):
            noting.session.fs.namespace.create(noting.session.overlay.root, b"g", 0o100644, 0, 0)
    finally:
        rows.commit = commit  # type: ignore[method-assign]
    noting.by(2).fs.files.resize(inode, 3)

    assert noting.told(inode) == {1, 2}


def _no_commit(rows: object) -> None:
    raise OSError("full")
