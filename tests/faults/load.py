"""A program that works in a directory, and a model that says what must be there afterwards.

Run as a program it does seeded random operations and prints, before and after each, what it does:
what it printed as done has returned, so it must be there whatever is killed.
"""

from __future__ import annotations

import json
import os
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path

_NAMES = [f"n{number}" for number in range(12)]


@dataclass
class Node:
    """One file of the model."""

    kind: str
    data: bytearray = field(default_factory=bytearray)
    mode: int = 0o644
    names: dict[str, Node] = field(default_factory=dict)
    xattrs: dict[str, str] = field(default_factory=dict)


class Model:
    """A directory tree in memory, with hard links."""

    def __init__(self) -> None:
        self.root = Node("dir", mode=0o755)

    def at(self, path: str) -> Node | None:
        """Return the node at a path, or None."""
        node: Node | None = self.root
        for part in filter(None, path.split("/")):
            node = node.names.get(part) if node is not None and node.kind == "dir" else None
        return node

    def parent(self, path: str) -> tuple[Node, str]:
        """Return the directory of a path, and the last name."""
        head, _, name = path.rpartition("/")
        node = self.at(head)
        assert node is not None
        return node, name

    def apply(self, op: dict[str, object]) -> None:
        """Do what a finished operation did."""
        path = str(op["path"])
        parent, name = self.parent(path)
        match op["op"]:
            case "create":
                parent.names[name] = Node("file")
            case "write":
                node, data = parent.names[name], _data(op)
                offset = int(str(op["offset"]))
                if len(node.data) < offset:
                    node.data.extend(bytes(offset - len(node.data)))
                node.data[offset : offset + len(data)] = data
            case "truncate":
                node, size = parent.names[name], int(str(op["size"]))
                del node.data[size:]
                node.data.extend(bytes(size - len(node.data)))
            case "mkdir":
                parent.names[name] = Node("dir", mode=0o755)
            case "symlink":
                parent.names[name] = Node("link", bytearray(str(op["target"]).encode()))
            case "link":
                to, to_name = self.parent(str(op["to"]))
                to.names[to_name] = parent.names[name]
            case "rename":
                to, to_name = self.parent(str(op["to"]))
                if to.names.get(to_name) is not parent.names[name]:
                    to.names[to_name] = parent.names.pop(name)
            case "unlink" | "rmdir":
                del parent.names[name]
            case "chmod":
                parent.names[name].mode = int(str(op["mode"]))
            case "setxattr":
                parent.names[name].xattrs[str(op["key"])] = str(op["value"])

    def files(self) -> list[str]:
        """Return the paths of all regular files."""
        return [path for path, node in self.walk() if node.kind == "file"]

    def dirs(self) -> list[str]:
        """Return the paths of all directories, the root among them."""
        return ["", *(path for path, node in self.walk() if node.kind == "dir")]

    def walk(self) -> list[tuple[str, Node]]:
        """Return all paths and nodes below the root."""
        found = []
        stack = [("", self.root)]
        while stack:
            prefix, node = stack.pop()
            for name, child in node.names.items():
                path = f"{prefix}/{name}" if prefix else name
                found.append((path, child))
                if child.kind == "dir":
                    stack.append((path, child))
        return found


def _data(op: dict[str, object]) -> bytes:
    size, seed = int(str(op["size"])), int(str(op["seed"]))
    return random.Random(seed).randbytes(size)


