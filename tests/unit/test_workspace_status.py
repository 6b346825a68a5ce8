"""What a status says of names that lead to other files than before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.vfs_session import Session
from workspacefs.workspace.status import iter_changes

DIRECTORY = 0o040755


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """A session over d/a, d/b, d/sub/c, e/a and f."""
    made = Session(tmp_path)
    for name in ("d", "d/sub", "e"):
        made.make(name, kind=DIRECTORY)
    for name in ("d/a", "d/b", "d/sub/c", "e/a", "f"):
        made.make(name, b"same" if name.endswith("a") else name.encode())
    made.commit()
    yield made
    made.close()


def remove(session: Session, path: str) -> None:
    """Remove a directory and all in it."""
    parent, _, name = path.rpartition("/")
    for child in session.names(session.at(path)):
        below = f"{path}/{child.decode()}"
        if session.at(below).is_dir:
            remove(session, below)
        else:
            session.fs.unlink(session.at(path), child)
    session.fs.namespace.rmdir(session.at(parent), name.encode())


def test_directory_made_anew_is_compared_by_path(session: Session) -> None:
    """rm -r and mkdir of one name: what is missing is deleted, what is equal is no change."""
    remove(session, "d")
    session.make("d", kind=DIRECTORY)
    session.make("d/b", b"other")
    session.make("d/new", b"new")

    status = session.status()

    assert status == {
        "d/a": "REMOVED", "d/b": "MODIFIED", "d/new": "ADDED", "d/sub": "REMOVED",
    }  # fmt: skip


def test_directory_in_the_place_of_a_file_and_the_other_way_round(session: Session) -> None:
    """Both are changes of kind; what was in the directory is deleted."""
    session.fs.unlink(session.at(""), b"f")
    session.make("f", kind=DIRECTORY)
    session.make("f/x", b"x")
    remove(session, "e")
    session.make("e", b"file")

    status = session.status()

    assert status == {"e": "TYPE", "e/a": "REMOVED", "f": "TYPE", "f/x": "ADDED"}


def test_exchanged_directories_are_compared_by_path(session: Session) -> None:
    """Exchanging two directories changes what stands under each path."""
    root = session.at("")
    session.fs.rename(root, b"d", root, b"e", 2)

    status = session.status()

    assert status == {
        "d/a": "ATTRIBUTES", "e/a": "ATTRIBUTES", "e/b": "RENAMED", "e/sub": "RENAMED",
    }  # fmt: skip
    session.commit()
    assert session.status() == {}


def test_change_of_a_file_with_two_names_is_told_of_both(session: Session) -> None:
    """Whichever name it was changed by; also when that name is gone afterwards."""
    root = session.at("")
    for name in (b"second", b"third"):
        session.fs.namespace.link(session.at("d/a"), root, name)
    session.commit()

    session.fs.files.write(session.at("third"), 0, b"other")
    session.fs.unlink(session.at(""), b"third")

    status = session.status()

    assert status == {"d/a": "MODIFIED", "second": "MODIFIED", "third": "REMOVED"}


def test_removing_what_a_frozen_layer_has_makes_nobody_look_everywhere(session: Session) -> None:
    """A file that changed, and then went, in another layer has no name: nobody must look for one
    in the whole base.
    """
    for number in range(30):
        session.make(f"dir{number}", kind=DIRECTORY)
        session.make(f"dir{number}/file", b"x")
    session.commit()
    session.run(lambda: session.fs.files.write(session.at("f"), 0, b"changed"))
    session.make("new", b"new")
    session.freeze()
    held = session.at("f")
    held.opens += 1
    session.fs.unlink(session.at(""), b"f")
    session.fs.unlink(session.at(""), b"new")
    session.run(lambda: session.fs.files.write(held, 0, b"to nobody"))
    session.make("brief", b"")
    session.fs.unlink(session.at(""), b"brief")
    loads = session.store.loads
    pending = session.pending()
    pending.source = session.store

    kinds = {change.path: change.kind.name for change in iter_changes(pending)}

    assert kinds == {b"f": "REMOVED"}
    assert session.store.loads - loads < 5
    rows = [key for key, _ in session.live.snapshot().iter_rows(b"I")]
    assert len(rows) == 3, "the root, and those two; what began and ended in one layer left nothing"
