"""Showing another state of a session in a mount that is in use: see docs/design/0007.

The kernel and programs know files by id. A file that they know becomes what the new state has under
its id, where it is; one that the new state does not have lives on without a name for who has it
open. Where a file is open and its content differs, the open one keeps id and content and loses its
name, and the new state's gets a fresh id: the kernel keeps one content for each id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from workspacefs.ids import ROOT_FILE_ID, FileId
from workspacefs.layers.bodies import content_from_desc, content_to_desc
from workspacefs.layers.layer import Layer
from workspacefs.layers.rows import (
    ContentDesc,
    OwnFileDesc,
    encode_inode,
    encode_name,
    gone_row,
    inode_key,
    name_key,
)
from workspacefs.workspace.difference import Difference, Place
from workspacefs.workspace.pending import PendingFile
from workspacefs_daemon.vfs.inode import Inode
from workspacefs_daemon.vfs.overlay import Overlay

_SOME_LAYER = 0
"""For Inode.marked: a row may be there, and not in the live layer, whose number is never this."""


@dataclass(slots=True)
class Notices:
    """What the kernel must be told after a switch: it caches for ever."""

    names: list[tuple[int, bytes]] = field(default_factory=list)
    """(directory's node id, name): forget where it leads."""
    inodes: list[tuple[int, bool]] = field(default_factory=list)
    """(node id, whether content changed too): forget attributes."""


def held_files(overlay: Overlay, difference: Difference) -> Iterator[tuple[FileId, Place]]:
    """Yield the open files whose content differs in the new state: it must have them under other
    ids. A file with several names is not among them: what has it open sees it change.
    """
    for file_id, place in difference.places.items():
        inode = overlay.inodes.get(file_id)
        if inode is None or not inode.opens or inode.is_dir or place.file.state.nlink > 1:
            continue
        if inode.nlink == 0 or _is_other(inode, place.file):
            yield file_id, place


def rows_of_fresh(
    difference: Difference, fresh: Mapping[FileId, FileId]
) -> list[tuple[bytes, bytes | None]]:
    """Return the rows of a layer that shows files of a state under fresh ids, given by old ones.

    Args:
        difference: Leads to the state.
        fresh: From ids that held_files() gave.
    """
    rows: list[tuple[bytes, bytes | None]] = []
    places = difference.places
    for file_id, fresh_id in fresh.items():
        place = places[file_id]
        state = place.file.state
        content = _of_other(state.content, file_id)
        rows += [
            (name_key(place.directory_id, place.name), encode_name(fresh_id)),
            (inode_key(fresh_id), encode_inode(state._replace(content=content))),
            (inode_key(file_id), gone_row()),
        ]
        directory_id = place.directory_id
        while directory_id != ROOT_FILE_ID:
            above = places[directory_id]
            row = name_key(above.directory_id, above.name), encode_name(directory_id)
            rows.append(row)
            directory_id = above.directory_id
    return rows


def switch(
    overlay: Overlay,
    difference: Difference,
    frozen: Sequence[Layer],
    live: Layer,
    root: PendingFile,
    fresh: Mapping[FileId, FileId],
) -> Notices:
    """Have an overlay show another state from now on. Not interrupted, this is one instant.

    Args:
        overlay: As it is.
        difference: From that to the new state.
        frozen: Layers of the new state, the newest first; rows_of_fresh() are in the newest one.
        live: A layer with nothing in it.
        root: Of the new state.
        fresh: Ids of files that are to be others than those with their ids.
    """
    overlay.frozen[:] = frozen
    overlay.put_live(live)
    return _Switching(overlay, difference, fresh).run(root)


class _Switching:
    def __init__(
        self, overlay: Overlay, difference: Difference, fresh: Mapping[FileId, FileId]
    ) -> None:
        self._overlay = overlay
        self._difference = difference
        self._fresh = fresh
        self._layers = overlay.layers
        self._notices = Notices()

    def run(self, root: PendingFile) -> Notices:
        overlay, difference = self._overlay, self._difference
        self._become(overlay.root, root)
        for file_id, place in difference.places.items():
            inode = overlay.inodes.get(file_id)
            if inode is None:
                continue
            if file_id in self._fresh:
                self._orphan(inode)
                self._notices.names.append((place.directory_id, place.name))
                continue
            if inode.nlink == 0 and inode.is_dir:
                # The kernel never lets a removed directory be used again: this one is another.
                inode.generation += 1
            self._become(inode, place.file)
            overlay.orphans.discard(inode)
            parent = self._directory(place.directory_id)
            if parent is not None:
                overlay.set_place(inode, parent, place.name)
        for file_id in difference.gone:
            inode = overlay.inodes.get(file_id)
            if inode is not None and inode.nlink:
                self._orphan(inode)
        for directory_id, name in difference.names:
            if directory_id in overlay.inodes:
                self._notices.names.append((directory_id, name))
        return self._notices

    def _become(self, inode: Inode, file: PendingFile) -> None:
        state = self._state_of(file)
        is_other = _is_other(inode, file)
        if is_other or inode.save()[:8] != state.save()[:8] or inode.xattrs != state.xattrs:
            self._notices.inodes.append((inode.file_id, is_other and not inode.is_dir))
        state.parent, state.name, state.marked = inode.parent, inode.name, _SOME_LAYER
        inode.restore(state.save())

    def _orphan(self, inode: Inode) -> None:
        inode.nlink = 0
        inode.attrs = None
        self._notices.inodes.append((inode.file_id, False))
        if not inode.is_dir and (inode.lookups or inode.opens):
            self._overlay.orphans.add(inode)
        self._overlay.set_place(inode, None, b"")

    def _state_of(self, file: PendingFile) -> Inode:
        if file.row is None:
            assert file.base is not None
            return Inode.from_entry(file.base)
        content = content_from_desc(file.row.content, file.file_id, self._layers)
        return Inode.from_row(file.file_id, file.row, content)

    def _directory(self, file_id: FileId) -> Inode | None:
        """Return the inode of a directory of the new state; made, with those above, if nobody
        knows it. None: nobody knows it, and it is as it was.
        """
        inodes, places = self._overlay.inodes, self._difference.places
        below: Inode | None = None
        found: Inode | None = None
        name = b""
        while True:
            inode = inodes.get(file_id)
            is_known = inode is not None
            if inode is None:
                if file_id not in places:
                    return None
                inode = self._state_of(places[file_id].file)
                inode.marked = _SOME_LAYER
            if below is not None:
                below.parent, below.name = inode, name
            found = found or inode
            if is_known:
                return found
            below, name = inode, places[file_id].name
            file_id = places[file_id].directory_id


def _is_other(inode: Inode, file: PendingFile) -> bool:
    state = file.state
    return (
        inode.size_bytes != state.size_bytes
        or content_to_desc(inode.content, inode.file_id) != state.content
    )


def _of_other(content: ContentDesc, file_id: FileId) -> ContentDesc:
    """Return a content of one file for the row of another."""
    if not isinstance(content, OwnFileDesc):
        return content
    lower = _of_other(content.lower, file_id)
    return content._replace(lower=lower, file_id=content.file_id or file_id)
