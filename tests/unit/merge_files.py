"""A file system in a few dicts, that can be made a tree: what tests of merging begin with."""

from __future__ import annotations

import copy
import shlex
import stat
from dataclasses import dataclass, field

from workspacefs.chunking.parameters import ChunkParameters
from workspacefs.ids import ROOT_FILE_ID, FileId
from workspacefs.objects.entry import Content, Device, Entry, Xattrs
from workspacefs.testing.objects import MemoryObjects
from workspacefs.trees.build import build_directory
from workspacefs.trees.parameters import TreeParameters
from workspacefs.trees.walk import walk
from workspacefs.workspace.content import iter_content, write_content

TREES = TreeParameters(seed=7, boundary_bits=2, single_leaf_max=8)
CHUNKS = ChunkParameters()


@dataclass
class File:
    """One inode."""

    file_id: FileId
    mode: int
    data: bytes = b""
    """Of a link: its target."""
    names: dict[bytes, FileId] = field(default_factory=dict)
    uid: int = 0
    gid: int = 0
    xattrs: Xattrs = ()
    mtime_ns: int = 0
    ctime_ns: int = 0
    device: int = 0


class Files:
    """Operations by path, as programs do them; times and ids as a session would set them."""

    def __init__(self) -> None:
        self.files = {ROOT_FILE_ID: File(ROOT_FILE_ID, stat.S_IFDIR | 0o755)}
        self.links: dict[FileId, int] = {}
        """Link counts that rows claim, where they are not as they should be."""
        self._now_ns = 0
        self._next_id = 100

    def fork(self, first_id: int) -> Files:
        """Return a copy that gives other ids to new files."""
        other = copy.deepcopy(self)
        other._next_id = first_id
        other._now_ns += first_id
        return other

    def find(self, path: bytes) -> File | None:
        """Return what is at a path, or None."""
        file = self.files[ROOT_FILE_ID]
        for name in path.split(b"/") if path else ():
            if name not in file.names:
                return None
            file = self.files[file.names[name]]
        return file

    def at(self, path: bytes) -> File:
        """Return what is at a path."""
        file = self.find(path)
        assert file is not None, path
        return file

    def paths(self) -> list[bytes]:
        """Return all paths but that of the root, in the order of a walk."""
        found = []
        stack = [(b"", self.files[ROOT_FILE_ID])]
        while stack:
            prefix, directory = stack.pop()
            for name in sorted(directory.names):
                file = self.files[directory.names[name]]
                found.append(prefix + name)
                stack.append((prefix + name + b"/", file))
        return sorted(found)

    # -- operations ------------------------------------------------------------------------

    def write(self, path: bytes, data: bytes) -> File:
        """Write a file in place, or make it."""
        file = self.find(path) or self._make(path, stat.S_IFREG | 0o644)
        file.data = data
        file.mtime_ns = file.ctime_ns = self._tick()
        return file

    def mkdir(self, path: bytes) -> File:
        """Make a directory, and those above it."""
        parent = path.rpartition(b"/")[0]
        if parent and self.find(parent) is None:
            self.mkdir(parent)
        return self._make(path, stat.S_IFDIR | 0o755)

    def symlink(self, path: bytes, target: bytes) -> File:
        """Make a link, over what is there if that is no directory."""
        if self.find(path) is not None:
            self.remove(path)
        link = self._make(path, stat.S_IFLNK | 0o777)
        link.data = target
        return link

    def fifo(self, path: bytes) -> File:
        """Make a named pipe."""
        return self._make(path, stat.S_IFIFO | 0o644)

    def device(self, path: bytes, number: int) -> File:
        """Make a device node."""
        node = self._make(path, stat.S_IFCHR | 0o644)
        node.device = number
        return node

    def replace(self, path: bytes, data: bytes) -> File:
        """Write a file as editors do: a new one, renamed over it."""
        old = self.at(path)
        self.remove(path)
        new = self.write(path, data)
        new.mode = old.mode
        return new

    def remake(self, path: bytes) -> None:
        """Remove a directory with all that is in it, and make it afresh with the same files."""
        kept = {
            below[len(path) + 1 :]: self.at(below)
            for below in self.paths()
            if below.startswith(path + b"/")
        }
        self.remove(path)
        self.mkdir(path)
        for name, file in kept.items():
            if stat.S_ISDIR(file.mode):
                self.mkdir(path + b"/" + name)
            elif stat.S_ISREG(file.mode):
                self.write(path + b"/" + name, file.data)

    def link(self, path: bytes, new_path: bytes) -> None:
        """Give a file one more name."""
        file = self.at(path)
        self._parent(new_path).names[_name(new_path)] = file.file_id
        file.ctime_ns = self._touch(new_path)

    def move(self, path: bytes, new_path: bytes) -> None:
        """Rename, over what is there if that is no directory."""
        file = self.at(path)
        if self.find(new_path) is not None:
            self.remove(new_path)
        del self._parent(path).names[_name(path)]
        self._touch(path)
        self._parent(new_path).names[_name(new_path)] = file.file_id
        file.ctime_ns = self._touch(new_path)

    def remove(self, path: bytes) -> None:
        """Remove a name, and all that is below it."""
        file_id = self._parent(path).names.pop(_name(path))
        self._touch(path)
        file = self.files[file_id]
        file.ctime_ns = self._tick()
        self._forget()

    def chmod(self, path: bytes, permissions: int) -> None:
        """Set permissions."""
        file = self.at(path)
        file.mode = stat.S_IFMT(file.mode) | permissions
        file.ctime_ns = self._tick()

    def chown(self, path: bytes, uid: int) -> None:
        """Set the owner."""
        file = self.at(path)
        file.uid = uid
        file.ctime_ns = self._tick()

    def set_xattr(self, path: bytes, name: bytes, value: bytes) -> None:
        """Set an extended attribute."""
        file = self.at(path)
        file.xattrs = tuple(sorted((dict(file.xattrs) | {name: value}).items()))
        file.ctime_ns = self._tick()

    def touch(self, path: bytes, mtime_ns: int) -> None:
        """Set the time of the last change."""
        file = self.at(path)
        file.mtime_ns = mtime_ns
        file.ctime_ns = self._tick()

    # -- as a tree -------------------------------------------------------------------------

    def tree(self, store: MemoryObjects, params: TreeParameters = TREES) -> Entry:
        """Store all of it; return the root."""
        links: dict[FileId, int] = {}
        for file in self.files.values():
            for below in file.names.values():
                links[below] = links.get(below, 0) + 1
        links |= self.links
        order = [(b"", ROOT_FILE_ID)]
        for name, file_id in order:
            order += self.files[file_id].names.items()
            del name
        built: dict[FileId, Entry] = {}
        for _, file_id in reversed(order):
            file = self.files[file_id]
            if stat.S_ISDIR(file.mode):
                rows = [
                    built[below]._replace(name=name) for name, below in sorted(file.names.items())
                ]
                dirs = sum(row.is_dir for row in rows)
                content: Content = build_directory(rows, store, params)
                built[file_id] = _entry(file, content, 0, 2 + dirs)
            else:
                content, size = _content(file, store)
                built[file_id] = _entry(file, content, size, links[file_id])
        return built[ROOT_FILE_ID]

    # -- details ---------------------------------------------------------------------------

    def _make(self, path: bytes, mode: int) -> File:
        assert self.find(path) is None, path
        file = File(FileId(self._next_id), mode)
        self._next_id += 1
        self.files[file.file_id] = file
        self._parent(path).names[_name(path)] = file.file_id
        file.mtime_ns = file.ctime_ns = self._touch(path)
        return file

    def _parent(self, path: bytes) -> File:
        return self.at(path.rpartition(b"/")[0])

    def _touch(self, path: bytes) -> int:
        parent = self._parent(path)
        parent.mtime_ns = parent.ctime_ns = self._tick()
        return self._now_ns

    def _tick(self) -> int:
        self._now_ns += 1
        return self._now_ns

    def _forget(self) -> None:
        order = [ROOT_FILE_ID]
        for file_id in order:
            order += self.files[file_id].names.values()
        kept = set(order)
        self.files = {file_id: file for file_id, file in self.files.items() if file_id in kept}