def choose(rng: random.Random, model: Model) -> dict[str, object]:
    """Return an operation that must succeed on what the model holds."""
    files, dirs = model.files(), model.dirs()
    kind = rng.choice(
        ["create"] * 4
        + ["write"] * 6
        + [
            "truncate",
            "mkdir",
            "symlink",
            "link",
            "rename",
            "rename",
            "unlink",
            "rmdir",
            "chmod",
            "setxattr",
            "fsync",
        ]
    )
    free = [f"{d}/{n}".lstrip("/") for d in dirs for n in _NAMES]
    free = [path for path in free if model.at(path) is None]
    if len(free) < 30:
        kind = "unlink"
    empty = [path for path in dirs if path and not model.at(path).names]  # type: ignore[union-attr]
    if kind in ("write", "truncate", "link", "rename", "unlink", "chmod", "setxattr", "fsync"):
        if not files:
            kind = "create"
        else:
            path = rng.choice(files)
    if kind == "rmdir" and not empty:
        kind = "mkdir"
    if kind == "mkdir" and len(dirs) > 12:
        kind = "create"
    if kind in ("create", "mkdir", "symlink"):
        path = rng.choice(free)
    match kind:
        case "write":
            size = rng.choice([1, 100, 4096, 70_000, 300_000])
            offset = rng.choice([0, 0, len(model.at(path).data), rng.randrange(400_000)])  # type: ignore[union-attr]
            return {
                "op": kind,
                "path": path,
                "offset": offset,
                "size": size,
                "seed": rng.randrange(1 << 30),
            }
        case "truncate":
            return {"op": kind, "path": path, "size": rng.choice([0, 10, 5000, 300_000])}
        case "symlink":
            return {"op": kind, "path": path, "target": f"t{rng.randrange(100)}"}
        case "link":
            return {"op": kind, "path": path, "to": rng.choice(free)}
        case "rename":
            if rng.random() < 0.4:
                path = rng.choice([p for p in dirs if p] or files)
            target = rng.choice(free if path not in files or rng.random() < 0.5 else files)
            if target.startswith(path + "/"):
                return {"op": "fsync", "path": rng.choice(files)}
            return {"op": kind, "path": path, "to": target}
        case "rmdir":
            return {"op": kind, "path": rng.choice(empty)}
        case "chmod":
            return {"op": kind, "path": path, "mode": rng.choice([0o600, 0o755, 0o444, 0o640])}
        case "setxattr":
            return {
                "op": kind,
                "path": path,
                "key": f"user.k{rng.randrange(3)}",
                "value": str(rng.randrange(1000)),
            }
        case _:
            return {"op": kind, "path": path}


def perform(root: Path, op: dict[str, object]) -> None:
    """Do an operation for real."""
    path = root / str(op["path"])
    match op["op"]:
        case "create":
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        case "write":
            fd = os.open(path, os.O_WRONLY)
            done = os.pwrite(fd, _data(op), int(str(op["offset"])))
            os.close(fd)
            assert done == op["size"], "a short write"
        case "truncate":
            os.truncate(path, int(str(op["size"])))
        case "mkdir":
            path.mkdir(0o755)
        case "symlink":
            path.symlink_to(str(op["target"]))
        case "link":
            os.link(path, root / str(op["to"]))
        case "rename":
            os.rename(path, root / str(op["to"]))
        case "unlink":
            path.unlink()
        case "rmdir":
            path.rmdir()
        case "chmod":
            path.chmod(int(str(op["mode"])))
        case "setxattr":
            os.setxattr(path, str(op["key"]), str(op["value"]).encode())
        case "fsync":
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)


def differences(root: Path, model: Model) -> list[str]:
    """Return what of a real tree is not as the model says; empty when all is."""
    found: list[str] = []
    expected = dict(model.walk())
    for path, node in sorted(expected.items()):
        real = root / path
        if not os.path.lexists(real):
            found.append(f"{path} is missing")
        elif node.kind == "file":
            if not real.is_file() or real.is_symlink():
                found.append(f"{path} is no file")
                continue
            if real.read_bytes() != node.data:
                found.append(f"{path} has other bytes")
            if real.stat().st_mode & 0o7777 != node.mode:
                found.append(f"{path} has another mode")
            xattrs = {name: os.getxattr(real, name).decode() for name in os.listxattr(real)}
            if xattrs != node.xattrs:
                found.append(f"{path} has other attributes")
        elif node.kind == "link" and os.readlink(real).encode() != node.data:
            found.append(f"{path} leads elsewhere")
        elif node.kind == "dir" and not real.is_dir():
            found.append(f"{path} is no directory")
    for directory, names, files in os.walk(root):
        for name in names + files:
            path = os.path.relpath(os.path.join(directory, name), root)
            if path not in expected:
                found.append(f"{path} should not be there")
    return found


def main() -> None:
    """Work in the directory argv[1] with the seed argv[2], from the state on standard input."""
    root, seed = Path(sys.argv[1]), int(sys.argv[2])
    model = Model()
    for line in sys.stdin:
        model.apply(json.loads(line))
    rng = random.Random(seed)
    while True:
        op = choose(rng, model)
        _tell(begun=op)
        perform(root, op)
        _tell(done=op)
        model.apply(op)


def _tell(**message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
