"""Generated trees: a source-like one as a tar file, large files, and whole workspaces.

The same seed gives the same bytes. Content is text that compresses about as source does, with some
binaries, copies, executables, links and empty files among it.
"""

from __future__ import annotations

import bisect
import io
import itertools
import os
import random
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final

from bench.failures import WrongResultError, expect

NEEDLE: Final = "needle_in_the_haystack"
"""Stands in a known number of files, for rg to find."""
_NEEDLE_EVERY: Final = 97
_SAMPLE_EVERY: Final = 151
_POOL_BYTES: Final = 24 * 1024 * 1024
_WORDS: Final = 6000
_LINE_WORDS: Final = 7
_MEDIAN_BYTES: Final = 4000
_SPREAD: Final = 1.5
_LONGEST_BYTES: Final = 2 * 1024 * 1024
_TEXT_SUFFIXES: Final = (".py", ".py", ".c", ".h", ".js", ".ts", ".md", ".json", ".txt", ".rs")
_BINARY_SUFFIXES: Final = (".so", ".png", ".pyc", ".woff2")
_BINARY_SHARE: Final = 0.04
_COPY_SHARE: Final = 0.06
_EMPTY_SHARE: Final = 0.01
_LINK_SHARE: Final = 0.004
_EXECUTABLE_SHARE: Final = 0.02
_CROWDED_EVERY: Final = 400
_MTIME_S: Final = 1_700_000_000


@dataclass(slots=True)
class SourceTree:
    """A generated tree as a tar file, and what is known of it."""

    tar: Path
    top: str
    """Its one top directory."""
    files: int = 0
    links: int = 0
    dirs: int = 0
    size_bytes: int = 0
    needles: int = 0
    sample: dict[str, bytes] = field(default_factory=dict)
    """Digest of every so many files, by path."""

    @property
    def names(self) -> int:
        """Everything in it, the top directory included."""
        return self.files + self.links + self.dirs

    def check(self, root: Path) -> None:
        """Compare the sample with what lies below `root`, the directory that holds the top.

        Raises:
            WrongResultError: A file is absent or differs.
        """
        for path, digest in self.sample.items():
            try:
                content = (root / path).read_bytes()
            except OSError as exc:
                raise WrongResultError(f"{path}: {exc}") from exc
            expect(f"content of {path}", _digest(content), digest)


def build_source_tree(tar: Path, *, files: int, seed: int) -> SourceTree:
    """Write a tree of `files` regular files to a tar file."""
    rng = random.Random(seed)
    pool = text_pool(rng, _POOL_BYTES)
    tree = SourceTree(tar, "tree")
    with tarfile.open(tar, "w", format=tarfile.GNU_FORMAT) as archive:
        last_dir = ""
        previous = b""
        for path in _file_paths(rng, tree.top, files):
            directory = os.path.dirname(path)
            for made in _missing_dirs(last_dir, directory):
                archive.addfile(_member(made, stat.S_IFDIR | 0o755))
                tree.dirs += 1
            last_dir = directory
            content = _content(rng, pool, path, previous, tree)
            previous = content
            mode = 0o755 if rng.random() < _EXECUTABLE_SHARE else 0o644
            archive.addfile(_member(path, stat.S_IFREG | mode, len(content)), io.BytesIO(content))
            _count(tree, path, content)
            if rng.random() < _LINK_SHARE:
                link = _member(f"{path}.link", stat.S_IFLNK | 0o777)
                link.linkname = os.path.basename(path)
                archive.addfile(link)
                tree.links += 1
    return tree


def text_pool(rng: random.Random, size_bytes: int) -> bytes:
    """Return text of lines of identifiers; frequent words are much more frequent than rare ones."""
    letters = "etaoinshrdlcumwfgypbvk_"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 12))) for _ in range(_WORDS)]
    weights = list(itertools.accumulate(1 / (rank + 3) for rank in range(_WORDS)))
    signs = (" ", " ", " ", "(", ")", " = ", ".", ", ", ": ", "[", "]", "_")
    pieces: list[str] = []
    length = 0
    while length < size_bytes:
        line = "    " * rng.randint(0, 3)
        for _ in range(rng.randint(1, 2 * _LINE_WORDS)):
            rank = bisect.bisect(weights, rng.random() * weights[-1])
            line += words[min(rank, _WORDS - 1)] + rng.choice(signs)
        pieces.append(line)
        length += len(line) + 1
    return "\n".join(pieces).encode()


