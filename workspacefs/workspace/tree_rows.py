"""From a tree to a layer: the rows that make one tree look like another.

So work that was saved as a tree comes back as what it was, uncommitted changes over a base, and
going back to an earlier tree is a layer like any other. Names are followed as far as they differ;
nothing but nodes is read, since content stays where it is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from workspacefs.errors import IntegrityError
from workspacefs.ids import ROOT_FILE_ID, FileId
from workspacefs.layers.rows import (
    WHITEOUT,
    InodeRow,
    encode_inode,
    encode_name,
    inode_key,
    name_key,
)
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.trees.diff import diff_directory
from workspacefs.trees.nodes import NodeSource
from workspacefs.workspace.pending import Pending, PendingFile

Row: TypeAlias = tuple[bytes, bytes]


FindShown: TypeAlias = Callable[[bytes, Subtree], Subtree]
"""Returns what a directory shows of the base, given its path and what is in it now."""


def rows_between(
    base: Entry,
    wanted: Entry,
    source: NodeSource,
    find_shown: FindShown = lambda path, subtree: subtree,
) -> Iterator[Row]:
    """Yield the rows of a layer that shows the tree `wanted` over the tree `base`.

    They are as a session would have left them: directories keep what they show of the base, so that
    a status tells the same. A file is known by its id, also under another name; a key comes once.

    Args:
        base: Root of what lies beneath.
        wanted: Root of what shall be seen.
        source: Gives the nodes of both.
        find_shown: Asked for directories of `base` whose rows are yielded.
    """
    if _attributes(base) != _attributes(wanted):
        yield _inode_row(wanted, find_shown(b"", base.subtree))
    before: dict[FileId, tuple[bytes, Subtree]] | None = None
    seen: set[FileId] = set()
    stack = [(ROOT_FILE_ID, b"", base.subtree, wanted.subtree)]
    while stack:
        directory_id, path, shown, now = stack.pop()
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
            old_path, beneath = path + b"/" + new.name if path else new.name, Subtree()
            stays = old is not None and old.is_dir and old.file_id == new.file_id
            is_known = stays
            if old is not None and stays:
                beneath = old.subtree
            else:
                if before is None:
                    before = _moved_directories(base.subtree, wanted.subtree, source)
                if new.file_id in before:
                    is_known = True
                    old_path, beneath = before[new.file_id]
            if not stays or old is None or _attributes(old) != _attributes(new):
                yield _inode_row(new, find_shown(old_path, beneath) if is_known else beneath)
            if beneath.root != new.subtree.root:
                stack.append((new.file_id, old_path, beneath, new.subtree))


def _moved_directories(
    old: Subtree, new: Subtree, source: NodeSource
) -> dict[FileId, tuple[bytes, Subtree]]:
    """Return where directories that are at another place now were, and what they showed there, by
    file id.
    """
    gone: dict[FileId, tuple[bytes, Subtree]] = {}
    come: dict[FileId, Subtree] = {}
    pairs = [(b"", old, new)]
    opened: set[tuple[FileId, bool, bool]] = set()
    while pairs:
        prefix, before, after = pairs.pop()
        for left, right in diff_directory(before, after, source):
            is_left, is_right = _is_dir(left), _is_dir(right)
            if left and right and is_left and is_right and left.file_id == right.file_id:
                if left.subtree.root != right.subtree.root:
                    pairs.append((prefix + left.name + b"/", left.subtree, right.subtree))
                continue
            if left and is_left:
                gone[left.file_id] = prefix + left.name, left.subtree
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
            above, below = (b"", Subtree()) if was is None else (was[0] + b"/", was[1])
            if was is None or now is None or below.root != now.root:
                pairs.append((above, below, now or Subtree()))
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
    files: dict[bytes, PendingFile] = {b"": pending.root_file()}

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

    # What a directory shows of the base, and not of `now`, which no commit is.
    return rows_between(now, wanted, pending.source, lambda path, subtree: find(path).subtree)
