"""Writing a tree as a tar stream: POSIX pax format, with nanosecond times and xattrs.

Source: POSIX.1-2017, pax, "pax Extended Header"; SCHILY.xattr as star and GNU tar write it.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
from typing import Final, Protocol

from workspacefs.ids import FileId
from workspacefs.objects.entry import Device, Entry
from workspacefs.trees.walk import walk
from workspacefs.workspace.content import iter_content
from workspacefs.workspace.export import SET_ID_BITS, ExportResult
from workspacefs.workspace.imported import Progress
from workspacefs.workspace.listing import TreeStore

_COPY_BYTES: Final = 1024 * 1024
_NS: Final = 1_000_000_000
_TYPES: Final = {
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
}


class ByteSink(Protocol):
    """Takes the stream."""

    def write(self, data: bytes, /) -> object:
        """Take all of `data`."""
        ...


def export_tar(
    root: Entry,
    store: TreeStore,
    sink: ByteSink,
    *,
    keep_special: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Write what lies below `root` as a tar stream; whoever closes `sink` is the caller.

    Sockets cannot stand in a tar and are dropped; set-id bits and devices too unless
    `keep_special`.
    """
    result = ExportResult()
    first_names: dict[FileId, tuple[str, Entry]] = {}
    total = root.subtree.totals.files
    with tarfile.open(  # type: ignore[call-overload]  # any object with write() will do
        fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT, copybufsize=_COPY_BYTES
    ) as archive:
        for path, entry in walk(root, store):
            info = _info_of(path, entry, result, keep_special=keep_special)
            if info is None:
                continue
            if entry.is_dir:
                result.dirs += 1
                archive.addfile(info)
                continue
            first = first_names.get(entry.file_id) if entry.nlink > 1 else None
            if first is not None and entry.same_state(first[1]):
                info.type, info.linkname, info.size = tarfile.LNKTYPE, first[0], 0
                archive.addfile(info)
            else:
                if entry.nlink > 1:
                    first_names[entry.file_id] = (info.name, entry)
                archive.addfile(info, _Reader(entry, store) if entry.is_regular else None)
            result.files += 1
            result.size_bytes += entry.size_bytes
            if progress is not None and result.files % 256 == 0:
                progress(result.files, result.size_bytes, total)
    if progress is not None:
        progress(result.files, result.size_bytes, total)
    return result


def _info_of(
    path: bytes, entry: Entry, result: ExportResult, *, keep_special: bool
) -> tarfile.TarInfo | None:
    kind = stat.S_IFMT(entry.mode)
    if kind == stat.S_IFSOCK:
        result.dropped.append((path, "socket"))
        return None
    if kind in (stat.S_IFCHR, stat.S_IFBLK) and not keep_special:
        result.dropped.append((path, "device"))
        return None
    info = tarfile.TarInfo(os.fsdecode(path))
    info.type = _TYPES[kind]
    info.mode = stat.S_IMODE(entry.mode)
    if info.mode & SET_ID_BITS and not entry.is_dir and not keep_special:
        result.dropped.append((path, "set-id bits"))
        info.mode &= ~SET_ID_BITS
    info.uid, info.gid = entry.uid, entry.gid
    info.size = entry.size_bytes if entry.is_regular else 0
    if entry.is_symlink and isinstance(entry.content, bytes):
        info.linkname = os.fsdecode(entry.content)
    if isinstance(entry.content, Device):
        info.devmajor = os.major(entry.content.number)
        info.devminor = os.minor(entry.content.number)
    pax: dict[str, str] = {}
    seconds, rest = divmod(entry.mtime_ns, _NS)
    if rest or not 0 <= seconds < 8**11:
        sign, ns = ("-", -entry.mtime_ns) if entry.mtime_ns < 0 else ("", entry.mtime_ns)
        pax["mtime"] = f"{sign}{ns // _NS}.{ns % _NS:09d}"
    else:
        info.mtime = seconds
    for name, value in entry.xattrs:
        key = os.fsdecode(name).replace("%", "%25").replace("=", "%3D")
        pax[f"SCHILY.xattr.{key}"] = value.decode("utf-8", "surrogateescape")
    info.pax_headers = pax
    return info


class _Reader(io.RawIOBase):
    """A file's content for tarfile, which asks for a megabyte at a time."""

    def __init__(self, entry: Entry, store: TreeStore) -> None:
        super().__init__()
        self._chunks = iter_content(entry, store)
        self._rest = b""

    def readable(self) -> bool:
        """Yes."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes, fewer only at the end; all if it is negative."""
        parts = [self._rest]
        got = len(self._rest)
        while size < 0 or got < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            parts.append(chunk)
            got += len(chunk)
        data = b"".join(parts)
        if size < 0:
            size = len(data)
        self._rest = data[size:]
        return data[:size]
