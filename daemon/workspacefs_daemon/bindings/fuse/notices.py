"""Telling the kernel what is otherwise now than what it was told.

Source: pyfuse3 documentation of invalidate_entry and invalidate_inode; linux/fuse.h.
"""

from __future__ import annotations

import errno

import pyfuse3
from pyfuse3 import FileNameT, InodeT

from workspacefs_daemon.vfs.switching import Notices


def tell_kernel(notices: Notices) -> None:
    """Have the kernel forget names, attributes and content; on return it has.

    On a thread, with no lock held: the kernel waits for requests under way in the same directory.
    """
    for file_id, has_other_content in notices.inodes:
        try:
            pyfuse3.invalidate_inode(InodeT(file_id), attr_only=not has_other_content)
        except OSError as exc:
            _pass_unknown(exc)
    for directory_id, name in notices.names:
        try:
            pyfuse3.invalidate_entry(InodeT(directory_id), FileNameT(name))
        except OSError as exc:
            _pass_unknown(exc)


def _pass_unknown(exc: OSError) -> None:
    # What the kernel does not know need not be forgotten.
    if exc.errno != errno.ENOENT:
        raise exc
