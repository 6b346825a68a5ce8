"""Commits: how many requests they take one after the other, and what lost answers leave behind."""

from __future__ import annotations

import json
import random
import secrets
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.recording_backend import RecordingBackend, is_after, kinds_of
from tests.unit.vfs_session import Session
from workspacefs.backend.memory import MemoryBackend
from workspacefs.backend.retry import RetryPolicy
from workspacefs.errors import MovedError, UnavailableError
from workspacefs.ids import ROOT_FILE_ID, CommitId, FileId
from workspacefs.objects.commits import Commit, Provenance
from workspacefs.objects.entry import Chunks, Entry, Subtree
from workspacefs.packs.writer import ObjectWriter
from workspacefs.refs import Moved, RefKind, Refs
from workspacefs.testing.faulty import FaultyBackend
from workspacefs.trees.build import build_directory
from workspacefs.workspace.commit import (
    Committed,
    Unchanged,
    commit_pending,
    land_commit,
    settle_unclear,
)
from workspacefs.workspace.publish import RefMove, publish_commit
from workspacefs.workspace.sessions import OpenSession
from workspacefs.workspace.workspace import Workspace

DIRS, FILES = 300, 100


def directory(name: bytes, subtree: Subtree, file_id: int) -> Entry:
    return Entry(name, stat.S_IFDIR | 0o755, 0, 0, 0, 1, 1, FileId(file_id), 2, subtree)


