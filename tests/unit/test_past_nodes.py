"""Numbers of files in trees of the past: none is a file id, none means two things, none stays."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.vfs_session import Session
from workspacefs_daemon.vfs.inode import Inode
from workspacefs_daemon.vfs.past import FIRST_NODE, NodeTable, PastTree
from workspacefs_daemon.vfs.refusal import Refusal
from workspacefs_daemon.vfs.residency import Resident


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """A session whose commit has two names of one file, and a directory."""
    made = Session(tmp_path)
    made.make("d", kind=0o040755)
    inode = made.make("d/a", b"then")
    made.fs.namespace.link(inode, made.at("d"), b"b")
    made.commit()
    yield made
    made.close()


class Past:
    """A table, and trees of the session's commit in it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.ended: list[PastTree] = []
        self.table = NodeTable(self.ended.append)

    def tree(self) -> PastTree:
        """Return one more tree."""
        resident = Resident(self._session.store)
        return PastTree(self._session.root_entry, layers=(), resident=resident)

    def look_up(self, tree: PastTree, path: str) -> int:
        """Do what a look-up of each part does; return the number that the kernel gets."""
        inode = tree.top
        for name in path.encode().split(b"/"):
            found = tree.overlay.find_child(inode, name) if name else inode
            assert found is not None
            inode = found
            number = self._told(tree, inode)
        return number

    def _told(self, tree: PastTree, inode: Inode) -> int:
        number = self.table.number_of(tree, inode)
        tree.overlay.remember(inode)
        return number


@pytest.fixture
def past(session: Session) -> Past:
    """No tree yet."""
    return Past(session)


def errno_of(table: NodeTable, number: int) -> int | None:
    """Return what finding a number is refused with."""
    try:
        table.find(number)
    except Refusal as exc:
        return exc.errno
    return None


def test_numbers_are_past_all_file_ids_and_differ_by_tree(past: Past) -> None:
    """One file in two trees has two numbers; two names of it in one tree have one."""
    first, second = past.tree(), past.tree()

    numbers = [past.look_up(tree, path) for tree in (first, second) for path in ("d/a", "d/b")]

    assert numbers[0] == numbers[1] != numbers[2] == numbers[3]
    assert min(numbers) > FIRST_NODE
    assert [past.table.find(number)[0] for number in numbers] == [first, first, second, second]


def test_number_means_the_same_until_it_is_forgotten_and_then_nothing(past: Past) -> None:
    """Each reference counts; a number is never used again."""
    tree = past.tree()
    past.look_up(tree, "")
    number = past.look_up(tree, "d")
    past.look_up(tree, "d")

    past.table.forget(number, 1)
    kept = past.table.find(number)[1].file_id
    past.table.forget(number, 1)

    assert kept == tree.overlay.find_child(tree.top, b"d").file_id  # type: ignore[union-attr]
    assert errno_of(past.table, number) == errno.ESTALE
    assert past.look_up(tree, "d") > number


def test_open_file_outlives_its_references(past: Past) -> None:
    """As while a program reads on though the kernel has dropped the name."""
    tree = past.tree()
    number = past.look_up(tree, "d/a")
    past.table.find(number)[1].opens += 1
    past.table.forget(past.table.number_of(tree, tree.overlay.find_child(tree.top, b"d")), 1)  # type: ignore[arg-type]

    past.table.forget(number, 1)
    inode = past.table.find(number)[1]

    assert tree.files.read(inode, 0, 4) == b"then"
    past.table.close(number)
    assert errno_of(past.table, number) == errno.ESTALE


def test_tree_ends_when_nothing_in_it_is_held(past: Past) -> None:
    """Not before, and nothing of it stays in the table."""
    tree = past.tree()
    numbers = [past.look_up(tree, path) for path in ("", "d", "d/a")]
    counts = [1, 2, 1]

    for number, count in zip(numbers[:2], counts[:2], strict=True):
        past.table.forget(number, count)
    before = list(past.ended)
    past.table.forget(numbers[2], 1)

    assert before == []
    assert past.ended == [tree]
    assert len(past.table) == 0


def test_what_is_held_of_a_closed_tree_is_stale(past: Past) -> None:
    """And can still be given back."""
    tree = past.tree()
    number = past.look_up(tree, "")

    tree.close()

    assert errno_of(past.table, number) == errno.ESTALE
    past.table.forget(number, 1)
    assert past.ended == [tree]