class Blocks:
    """Content of large files: blocks of 1 MiB, half of each compressible.

    No stretch of a block stands in another one, so that nothing is saved by storing it once.
    """

    SIZE_BYTES: Final = 1024 * 1024

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._text = text_pool(random.Random(seed), self.SIZE_BYTES // 2)

    def block(self, number: int) -> bytes:
        """Return block `number`: random bytes, then text in an alphabet of its own."""
        half = self.SIZE_BYTES // 2
        rng = random.Random(self._seed + number * 1_000_003)
        alphabet = bytes(rng.sample(range(256), 256))
        return rng.randbytes(half) + self._text[:half].translate(alphabet)

    def write_file(self, path: Path, *, first: int, blocks: int) -> None:
        """Write a file of these blocks."""
        with open(path, "wb") as file:
            for number in range(first, first + blocks):
                file.write(self.block(number))


def _content(
    rng: random.Random, pool: bytes, path: str, previous: bytes, tree: SourceTree
) -> bytes:
    kind = rng.random()
    if kind < _EMPTY_SHARE:
        return b""
    if kind < _EMPTY_SHARE + _COPY_SHARE and previous and NEEDLE.encode() not in previous:
        return previous
    size = min(int(rng.lognormvariate(0, _SPREAD) * _MEDIAN_BYTES) + 16, _LONGEST_BYTES)
    if path.endswith(_BINARY_SUFFIXES):
        return b"\0bin" + rng.randbytes(size)
    at = rng.randrange(len(pool) - size)
    content = f"# {path}\n".encode() + pool[at : at + size]
    if tree.files % _NEEDLE_EVERY == 0:
        content += f"\n{NEEDLE} = {tree.files}\n".encode()
        tree.needles += 1
    return content


def _count(tree: SourceTree, path: str, content: bytes) -> None:
    if tree.files % _SAMPLE_EVERY == 0:
        tree.sample[path] = _digest(content)
    tree.files += 1
    tree.size_bytes += len(content)


def _file_paths(rng: random.Random, top: str, files: int) -> Iterator[str]:
    """Yield paths directory by directory, depth first, as an archive of sources has them."""
    made = 0
    project = 0
    while made < files:
        stack = [f"{top}/project_{project:04d}"]
        project += 1
        while stack and made < files:
            directory = stack.pop()
            count = 700 if rng.randrange(_CROWDED_EVERY) == 0 else rng.randint(1, 22)
            for index in range(min(count, files - made)):
                is_binary = rng.random() < _BINARY_SHARE
                suffix = rng.choice(_BINARY_SUFFIXES if is_binary else _TEXT_SUFFIXES)
                yield f"{directory}/{rng.choice(_STEMS)}_{index:03d}{suffix}"
                made += 1
            if directory.count("/") < 7:
                below = rng.choices((0, 1, 2, 3), weights=(5, 3, 2, 1))[0]
                stack += [f"{directory}/{rng.choice(_STEMS)}{n}" for n in range(below)]


_STEMS: Final = (
    "index", "util", "core", "parser", "model", "test_api", "handlers", "config", "types",
    "node", "server", "schema", "render", "stream", "cache", "encoding", "layout", "main",
)  # fmt: skip


def _missing_dirs(last: str, directory: str) -> Iterator[str]:
    shared = last.split("/") if last else []
    parts = directory.split("/")
    for depth in range(1, len(parts) + 1):
        if parts[:depth] != shared[:depth]:
            yield "/".join(parts[:depth])


def _member(path: str, mode: int, size_bytes: int = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.mode = stat.S_IMODE(mode)
    member.size = size_bytes
    member.mtime = _MTIME_S
    member.uid, member.gid = os.getuid(), os.getgid()
    if stat.S_ISDIR(mode):
        member.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(mode):
        member.type = tarfile.SYMTYPE
    return member


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()
