"""Telling the kernel what is otherwise now than what it was told.

Source: pyfuse3 documentation of invalidate_entry and invalidate_inode; linux/fuse.h.
"""

from __future__ import annotations

import errno

import pyfuse3
from pyfuse3 import FileNameT, InodeT

from workspacefs_daemon.vfs.switching import Notices


def tell_kernel(notices: Notices, top_id: int) -> None:
    """Have the kernel forget names, attributes and content; on return it has.

    On a thread, with no lock held: the kernel waits for requests under way in the same directory.

    Args:
        notices: By file id.
        top_id: Of the directory that the mount shows; the kernel calls that the root.
    """
    for file_id, has_other_content in notices.inodes:
        node = _node_of(file_id, top_id)
        if node is not None:
            try:
                pyfuse3.invalidate_inode(node, attr_only=not has_other_content)
            except OSError as exc:
                _pass_unknown(exc)
    for directory_id, name in notices.names:
        node = _node_of(directory_id, top_id)
        if node is not None:
            try:
                pyfuse3.invalidate_entry(node, FileNameT(name))
            except OSError as exc:
                _pass_unknown(exc)


def _node_of(file_id: int, top_id: int) -> InodeT | None:
    """Return what the kernel calls a file, or None: it cannot know it."""
    if file_id == top_id:
        return pyfuse3.ROOT_INODE
    return None if file_id == pyfuse3.ROOT_INODE else InodeT(file_id)


def _pass_unknown(exc: OSError) -> None:
    # What the kernel does not know need not be forgotten.
    if exc.errno != errno.ENOENT:
        raise exc