def do(files: Files, program: str) -> None:
    """Run operations such as "write PATH LINE…; mv PATH PATH; rm PATH"."""
    for line in program.split(";"):
        name, *words = [word.encode() for word in shlex.split(line)] or [b""]
        match name:
            case b"write":
                files.write(words[0], b"".join(word + b"\n" for word in words[1:]))
            case b"replace":
                files.replace(words[0], b"".join(word + b"\n" for word in words[1:]))
            case b"binary":
                files.write(words[0], b"\0" + words[1])
            case b"mkdir":
                files.mkdir(words[0])
            case b"mv":
                files.move(*words)
            case b"rm":
                files.remove(words[0])
            case b"ln":
                files.link(*words)
            case b"remake":
                files.remake(words[0])
            case b"symlink":
                files.symlink(*words)
            case b"fifo":
                files.fifo(words[0])
            case b"device":
                files.device(words[0], int(words[1]))
            case b"chmod":
                files.chmod(words[0], int(words[1], 8))
            case b"chown":
                files.chown(words[0], int(words[1]))
            case b"xattr":
                files.set_xattr(*words)
            case b"touch":
                files.touch(words[0], 5)
            case _:
                assert not name, line


def read(entry: Entry, store: MemoryObjects) -> bytes:
    """Return the bytes of a file, or a link's target."""
    if entry.is_symlink:
        assert isinstance(entry.content, bytes)
        return entry.content
    return b"".join(iter_content(entry, store))


def show(root: Entry, store: MemoryObjects) -> dict[bytes, bytes]:
    """Return what a tree holds by path: bytes of files, targets after ->, and / for directories."""
    shown = {}
    for path, entry in walk(root, store):
        if entry.is_dir:
            shown[path] = b"/"
        elif entry.is_symlink:
            shown[path] = b"->" + read(entry, store)
        else:
            shown[path] = read(entry, store)
    return shown


def _entry(file: File, content: Content, size_bytes: int, nlink: int) -> Entry:
    return Entry(
        b"",
        file.mode,
        file.uid,
        file.gid,
        size_bytes,
        file.mtime_ns,
        file.ctime_ns,
        file.file_id,
        nlink,
        content,
        file.xattrs,
    )


def _content(file: File, store: MemoryObjects) -> tuple[Content, int]:
    if stat.S_ISLNK(file.mode):
        return file.data, len(file.data)
    if stat.S_ISCHR(file.mode):
        return Device(file.device), 0
    data = file.data
    return write_content(lambda at, size: data[at : at + size], len(data), store, CHUNKS)


def _name(path: bytes) -> bytes:
    return path.rpartition(b"/")[2]
