"""Going back to an earlier state while files are known, open and being changed.

Against what a process would see that begins with the layers of that state.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.vfs_program import DIRECTORY, Program, as_rows_say, seen
from tests.unit.vfs_session import Session
from workspacefs.layers.layer import Layer
from workspacefs.workspace.difference import State, find_difference
from workspacefs.workspace.pending import Pending
from workspacefs_daemon.vfs.inode import Inode
from workspacefs_daemon.vfs.refusal import Refusal
from workspacefs_daemon.vfs.switching import Notices, held_files, rows_of_fresh, switch

Seen = dict[bytes, tuple[object, ...]]


class Checkpoint(NamedTuple):
    """Layers, and what they showed."""

    layers: list[Layer]
    shown: Seen


class Restorable:
    """A session that can go back without forgetting what is in memory."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.made: set[Layer] = set()

    def freeze(self) -> None:
        session = self.session
        session.frozen.insert(0, session.live)
        session.overlay.frozen.insert(0, session.live)
        self.put_live()

    def put_live(self) -> None:
        session = self.session
        session.live = session._new_layer()
        session._file_ids.move_to(session.live)
        session.overlay.put_live(session.live)
        session.fs.services.live = session.live

    def checkpoint(self) -> Checkpoint:
        self.freeze()
        return Checkpoint(list(self.session.frozen), as_rows_say(self.session))

    def restore(self, wanted: list[Layer]) -> tuple[Notices, set[int]]:
        """Go back; return what the kernel would be told, and which files have fresh ids."""
        session, overlay = self.session, self.session.overlay
        old = [session.live, *session.frozen]
        self.made |= {*old, *wanted}
        new = self.state(wanted, old)
        difference = find_difference(self.state(old, wanted), new)
        fresh = {
            file_id: session.run(session.fs.services.next_file_id)
            for file_id, _ in held_files(overlay, difference)
        }
        root = new.all.root_file()
        frozen = list(wanted)
        if fresh:
            top = session._new_layer()
            top.rows.commit(rows_of_fresh(difference, fresh))
            frozen.insert(0, top)
        session.frozen[:] = frozen
        live = session._new_layer()
        session._file_ids.move_to(live)
        notices = switch(overlay, difference, frozen, live, root, fresh)
        session.live = session.fs.services.live = live
        return notices, {*fresh.values()}

    def state(self, layers: list[Layer], other: list[Layer]) -> State:
        def pending(of: list[Layer]) -> Pending:
            return Pending(
                self.session.root_entry,
                [layer.snapshot() for layer in of],
                {layer.number: layer for layer in layers},
                self.session.workspace.store,
            )

        return State(pending(layers), pending([layer for layer in layers if layer not in other]))

    def close(self) -> None:
        for layer in self.made - {self.session.live, *self.session.frozen}:
            layer.close()
        self.session.close()


@pytest.fixture
def back(tmp_path: Path) -> Iterator[Restorable]:
    """A session over a few files."""
    made = Session(tmp_path)
    for name in ("d", "d/sub", "e"):
        made.make(name, kind=DIRECTORY)
    for name in ("d/a", "d/b", "d/sub/c", "e/a", "f"):
        made.make(name, name.encode() * 100)
    made.commit()
    restorable = Restorable(made)
    yield restorable
    restorable.close()


@pytest.mark.parametrize("seed", range(16))
def test_any_state_can_be_gone_back_to(back: Restorable, seed: int) -> None:
    """Memory, rows and the checkpoint say the same; open files keep their bytes."""
    session, rng = back.session, random.Random(seed)
    program = Program(session, rng)
    opened: list[Inode] = []
    checkpoints = [back.checkpoint()]
    restores = kept = renewed = 0
    for number in range(200):
        try:
            program.step()
        except Refusal:
            pass
        file = program.known(is_dir=False)
        if file is not None and rng.random() < 0.3:
            file.opens += 1
            opened.append(file)
        if opened and rng.random() < 0.1:
            session.fs.close(opened.pop(rng.randrange(len(opened))))
        if rng.random() < 0.05:
            checkpoints.append(back.checkpoint())
        if rng.random() < 0.08:
            wanted = rng.choice(checkpoints)
            checkpoints.append(back.checkpoint())  # as for safety
            before = {inode: session.read(inode) for inode in opened}
            _, fresh = back.restore(wanted.layers)
            restores += 1
            renewed += len(fresh)
            shown = seen(session, session.overlay)
            assert shown == as_rows_say(session), f"seed {seed}, {number}"
            assert without_ids(shown) == without_ids(wanted.shown), f"seed {seed}, {number}"
            for inode, data in before.items():
                if inode.nlink <= 1:
                    assert session.read(inode) == data, f"seed {seed}, {number}"
                    kept += 1
            for inode in session.overlay.inodes.values():
                assert inode.parent is None or (
                    session.overlay.inodes.get(inode.parent.file_id) is inode.parent
                )
            if fresh:
                checkpoints.append(back.checkpoint())
    assert restores > 3
    assert kept > 3
    back.made -= {session.live, *session.frozen}  # a commit closes them
    session.commit()
    assert session.status() == {}


def without_ids(shown: Seen) -> Seen:
    """Leave out what a fresh id changes."""
    return {path: facts[1:] for path, facts in shown.items()}


def test_open_file_keeps_its_bytes_and_can_be_written_on(back: Restorable) -> None:
    """The name leads to the earlier bytes under another id; whoever has the file open goes on."""
    session = back.session
    big = session.make("big", b"1" * 400_000)
    big.opens += 1
    at_first = back.checkpoint()
    session.run(lambda: session.fs.files.write(big, 100_000, b"2" * 10))
    directory = session.at("d")

    notices, fresh = back.restore(at_first.layers)

    assert session.read(big)[100_000:100_010] == b"2" * 10
    assert big.nlink == 0
    found = session.at("big")
    assert found.file_id in fresh
    assert session.read(found) == b"1" * 400_000
    assert (1, b"big") in notices.names
    session.run(lambda: session.fs.files.write(big, 0, b"mine"))
    session.run(lambda: session.fs.files.write(found, 200_000, b"restored"))
    assert session.read(found)[:4] == b"1111"
    assert session.read(found)[200_000:200_008] == b"restored"
    assert session.at("d") is directory
    assert session.status() == {"big": "ADDED"}
    assert seen(session, session.overlay) == as_rows_say(session)


def test_known_file_that_is_not_open_keeps_its_id(back: Restorable) -> None:
    """Going back to what was committed leaves nothing to commit."""
    session = back.session
    at_first = back.checkpoint()
    known = session.at("d/a")
    session.run(lambda: session.fs.files.write(known, 0, b"changed"))
    session.fs.unlink(session.at("d"), b"b")

    notices, fresh = back.restore(at_first.layers)

    assert not fresh
    assert session.at("d/a") is known
    assert session.read(known) == b"d/a" * 100
    assert (known.file_id, True) in notices.inodes
    assert (session.at("d").file_id, b"b") in notices.names
    assert session.status() == {}


def test_removed_directory_comes_back_as_another_one(back: Restorable) -> None:
    """The kernel does not let anyone use a removed directory again; it is told apart."""
    session = back.session
    at_first = back.checkpoint()
    directory = session.at("e")
    session.fs.unlink(directory, b"a")
    session.fs.namespace.rmdir(session.at(""), b"e")

    back.restore(at_first.layers)

    assert session.at("e") is directory
    assert directory.generation == 1
    assert session.names(directory) == [b"a"]
