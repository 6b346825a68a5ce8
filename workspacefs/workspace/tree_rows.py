"""From a tree to a layer: the rows that make one tree look like another.

So work that was saved as a tree comes back as what it was, uncommitted changes over a base, and
going back to an earlier tree is a layer like any other. Names are followed as far as they differ;
nothing but nodes is read, since content stays where it is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from workspacefs.errors import IntegrityError
from workspacefs.ids import ROOT_FILE_ID, FileId
from workspacefs.layers.rows import (
    WHITEOUT,
    InodeRow,
    decode_inode,
    encode_inode,
    encode_name,
    inode_key,
    name_key,
)
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.trees.diff import diff_directory, diff_trees
from workspacefs.trees.nodes import NodeSource
from workspacefs.workspace.pending import Pending, PendingFile

Row: TypeAlias = tuple[bytes, bytes]


def rows_between(base: Entry, wanted: Entry, source: NodeSource) -> Iterator[Row]:
    """Yield the rows of a layer that shows the tree `wanted` over the tree `base`.

    They are as a session would have left them: directories keep what they show of the base, so that
    a status tells the same. A file is known by its id, also under another name; a key comes once.

    Args:
        base: Root of what lies beneath.
        wanted: Root of what shall be seen.
        source: Gives the nodes of both.
    """
    if _attributes(base) != _attributes(wanted):
        yield _inode_row(wanted, base.subtree)
    before = _moved_directories(base.subtree, wanted.subtree, source)
    seen: set[FileId] = set()
    stack = [(ROOT_FILE_ID, base.subtree, wanted.subtree)]
    while stack:
        directory_id, shown, now = stack.pop()
        for old, new in diff_directory(shown, now, source):
            if new is None:
                assert old is not None
                yield name_key(directory_id, old.name), WHITEOUT
                continue
            yield name_key(directory_id, new.name), encode_name(new.file_id)
            if not new.is_dir:
                if new.file_id not in seen:
                    seen.add(new.file_id)
                    yield _inode_row(new, new.content)
                continue
            stays = old is not None and old.is_dir and old.file_id == new.file_id
            beneath = (
                old.subtree if old is not None and stays else before.get(new.file_id, Subtree())
            )
            if not stays or old is None or _attributes(old) != _attributes(new):
                yield _inode_row(new, beneath)
            if beneath.root != new.subtree.root:
                stack.append((new.file_id, beneath, new.subtree))


def _moved_directories(old: Subtree, new: Subtree, source: NodeSource) -> dict[FileId, Subtree]:
    """Return what directories that are at another place now showed at their old one, by file id."""
    gone: dict[FileId, Subtree] = {}
    come: dict[FileId, Subtree] = {}
    pairs = [(old, new)]
    opened: set[tuple[FileId, bool, bool]] = set()
    while pairs:
        for left, right in diff_directory(*pairs.pop(), source):
            is_left, is_right = _is_dir(left), _is_dir(right)
            if left and right and is_left and is_right and left.file_id == right.file_id:
                if left.subtree.root != right.subtree.root:
                    pairs.append((left.subtree, right.subtree))
                continue
            if left and is_left:
                gone[left.file_id] = left.subtree
            if right and is_right:
                come[right.file_id] = right.subtree
        if pairs:
            continue
        # A directory may have moved into one that is new, or out of one that is gone. Those that
        # moved whole are compared; the others are opened on their side.
        for file_id in gone.keys() | come.keys():
            was, now = gone.get(file_id), come.get(file_id)
            state = (file_id, was is not None, now is not None)
            if state in opened:
                continue
            opened.add(state)
            if was is None or now is None or was.root != now.root:
                pairs.append((was or Subtree(), now or Subtree()))
    return {file_id: gone[file_id] for file_id in come.keys() & gone.keys()}


def _is_dir(entry: Entry | None) -> bool:
    return entry is not None and entry.is_dir


def _attributes(entry: Entry) -> Entry:
    return entry._replace(name=b"", content=None)


def _inode_row(entry: Entry, content: object) -> Row:
    row = InodeRow(
        *entry[1:5],
        entry.mtime_ns,
        entry.ctime_ns,
        entry.mtime_ns,
        entry.nlink,
        content,  # type: ignore[arg-type]  # of an entry, or what a directory shows
        entry.xattrs,
    )
    return inode_key(entry.file_id), encode_inode(row)


def rows_over(pending: Pending, now: Entry, wanted: Entry) -> Iterator[Row]:
    """Yield the rows of a layer that shows the tree `wanted` on top of layers.

    Args:
        pending: The layers, over their base.
        now: Root of the tree that they show.
        wanted: Root of what shall be seen.
    """
    shown = _shown_by_layers(pending, now, wanted)
    for key, value in rows_between(now, wanted, pending.source):
        file_id = FileId(int.from_bytes(key[1:], "big"))
        if key[:1] == b"I" and file_id in shown:
            # What it shows of the base, and not of `now`, which no commit is.
            value = encode_inode(decode_inode(value)._replace(content=shown[file_id]))
        yield key, value


def _shown_by_layers(pending: Pending, now: Entry, wanted: Entry) -> dict[FileId, Subtree]:
    """Return what directories that may differ between two trees show of the base, by file id."""
    root = pending.root_file()
    files: dict[bytes, PendingFile] = {b"": root}

    def find(path: bytes) -> PendingFile:
        if path not in files:
            parent, _, name = path.rpartition(b"/")
            found = pending.find_child(find(parent), name)
            if found is None:
                raise IntegrityError(
                    f"the layers do not show {path!r}, which was stored of them",
                    kind="tree.inconsistent",
                )
            files[path] = found
        return files[path]

    shown = {ROOT_FILE_ID: root.subtree}
    for change in diff_trees(now, wanted, pending.source):
        if change.old is not None and change.old.is_dir:
            shown[change.old.file_id] = find(change.path).subtree
    return shown
