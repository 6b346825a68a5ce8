"""The past of a workspace as the mount shows it: revisions, and checkpoints of the session.

A name that moves is looked up each time that it is asked for; what it leads to never changes. This
module knows no FUSE; bindings/fuse/hidden.py shows what is found here.
"""

from __future__ import annotations

import enum
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Final, NamedTuple

from workspacefs.errors import NotFoundError, UsageError, WorkspaceError
from workspacefs.ids import CommitId
from workspacefs.layers.layer import Layer
from workspacefs.objects.entry import Entry
from workspacefs.refs import RefKind
from workspacefs.trees.walk import iter_entries
from workspacefs.workspace.local_record import LocalCheckpoint
from workspacefs.workspace.sessions import root_of
from workspacefs_daemon.background.hops import Blocking
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.recovery import open_frozen_layer
from workspacefs_daemon.vfs.inode import Inode
from workspacefs_daemon.vfs.overlay import Overlay
from workspacefs_daemon.vfs.past import NodeTable, PastTree
from workspacefs_daemon.vfs.residency import NotResident, Resident
from workspacefs_daemon.vfs.subpath import find_directory

TREES_MAX: Final = 16
"""Of so many the kernel may keep what it has seen; those asked for longest ago go."""
NAMES_MAX: Final = 1000
"""Names of branches, and of tags, that a listing of all revisions has at most."""
_FAR_ANSWER_S: Final = 0.2
"""How long it counts what a far store said of a name: every path through it asks again."""
_REV: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._+@,-]*(?:~[0-9]{0,9}|\^)*")
_ID: Final = re.compile(rb"[0-9a-f]{6,64}")
_SLASH: Final = ","
"""Stands for / in names of directories here, as in keys: no ref name has a comma."""


class Era(enum.Enum):
    """What a name is looked for in."""

    AT = "at"
    CHECKPOINTS = "checkpoints"
    CONFLICTS = "conflicts"


class TreeName(NamedTuple):
    """How a tree is found."""

    era: Era
    name: bytes
    """As the directory is called."""


@dataclass(slots=True, eq=False)
class _Shown:
    """A tree, and how it was found."""

    name: TreeName
    tree: PastTree
    source: CommitId | LocalCheckpoint | Entry
    """What the name led to."""
    is_fixed: bool = False
    """Whether it can lead nowhere else: it is the commit's own id."""
    asked_s: float = 0.0
    """When the store was last asked; on a monotonic clock."""
    moves: int = -1
    """How often this mount had moved refs by then."""