def build_tree(workspace: Workspace, writer: ObjectWriter) -> Entry:
    """Write 30,000 files in 300 directories in 10 directories."""
    ids = iter(range(1 << 24, 1 << 25))
    chunk = writer.add_chunk(random.Random(1).randbytes(2000))
    tops = []
    for top in range(10):
        below = []
        for number in range(DIRS // 10):
            files = [
                Entry(b"f%02d" % at, 0o100644, 0, 0, 2000, 1, 1, FileId(next(ids)), 1, content)
                for at in range(FILES)
                for content in [Chunks((chunk,))]
            ]
            subtree = build_directory(files, writer, workspace.tree_params)
            below.append(directory(b"d%02d" % number, subtree, next(ids)))
        subtree = build_directory(below, writer, workspace.tree_params)
        tops.append(directory(b"t%d" % top, subtree, next(ids)))
    return directory(b"", build_directory(tops, writer, workspace.tree_params), ROOT_FILE_ID)


def publish(workspace: Workspace, root: Entry, writer: ObjectWriter) -> None:
    """Make a tree the next commit of main."""
    found = workspace.refs.find(RefKind.BRANCH, "main")
    previous, version = found if found is not None else (None, None)
    head = previous.ref() if previous is not None else None
    answer, _ = publish_commit(
        workspace,
        writer,
        Commit(root=root, parents=() if head is None else (head,), message="m", time_ns=1),
        RefMove(
            kind=RefKind.BRANCH, name="main", expected=version, previous=previous,
            action="import", moved_by="other",
        ),
    )  # fmt: skip
    assert isinstance(answer, Moved)


@pytest.fixture
def backend() -> RecordingBackend:
    return RecordingBackend()


@pytest.fixture
def session(backend: RecordingBackend, tmp_path: Path) -> Iterator[Session]:
    """A session over a large tree, with nothing of it in memory."""
    workspace = Workspace.create(backend)
    with workspace.new_writer() as writer:
        publish(workspace, build_tree(workspace, writer), writer)
    session = Session(tmp_path, is_local=False, workspace=workspace)
    yield session
    session.close()


def change(session: Session, count: int) -> None:
    """Write to files, each in another directory; leave nothing in memory."""
    for number in range(count):
        inode = session.at(f"t{number % 10}/d{number // 10:02d}/f{number % FILES:02d}")
        session.run(lambda: session.fs.files.write(inode, 0, b"%d" % number))  # noqa: B023
    session.restart()
    session.workspace.store.drop_caches()


def commit(session: Session, *, into: str = "") -> Committed:
    made = commit_pending(
        session.workspace, session.session, session.pending(), message="m",
        provenance=Provenance(author="me"), meta={}, before_move=lambda commit_id: None, into=into,
    )  # fmt: skip
    assert isinstance(made, Committed)
    return made


def entries_of(workspace: Workspace) -> list[dict[str, str]]:
    keys = [info.key for info in workspace.backend.iter_keys("ops/")]
    return [json.loads(workspace.backend.get(key)) for key in keys]


def test_commit_takes_two_writes_one_after_the_other(
    backend: RecordingBackend, session: Session
) -> None:
    """Pack and log entry go at the same time; then the ref. Few reads find all 100 directories."""
    change(session, 100)

    with backend.recorded() as made, backend.together(["put packs", "put ops"]):
        committed = commit(session)

    assert committed.sealed.counts.modified == 100
    writes = [one for one in made if one.verb != "get"]
    assert kinds_of(writes) == ["put ops", "put packs", "swap refs"]
    swap = next(one for one in writes if one.verb == "swap")
    assert is_after(swap, [one for one in made if one is not swap])
    reads = [one for one in made if one.verb == "get"]
    assert {one.kind for one in reads} == {"get packs"}
    assert len(reads) <= 10


def test_local_commit_starts_no_thread(tmp_path: Path) -> None:
    """On a local store all requests come from the caller's thread, data before what names it."""
    backend = RecordingBackend(is_local=True)
    session = Session(tmp_path, workspace=Workspace.create(backend))
    session.make("f", b"x" * 500)

    with backend.recorded() as made:
        committed = commit(session, into="main")
        land_commit(session.workspace, committed.session, "main", moved_by="me")
    session.close()

    assert {one.thread for one in made} == {threading.get_ident()}
    assert [one.kind for one in made if one.verb != "get"] == [
        "put packs", "put ops", "put ops", "swap refs", "put ops", "swap refs",
    ]  # fmt: skip


def test_commit_into_a_branch_takes_three_round_trips(
    backend: RecordingBackend, session: Session
) -> None:
    """The branch is read beside the packs, the landing logged beside the session's move."""
    change(session, 10)

    with (
        backend.recorded() as made,
        backend.together(["put packs", "put ops", "get refs"], ["put ops", "swap refs"]),
    ):
        committed = commit(session, into="main")
        first = len(backend.requests)
        assert land_commit(
            session.workspace, committed.session, "main", moved_by="me", landing=committed.landing
        )

    assert [one.kind for one in backend.requests[first:]] == ["swap refs"]
    assert kinds_of([one for one in made if one.verb != "get"]) == [
        "put ops", "put ops", "put packs", "swap refs", "swap refs",
    ]  # fmt: skip
    record, _ = session.workspace.refs.get(RefKind.BRANCH, "main")
    assert record.commit_id == committed.ref.id
    actions = [entry["action"] for entry in entries_of(session.workspace)]
    assert actions == ["import", "commit", "land"]
    assert entries_of(session.workspace)[-1]["write_id"] == record.write_id


def test_later_landing_takes_three_requests(backend: RecordingBackend, session: Session) -> None:
    """Without preparation: look, log, move. A second one: look."""
    change(session, 3)
    committed = commit(session)
    land = lambda: land_commit(session.workspace, committed.session, "main", moved_by="me")  # noqa: E731

    with backend.recorded() as made:
        first = land()
    with backend.recorded() as again:
        second = land()

    assert first is not None
    assert second is not None
    assert (first.is_moved, second.is_moved) == (True, False)
    assert first.ref == second.ref == committed.ref

    assert [one.kind for one in made] == ["get refs", "put ops", "swap refs"]
    assert [one.kind for one in again] == ["get refs"]


def test_landing_on_a_branch_that_moved_tells_and_cleans_up(
    backend: RecordingBackend, session: Session
) -> None:
    """A prepared landing that lost its race leaves neither the branch nor the log changed."""
    change(session, 3)
    committed = commit(session, into="main")
    workspace = session.workspace
    publish(workspace, session.root_entry._replace(mtime_ns=9), workspace.new_writer())
    before = workspace.refs.get(RefKind.BRANCH, "main")

    with pytest.raises(MovedError, match="did not land"):
        land_commit(workspace, committed.session, "main", moved_by="me", landing=committed.landing)

    assert workspace.refs.get(RefKind.BRANCH, "main") == before
    actions = [entry["action"] for entry in entries_of(workspace)]
    assert actions == ["import", "commit", "import"]


def test_landing_that_cannot_be_prepared_does_not_fail_the_commit(
    backend: RecordingBackend, session: Session
) -> None:
    """A damaged branch is the landing's problem."""
    change(session, 3)
    backend.inner.delete("refs/branches/main")
    backend.inner.put("refs/branches/main", [b"nonsense"])

    committed = commit(session, into="main")

    assert committed.landing is None
    record, _ = session.workspace.refs.get(RefKind.SESSION, "s")
    assert record.commit_id == committed.ref.id


def test_commit_of_a_session_that_moved_leaves_no_entry(
    backend: RecordingBackend, session: Session
) -> None:
    """MovedError; the log has neither the commit nor its landing."""
    change(session, 3)
    record, version = session.workspace.refs.get(RefKind.SESSION, "s")
    session.workspace.refs.compare_and_swap(
        RefKind.SESSION, "s", expected=version, new=replace(record, write_id="", moved_by="other")
    )

    with pytest.raises(MovedError, match="moved by someone else"):
        commit(session, into="main")

    assert [entry["action"] for entry in entries_of(session.workspace)] == ["import"]


class Unclear:
    """A session whose store loses requests and answers."""

    def __init__(self, directory: Path) -> None:
        self.backend = FaultyBackend(MemoryBackend(secrets.token_hex(8)))
        self.session = Session(directory, workspace=Workspace.create(self.backend))
        self.session.make("f", b"x" * 500)
        self.session.commit()
        self.session.make("g", b"y" * 500)
        self.workspace = self.session.workspace
        once = RetryPolicy(attempts=1)
        self.workspace.refs = Refs(self.backend, self.workspace.clock, retry=once)
        self.pending = self.session.pending()
        self.sealing: list[CommitId] = []

    def commit(self) -> Committed | Unchanged:
        return commit_pending(
            self.workspace, self.session.session, self.pending, message="m",
            provenance=Provenance(), meta={}, before_move=self.sealing.append,
        )  # fmt: skip

    def commit_unclearly(self, *, is_stored: bool) -> None:
        """Commit; the store does not say what became of it."""
        if is_stored:
            self.backend.lose_answers = 1
        else:
            self.backend.lose_requests = 1
        self.backend.before_write = lambda: setattr(self.backend, "lose_reads", 1)
        with pytest.raises(UnavailableError) as caught:
            self.commit()
        assert caught.value.kind == "ref.unknown"

    def settle(self) -> Committed | OpenSession:
        return settle_unclear(
            self.workspace, self.session.session, self.sealing[-1], self.pending, moved_by="me"
        )


@pytest.fixture
def unclear(tmp_path: Path) -> Iterator[Unclear]:
    unclear = Unclear(tmp_path)
    yield unclear
    unclear.session.close()


def test_move_whose_answer_was_lost_is_found_out(unclear: Unclear) -> None:
    """The ref moved: what is returned is what commit_pending would have returned."""
    unclear.commit_unclearly(is_stored=True)

    settled = unclear.settle()

    assert isinstance(settled, Committed)
    assert settled.ref.id == unclear.sealing[0]
    record, version = unclear.workspace.refs.get(RefKind.SESSION, "s")
    assert settled.session == OpenSession(settled.session.session, record, version)
    assert settled.sealed.root == settled.commit.root
    names = {entry.name for entry in settled.sealed.entries.values()}
    assert b"g" in names


def test_move_that_was_lost_cannot_come_later(unclear: Unclear) -> None:
    """The ref did not move: afterwards the lost request fails, and the next commit succeeds."""
    unclear.commit_unclearly(is_stored=False)
    before = unclear.session.session

    settled = unclear.settle()

    assert isinstance(settled, OpenSession)
    assert settled.head == before.head
    assert settled.session == before.session
    late = unclear.workspace.refs.compare_and_swap(
        RefKind.SESSION, "s", expected=before.version,
        new=replace(before.record, commit_id=unclear.sealing[0]),
    )  # fmt: skip
    assert not isinstance(late, Moved)
    unclear.session.session = settled
    assert isinstance(unclear.commit(), Committed)
    entries = entries_of(unclear.workspace)
    assert [entry["action"] for entry in entries] == ["commit", "commit", "settle", "commit"]
    assert entries[3]["previous_write_id"] == entries[2]["write_id"]
    assert entries[2]["previous_write_id"] == entries[0]["write_id"]


def test_settling_that_is_unclear_itself_is_asked_again(unclear: Unclear) -> None:
    """A lost answer to the settling write is recognised by the version, which is another."""
    unclear.commit_unclearly(is_stored=False)
    original = unclear.session.session.version
    unclear.backend.lose_answers = 1
    unclear.backend.before_write = lambda: setattr(unclear.backend, "lose_reads", 1)
    with pytest.raises(UnavailableError):
        unclear.settle()

    settled = unclear.settle()

    assert isinstance(settled, OpenSession)
    assert settled.version != original
    assert settled.version == unclear.workspace.refs.get(RefKind.SESSION, "s")[1]


def test_settling_behind_someone_else_tells(unclear: Unclear) -> None:
    """Neither where it was nor where we were going: the session is in use elsewhere."""
    unclear.commit_unclearly(is_stored=False)
    other = unclear.commit()
    assert isinstance(other, Committed)
    assert other.ref.id == unclear.sealing.pop()

    with pytest.raises(MovedError):
        unclear.settle()
