"""The overlay without a mount: one inode for one file, and nothing that cannot be committed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.unit.vfs_session import Session
from workspacefs_daemon.vfs.refusal import Refusal

DIRECTORY = 0o040755


@pytest.fixture(params=["local", "far"])
def session(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Session]:
    """A session of an empty workspace, its store at hand or not."""
    made = Session(tmp_path, is_local=request.param == "local")
    yield made
    made.close()


@pytest.mark.parametrize("is_committed", [False, True])
def test_two_names_of_one_file_in_one_listing_lead_to_one_inode(
    session: Session, is_committed: bool
) -> None:
    """A listing of a directory that nobody knows yet gives one inode for one file."""
    session.make("d", kind=DIRECTORY)
    inode = session.make("d/a", b"x")
    session.run(lambda: session.fs.namespace.link(inode, session.at("d"), b"b"))
    if is_committed:
        session.commit()
    session.restart()

    directory = session.at("d")
    listed = session.run(lambda: session.overlay.list_after(directory, b"", 100))
    for _, child in listed:
        session.overlay.remember(child)

    assert [name for name, _ in listed] == [b"a", b"b"]
    assert listed[0][1] is listed[1][1]
    assert listed[0][1].lookups == 2


def test_times_beyond_64_bits_are_cut_to_what_a_commit_can_hold(session: Session) -> None:
    """Whatever time a program sets, the directory can be committed and read again."""
    inode = session.make("f")
    far = 2**40 * 10**9

    session.fs.files.set_attributes(inode, mtime_ns=far, atime_ns=-far)
    session.commit()

    assert session.names(session.overlay.root) == [b"f"]
    assert session.at("f").mtime_ns == 2**63 - 1


def test_extended_attributes_of_a_full_directory_can_be_committed(session: Session) -> None:
    """The most that every file of a directory may have still fits what is stored of it."""
    for number in range(512):
        inode = session.make(f"f{number:03}")
        for at, size in enumerate(
            (65_536, 61_000, 30_000, 15_000, 15_000, 8_000, 4_000, 2_000, 1_000)
        ):
            with suppress(Refusal):
                session.fs.files.set_xattr(inode, b"user.%d" % at, bytes(size))

    session.commit()

    assert len(session.names(session.overlay.root)) == 512


def test_place_found_again_after_losing_the_known_one_pins_its_parent(session: Session) -> None:
    """A file that lost the name it was known by, and is found under another, keeps that parent in
    memory: there must never be two inodes of one directory.
    """
    session.make("d", kind=DIRECTORY)
    session.make("e", kind=DIRECTORY)
    inode = session.make("d/a", b"x")
    session.run(lambda: session.fs.namespace.link(inode, session.at("e"), b"b"))
    session.commit()
    inode = session.at("d/a")
    directory = session.at("d")
    session.run(lambda: session.fs.unlink(directory, b"a"))

    session.at("e/b")
    parent = inode.parent
    assert parent is not None
    session.fs.forget(parent.file_id, parent.lookups)

    assert session.overlay.inodes.get(parent.file_id) is parent
