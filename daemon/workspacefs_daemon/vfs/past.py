"""Trees that do not change any more, shown beside the live one, and the numbers of what is in them.

A file has the same file id in every revision, with other content in each. To the kernel they must
be different files: what is in such a tree is called by numbers of its own, from FIRST_NODE up,
where no file id ever is. Nothing here writes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Final

from workspacefs.clock import SystemClock
from workspacefs.ids import FileId
from workspacefs.layers.layer import Layer
from workspacefs.objects.entry import Entry
from workspacefs_daemon.vfs.files import Files
from workspacefs_daemon.vfs.inode import Inode
from workspacefs_daemon.vfs.overlay import Overlay
from workspacefs_daemon.vfs.refusal import Refusal
from workspacefs_daemon.vfs.residency import Resident
from workspacefs_daemon.vfs.services import Services

FIRST_NODE: Final = 1 << 63
"""File ids are smaller."""
_FIXED_NODES: Final = 16
"""Numbers that the binding has for directories of its own."""


class PastTree:
    """One tree: a commit, or frozen layers over one. Its inodes are none of the session's."""

    def __init__(self, root: Entry, *, layers: Sequence[Layer], resident: Resident) -> None:
        """Show `root` under `layers` (newest first), which are closed with the tree."""
        self.overlay = Overlay(root, live=None, frozen=layers, resident=resident)
        self.files = Files(resident, Services(clock=SystemClock(), file_ids=None, live=None))
        self.is_closed = False
        self.show(self.overlay.root)

    def show(self, top: Inode) -> None:
        """Let this directory, which is kept for as long as the tree, be all that can be reached."""
        self.top = top
        self._own_lookups = top.lookups

    @property
    def is_unused(self) -> bool:
        """Whether nobody holds anything in it."""
        top = self.top
        return top.lookups == self._own_lookups and not (top.opens or top.children)

    def close(self) -> None:
        """Let go of the layers. What is held is held in vain from now on. Idempotent."""
        if not self.is_closed:
            self.is_closed = True
            for layer in self.overlay.frozen:
                layer.close()


class NodeTable:
    """Which number means which file of which tree: there while the kernel may ask for it."""

    def __init__(self, on_unused: Callable[[PastTree], None]) -> None:
        """`on_unused` hears of a tree of which nothing is held any more."""
        self._on_unused = on_unused
        self._next = FIRST_NODE + _FIXED_NODES
        self._places: dict[int, tuple[PastTree, FileId]] = {}
        self._numbers: dict[PastTree, dict[FileId, int]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def draw(self) -> int:
        """Return a number that was never used."""
        number = self._next
        self._next += 1
        return number

    def number_of(self, tree: PastTree, inode: Inode) -> int:
        """Return what the kernel calls an inode: the same for as long as anyone holds it."""
        numbers = self._numbers.setdefault(tree, {})
        number = numbers.get(inode.file_id)
        if number is None:
            number = numbers[inode.file_id] = self.draw()
            self._places[number] = tree, inode.file_id
        return number

    def find(self, number: int) -> tuple[PastTree, Inode]:
        """Return the tree and the inode that a number means.

        Raises:
            Refusal: ESTALE: it means nothing any more, or its tree is gone.
        """
        place = self._places.get(number)
        inode = None if place is None else place[0].overlay.inodes.get(place[1])
        if place is None or inode is None or place[0].is_closed:
            raise Refusal(errno.ESTALE)
        return place[0], inode

    def forget(self, number: int, count: int) -> None:
        """Give up references of the kernel, if the number means anything."""
        self._give_up(number, lookups=count)

    def close(self, number: int) -> None:
        """Close one handle, if the number means anything."""
        self._give_up(number, opens=1)

    def _give_up(self, number: int, *, lookups: int = 0, opens: int = 0) -> None:
        place = self._places.get(number)
        if place is None:
            return
        tree, file_id = place
        inode = tree.overlay.inodes.get(file_id)
        if inode is not None:
            inode.lookups -= lookups
            inode.opens -= opens
            if inode.lookups or inode.opens:
                self._end_unused(tree)
                return
            tree.overlay.drop_unused(inode)
        del self._places[number]
        del self._numbers[tree][file_id]
        self._end_unused(tree)

    def _end_unused(self, tree: PastTree) -> None:
        if tree.is_unused:
            for number in self._numbers.pop(tree, {}).values():
                del self._places[number]
            self._on_unused(tree)
