"""Names and inodes of a session as the layers and the base commit show them together.

Lookup goes from the live layer down through the frozen ones to the base tree. This module reads;
vfs/namespace.py and its neighbours change.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from workspacefs.errors import IntegrityError
from workspacefs.ids import ROOT_FILE_ID, FileId
from workspacefs.layers.bodies import content_from_desc
from workspacefs.layers.layer import Layer
from workspacefs.layers.rows import decode_inode, decode_name, inode_key, name_key
from workspacefs.names import NAME_MAX_BYTES
from workspacefs.objects.entry import Entry
from workspacefs.trees.walk import find_entry, iter_entries
from workspacefs_daemon.vfs.inode import Inode
from workspacefs_daemon.vfs.refusal import Refusal
from workspacefs_daemon.vfs.residency import Resident

_NEVER: Final = -1


class Overlay:
    """The session's layers over its base, and the inodes that someone holds."""

    def __init__(
        self, root: Entry, *, live: Layer | None, frozen: Sequence[Layer], resident: Resident
    ) -> None:
        """Show `root` under `frozen` (newest first) and `live`; None: a view without changes."""
        self.frozen = list(frozen)
        self.put_live(live)
        self.resident = resident
        self.inodes: dict[int, Inode] = {}
        self.orphans: set[Inode] = set()
        """Files that have lost their last name and that someone still holds."""
        self.set_root(root)

    def put_live(self, live: Layer | None) -> None:
        """Have changes go to another layer from now on."""
        self.live = live
        if live is not None:
            live.beneath = self.frozen  # the list itself: it changes in place

    def set_root(self, root: Entry) -> None:
        """Load the root inode; it is never forgotten."""
        self.root = self._load(ROOT_FILE_ID, root, marked=self._newest_number_with_root())
        self.root.lookups = 1
        self.inodes[ROOT_FILE_ID] = self.root

    @property
    def layers(self) -> dict[int, Layer]:
        """All layers by number."""
        found = {layer.number: layer for layer in self.frozen}
        if self.live is not None:
            found[self.live.number] = self.live
        return found

    # -- registered inodes -----------------------------------------------------------------

    def remember(self, inode: Inode) -> None:
        """Count one reference of the kernel, and keep the inode until it is forgotten."""
        inode.lookups += 1
        if inode.lookups == 1:
            self.register(inode)

    def register(self, inode: Inode) -> None:
        """Keep an inode; its parents stay with it, so that there is never a second one of them."""
        known = self.inodes.setdefault(inode.file_id, inode)
        if known is not inode:
            raise IntegrityError("two inodes in memory for one file id", kind="vfs.twins")
        while inode.parent is not None and not inode.is_pinning:
            inode.is_pinning = True
            inode.parent.children += 1
            inode = inode.parent
            self.inodes.setdefault(inode.file_id, inode)

    def set_place(self, inode: Inode, parent: Inode | None, name: bytes) -> None:
        """Say where an inode is linked now."""
        old = inode.parent
        inode.name = name
        if parent is old:
            return
        was_pinning = inode.is_pinning
        inode.parent = parent
        inode.is_pinning = False
        if parent is not None and self.inodes.get(inode.file_id) is inode:
            self.register(inode)
        if was_pinning and old is not None:
            old.children -= 1
            self.drop_unused(old)

    def drop_unused(self, inode: Inode) -> None:
        """Let go of an inode that nobody holds, and of parents that only it kept."""
        while not (inode.lookups or inode.opens or inode.children):
            if self.inodes.pop(inode.file_id, None) is None:
                return
            parent = inode.parent
            if not inode.is_pinning or parent is None:
                return
            inode.is_pinning = False
            parent.children -= 1
            inode = parent

    # -- looking up ------------------------------------------------------------------------

    def find_child(self, parent: Inode, name: bytes) -> Inode | None:
        """Return the inode called `name` in a directory, or None. It is not registered yet.

        Raises:
            Refusal: ENAMETOOLONG.
        """
        if len(name) > NAME_MAX_BYTES:
            raise Refusal(errno.ENAMETOOLONG)
        if parent.marked != _NEVER:
            found = self._name_row(parent.file_id, name)
            if found is not None:
                value, number = found
                file_id = decode_name(value)
                if file_id is None:
                    return None
                return self._child(parent, name, file_id, None, number)
        if parent.base.root is None:
            return None
        entry = find_entry(parent.base, name, self.resident)
        if entry is None:
            return None
        return self._child(parent, name, entry.file_id, entry, _NEVER)

    def exists_below(self, parent: Inode, name: bytes) -> bool:
        """Tell whether the frozen layers or the base show `name`, so that hiding it needs a row."""
        for layer in self.frozen:
            value = layer.rows.find_name(parent.file_id, name)
            if value is not None:
                return bool(value)
        return find_entry(parent.base, name, self.resident) is not None

    def list_after(self, parent: Inode, after: bytes, limit: int) -> list[tuple[bytes, Inode]]:
        """Return up to `limit` names past `after` with their inodes, in order of name.

        An empty list means the end. The inodes are not registered yet.
        """
        if parent.marked == _NEVER:
            below = islice(iter_entries(parent.base, self.resident, after=after), limit)
            return self._children(parent, ((row.name, row.file_id, row, _NEVER) for row in below))
        while True:
            names, last = self._merged_after(parent, after, limit)
            if names or last is None:
                return self._children(parent, names)
            after = last

    def _children(
        self, parent: Inode, names: Iterable[tuple[bytes, FileId, Entry | None, int]]
    ) -> list[tuple[bytes, Inode]]:
        linked: dict[FileId, Inode] = {}  # two names of one file lead to one inode
        listed: list[tuple[bytes, Inode]] = []
        for name, file_id, entry, number in names:
            child = linked.get(file_id)
            if child is None:
                child = self._child(parent, name, file_id, entry, number)
                if child.nlink > 1:
                    linked[file_id] = child
            listed.append((name, child))
        return listed

    def is_empty(self, parent: Inode) -> bool:
        """Tell whether a directory shows no name at all."""
        after = b""
        while True:
            names, last = self._merged_after(parent, after, 64)
            if names or last is None:
                return not names
            after = last

    def _merged_after(
        self, parent: Inode, after: bytes, limit: int
    ) -> tuple[list[tuple[bytes, FileId, Entry | None, int]], bytes | None]:
        """Return names past `after`, and the last name looked at (None: there are no more)."""
        rows: dict[bytes, tuple[FileId | None, int]] = {}
        ends: list[bytes] = []
        layers = self.frozen if self.live is None else [self.live, *self.frozen]
        for layer in layers:
            part = layer.rows.names_after(parent.file_id, after, limit)
            if len(part) == limit:
                ends.append(part[-1][0])
            for name, file_id in part:
                rows.setdefault(name, (file_id, layer.number))
        entries: dict[bytes, Entry] = {}
        if parent.base.root is not None:
            below = list(islice(iter_entries(parent.base, self.resident, after=after), limit))
            if len(below) == limit:
                ends.append(below[-1].name)
            entries = {entry.name: entry for entry in below}
        # Past the first end, one source has names that were not read yet.
        end = min(ends, default=None)
        found: list[tuple[bytes, FileId, Entry | None, int]] = []
        for name in sorted(rows.keys() | entries.keys()):
            if end is not None and name > end:
                break
            if name in rows:
                file_id, number = rows[name]
                if file_id is not None:
                    found.append((name, file_id, entries.get(name), number))
            else:
                found.append((name, entries[name].file_id, entries[name], _NEVER))
        return found, end

    def _child(
        self, parent: Inode, name: bytes, file_id: FileId, entry: Entry | None, marked: int
    ) -> Inode:
        inode = self.inodes.get(file_id)
        if inode is not None:
            if inode.parent is None and inode is not self.root:
                self.set_place(inode, parent, name)
                inode.marked = marked
            return inode
        if entry is None or (entry.file_id != file_id):
            entry = None
        inode = self._load(file_id, entry, marked=marked, parent=parent, name=name)
        inode.parent = parent
        inode.name = name
        return inode

    def _load(
        self,
        file_id: FileId,
        entry: Entry | None,
        *,
        marked: int,
        parent: Inode | None = None,
        name: bytes = b"",
    ) -> Inode:
        """Return the inode of a file id: from the newest layer that has it, else from the base."""
        # Without a name row a file has an inode row only if it changed under another name.
        if marked != _NEVER or (entry is not None and entry.nlink > 1 and not entry.is_dir):
            row = self._inode_row(file_id)
            if row is not None:
                fields = decode_inode(row)
                content = content_from_desc(fields.content, file_id, self.layers)
                inode = Inode.from_row(file_id, fields, content)
                inode.marked = marked
                return inode
        if entry is None and parent is not None:
            entry = find_entry(parent.base, name, self.resident)
        if entry is None or entry.file_id != file_id:
            raise IntegrityError(
                f"{name!r} leads to file {file_id:x}, which neither layer nor commit knows",
                kind="vfs.dangling",
            )
        inode = Inode.from_entry(entry)
        inode.marked = marked
        return inode

    def _name_row(self, parent_id: FileId, name: bytes) -> tuple[bytes, int] | None:
        key = name_key(parent_id, name)
        if self.live is not None:
            value = self.live.rows.get(key)
            if value is not None:
                return value, self.live.number
        for layer in self.frozen:
            value = layer.rows.get(key)
            if value is not None:
                return value, layer.number
        return None

    def _inode_row(self, file_id: FileId) -> bytes | None:
        key = inode_key(file_id)
        if self.live is not None:
            value = self.live.rows.get(key)
            if value is not None:
                return value
        for layer in self.frozen:
            value = layer.rows.get(key)
            if value is not None:
                return value
        return None

    def _newest_number_with_root(self) -> int:
        """The root has no name row; it counts as marked where a layer has any row."""
        if self.live is not None and self.live.rows.count():
            return self.live.number
        return max((layer.number for layer in self.frozen), default=_NEVER)
