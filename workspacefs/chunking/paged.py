"""Telling files whose bytes never shift (databases, disk images) by their first bytes.

Such a file is cut at fixed places: content-defined cuts would only add unevenness. The answer
depends on content alone, never on the name, so that equal files have equal chunks.
"""

from __future__ import annotations

from typing import Final

HEAD_BYTES: Final = 4096
"""Bytes that decide."""

_SIGNATURES: Final = (
    (0, b"SQLite format 3\0"),
    (0, b"\x37\x7f\x06\x82"),  # SQLite write-ahead log
    (0, b"\x37\x7f\x06\x83"),
    (16, b"\xde\xc0\xef\xbe"),  # LMDB, behind a 16-byte page header
    (12, b"\x62\x31\x05\x00"),  # Berkeley DB, btree
    (12, b"\x61\x15\x06\x00"),  # Berkeley DB, hash
    (0, b"QFI\xfb"),  # qcow2
    (0, b"KDMV"),  # VMDK, sparse
    (0, b"vhdxfile"),
    (64, b"\x7f\x10\xda\xbe"),  # VirtualBox disk image
    (1080, b"\x53\xef"),  # ext2, ext3, ext4
    (510, b"\x55\xaa"),  # master boot record
)


def is_paged(head: bytes | memoryview) -> bool:
    """Tell whether a file that begins with `head` (HEAD_BYTES, or all of it) is paged."""
    return any(head[at : at + len(mark)] == mark for at, mark in _SIGNATURES)
