"""What a commit knows beside its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.unit.vfs_session import Session
from workspacefs.objects.commits import Commit, Provenance
from workspacefs.objects.refs import Ref
from workspacefs.workspace.commit import Committed, commit_pending
from workspacefs.workspace.notes import Note, find_note, read_note
from workspacefs.workspace.saving import store_work
from workspacefs.workspace.seal import SealedContents

NOTES: Mapping[bytes, Note] = {
    b"short": b"a few bytes",
    b"deep": {b"1": {b"long": b"x" * 300_000}, b"nothing": {}},
    b"empty": b"",
}


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """A session with one new file."""
    made = Session(tmp_path)
    made.make("f", b"data")
    yield made
    made.close()


def check_notes(commit: Commit, session: Session) -> None:
    """Look for all of NOTES, with nothing in memory."""
    store = session.workspace.store
    store.drop_caches()
    assert read_note(commit.notes, b"short", store) == b"a few bytes"
    assert read_note(commit.notes, b"deep/1/long", store) == b"x" * 300_000
    assert read_note(commit.notes, b"empty", store) == b""
    assert find_note(commit.notes, b"deep/nothing", store) is None


def test_commit_stores_its_notes(session: Session) -> None:
    """Notes come back as they were given; what is empty is not there."""
    made = commit_pending(
        session.workspace, session.session, session.pending(), message="m",
        provenance=Provenance(), meta={}, before_move=lambda commit_id: None, notes=NOTES,
    )  # fmt: skip

    assert isinstance(made, Committed)
    check_notes(session.workspace.store.load_commit(made.ref), session)


def test_saved_work_stores_its_notes(session: Session) -> None:
    """They are there for whoever resumes it."""
    stored = store_work(
        session.workspace, session.session, session.pending(), saver="me",
        provenance=Provenance(), contents=SealedContents(), find_stored=lambda object_id: None,
        notes=NOTES,
    )  # fmt: skip

    assert stored.work is not None
    commit = session.workspace.store.load_commit(Ref(stored.work.commit_id, stored.work.locator))
    check_notes(commit, session)


def test_commit_without_notes_has_none(session: Session) -> None:
    """Nothing is stored where there is nothing to tell."""
    made = commit_pending(
        session.workspace, session.session, session.pending(), message="m",
        provenance=Provenance(), meta={}, before_move=lambda commit_id: None,
    )  # fmt: skip

    assert isinstance(made, Committed)
    assert made.commit.notes is None