class Browsing:
    """Finds trees of the past for one mount, and keeps those that are in use."""

    def __init__(self, mounted: Mounted) -> None:
        self._mounted = mounted
        self._shown: OrderedDict[TreeName, _Shown] = OrderedDict()
        """What each name led to when it was last asked for; those asked for last come last."""
        self._held: dict[PastTree, _Shown] = {}
        """All of them, and others of which the kernel still holds something."""
        self._moves = 0
        self.nodes = NodeTable(self._end)
        self.on_crowded: Callable[[TreeName], None] = _nothing
        """Hears of a tree that the kernel should let go of."""

    @property
    def resident(self) -> Resident:
        """Where all trees read."""
        return self._mounted.overlay.resident

    def find_shown(self, name: TreeName) -> PastTree | None:
        """Return what a name led to when it was last asked for, if that is still here."""
        shown = self._shown.get(name)
        return None if shown is None else shown.tree

    async def find(self, name: TreeName) -> PastTree | None:
        """Return the tree that a name leads to now; None: it leads nowhere.

        Raises:
            UnavailableError: The store does not answer.
            IntegrityError: What is stored is damaged.
        """
        if name.era is Era.AT:
            return await self._find_revision(name)
        if name.era is Era.CONFLICTS:
            return await self._find_conflict(name)
        return await self._find_checkpoint(name)

    async def list_names(self, era: Era) -> list[bytes]:
        """Return names that there are: all checkpoints; or the versions of all conflicts; or
        branches, tags and the session.
        """
        if era is Era.CONFLICTS:
            return sorted(await self._conflicts())
        if era is Era.AT:
            return await self._mounted.blocking.load(self._load_revision_names)
        return [_directory_name(one.name) for one in self._checkpoints()]

    def note_moved(self) -> None:
        """Take note that this mount may have moved refs, or deleted checkpoints."""
        self._moves += 1
        there = self._checkpoints()
        for shown in list(self._held.values()):
            if isinstance(shown.source, LocalCheckpoint) and shown.source not in there:
                # The layers are on disk no more: what is held is held in vain.
                shown.tree.close()
                if self._shown.get(shown.name) is shown:
                    self._let_go(shown)

    def close(self) -> None:
        """Let go of all trees; nothing may be served any more."""
        for tree in self._held:
            tree.close()

    # -- revisions -------------------------------------------------------------------------

    async def _find_revision(self, name: TreeName) -> PastTree | None:
        if not _REV.fullmatch(name.name):
            return None
        shown = self._shown.get(name)
        if shown is not None and self._still_counts(shown):
            return self._used(shown)
        asked_s, moves = time.monotonic(), self._moves
        rev = name.name.decode("ascii").replace(_SLASH, "/")
        mounted = self._mounted
        try:
            ref, commit = await mounted.blocking.load(lambda: mounted.workspace.resolve(rev))
        except (NotFoundError, UsageError):
            return None
        shown = self._shown.get(name)  # others may have asked meanwhile
        if shown is None or shown.source != ref.id:
            tree = PastTree(commit.root, layers=(), resident=self.resident)
            if not await self._topped(tree):
                return None
            shown = self._keep(name, tree, CommitId(ref.id))
            shown.is_fixed = _ID.fullmatch(name.name) is not None and ref.id.hex().startswith(rev)
        shown.asked_s, shown.moves = asked_s, moves
        return self._used(shown)

    def _still_counts(self, shown: _Shown) -> bool:
        if shown.is_fixed:
            return True
        is_recent = time.monotonic() - shown.asked_s < _FAR_ANSWER_S
        return self._mounted.far is not None and is_recent and shown.moves == self._moves

    def _load_revision_names(self) -> list[bytes]:
        refs = self._mounted.workspace.refs
        names = chain.from_iterable(
            islice(refs.iter_names(kind), NAMES_MAX) for kind in (RefKind.BRANCH, RefKind.TAG)
        )
        own = [] if self._mounted.session is None else [self._mounted.name]
        return sorted({_directory_name(name) for name in (*names, *own)})

    # -- checkpoints -----------------------------------------------------------------------

    def _checkpoints(self) -> tuple[LocalCheckpoint, ...]:
        mounted = self._mounted
        return () if mounted.is_read_only else mounted.chain.record.checkpoints

    def _find_named(self, name: bytes) -> LocalCheckpoint | None:
        for checkpoint in self._checkpoints():
            if _directory_name(checkpoint.name) == name:
                return checkpoint
        return None

    async def _find_checkpoint(self, name: TreeName) -> PastTree | None:
        checkpoint = self._find_named(name.name)
        if checkpoint is None:
            return None
        shown = self._shown.get(name)
        if shown is not None and shown.source == checkpoint:
            return self._used(shown)
        try:
            root, layers = await self._mounted.blocking.load(lambda: self._open(checkpoint))
            tree = self._tree_over(root, layers)
        except WorkspaceError:
            if self._find_named(name.name) != checkpoint:
                return None  # it was deleted while we were at it
            raise
        if not await self._topped(tree):
            return None
        # No await from here on: a checkpoint that is deleted later finds its tree among the held.
        shown = self._shown.get(name)
        if self._find_named(name.name) != checkpoint:
            tree.close()
            return None
        if shown is not None and shown.source == checkpoint:
            tree.close()
            return self._used(shown)
        return self._used(self._keep(name, tree, checkpoint))

    def _tree_over(self, root: Entry, layers: list[Layer]) -> PastTree:
        try:
            return PastTree(root, layers=layers, resident=self.resident)
        except BaseException:
            _close_all(layers)
            raise

    def _open(self, checkpoint: LocalCheckpoint) -> tuple[Entry, list[Layer]]:
        """Return what a checkpoint lies over, and its layers, newest first; on a thread."""
        mounted = self._mounted
        local, session = mounted.chain.local, mounted.session
        assert session is not None
        root = root_of(
            mounted.workspace, checkpoint.base, created_ns=session.session.created_ns,
            uid=os.geteuid(), gid=os.getegid(),
        )  # fmt: skip
        layers: list[Layer] = []
        with local.pool.holding():  # none is deleted before it is open
            local.check_layers(replace(mounted.chain.record, layers=checkpoint.layers))
            try:
                for place in reversed(checkpoint.layers):
                    layers.append(open_frozen_layer(local.layer_directory(place), place.number))
            except BaseException:
                _close_all(layers)
                raise
        return root, layers

    # -- conflicts ---------------------------------------------------------------------------

    async def _conflicts(self) -> dict[bytes, Entry]:
        """Return a directory for each version of a conflict that is left, by name: number.side."""
        mounted = self._mounted
        if mounted.is_read_only:
            return {}
        notes = (await mounted.load_open_merge()).conflicts
        store = mounted.workspace.store

        def load() -> dict[bytes, Entry]:
            return {
                b"%d.%s" % (number, entry.name): entry._replace(name=b"")
                for number, note in notes.items()
                for entry in iter_entries(note.subtree, store)
                if entry.is_dir
            }

        return await mounted.blocking.load(load) if notes else {}

    async def _find_conflict(self, name: TreeName) -> PastTree | None:
        root = (await self._conflicts()).get(name.name)
        if root is None:
            return None
        shown = self._shown.get(name)
        if shown is None or shown.source != root:
            tree = PastTree(root, layers=(), resident=self.resident)
            top = await find_top(tree.overlay, None, self._mounted.blocking)
            assert top is not None
            tree.show(top)
            shown = self._keep(name, tree, root)
        return self._used(shown)

    # -- what is kept ----------------------------------------------------------------------

    async def _topped(self, tree: PastTree) -> bool:
        """Let a tree show what the mount shows of it; False: that was not there then."""
        top = None
        try:
            top = await find_top(tree.overlay, self._mounted.spec.subpath, self._mounted.blocking)
        finally:
            if top is None:
                tree.close()
        if top is not None:
            tree.show(top)
        return top is not None

    def _keep(
        self, name: TreeName, tree: PastTree, source: CommitId | LocalCheckpoint | Entry
    ) -> _Shown:
        before = self._shown.pop(name, None)
        shown = self._shown[name] = self._held[tree] = _Shown(name, tree, source)
        if before is not None and before.tree.is_unused:
            self._end(before.tree)
        while len(self._shown) > TREES_MAX:
            self._let_go(next(iter(self._shown.values())))
        return shown

    def _used(self, shown: _Shown) -> PastTree:
        self._shown.move_to_end(shown.name)
        return shown.tree

    def _let_go(self, shown: _Shown) -> None:
        """Forget what a name led to; the tree goes when the kernel holds nothing of it."""
        del self._shown[shown.name]
        if shown.tree.is_unused:
            self._end(shown.tree)
        else:
            self.on_crowded(shown.name)

    def _end(self, tree: PastTree) -> None:
        tree.close()
        shown = self._held.pop(tree, None)
        if shown is not None and self._shown.get(shown.name) is shown:
            del self._shown[shown.name]


async def find_top(overlay: Overlay, subpath: str | None, blocking: Blocking) -> Inode | None:
    """Return the directory that a mount shows of a tree, and keep it; None: it is not there."""
    path = os.fsencode(subpath or "")
    while True:
        try:
            return find_directory(overlay, path)
        except NotResident as missing:
            await blocking.load(missing.load)


def _close_all(layers: list[Layer]) -> None:
    for layer in layers:
        layer.close()


def _directory_name(name: str) -> bytes:
    return name.replace("/", _SLASH).encode("ascii")


def _nothing(name: TreeName) -> None:
    return None
