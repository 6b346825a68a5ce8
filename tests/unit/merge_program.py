"""Random operations on files, from small numbers that hypothesis can choose and shrink."""

from __future__ import annotations

import itertools
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from hypothesis import strategies as st

from tests.unit.merge_files import Files
from tests.unit.merge_three import Three

Step: TypeAlias = tuple[int, int, int]
Forks: TypeAlias = tuple[list[Step], list[Step], list[Step]]
"""What makes a base, and what each side does to it."""
NAMES = (b"a", b"b", b"c", b"d")
STEPS = 18
"""Kinds of steps."""

number = st.integers(0, 40)
step = st.tuples(st.integers(0, STEPS - 1), number, number)
steps = st.lists(step, max_size=8)
forks = st.tuples(st.lists(step, max_size=20), steps, steps)
plain = st.tuples(st.sampled_from((0, 2, 5, 6, 9, 14, 17)), number, number)
plain_forks = st.tuples(*(st.lists(plain, max_size=size) for size in (20, 8, 8)))
"""Every name is one file's for ever: none is replaced, and none has two names."""


class Program:
    """Does one step after the other; what makes no sense is left out."""

    def __init__(self, files: Files, word: bytes, below: bytes = b"") -> None:
        self._files = files
        self._below = below
        self._words = (b"%s%d" % (word, number) for number in itertools.count())
        self._steps: tuple[Callable[[int, int], None], ...] = (
            self._create,
            self._create,
            self._edit,
            self._edit,
            self._edit,
            self._remove,
            self._move,
            self._move,
            self._move_over,
            self._mkdir,
            self._mkdir,
            self._link,
            self._replace,
            self._remake,
            self._chmod,
            self._symlink,
            self._turn,
            self._rewrite,
        )

    def run(self, steps: Sequence[Step]) -> None:
        """Do the steps."""
        for kind, first, second in steps:
            self._steps[kind](first, second)

    def _create(self, first: int, second: int) -> None:
        path = self._new(first, second)
        if path is not None:
            lines = [next(self._words) for _ in range(second % 7)]
            self._files.write(path, b"".join(line + b"\n" for line in lines))

    def _edit(self, first: int, second: int) -> None:
        path = self._pick(first, stat.S_ISREG)
        if path is None:
            return
        lines = self._files.at(path).data.splitlines(keepends=True)
        at = second % (len(lines) + 1)
        what = second % 3
        if what == 0:
            lines.insert(at, next(self._words) + b"\n")
        elif what == 1:
            lines[at : at + 1] = [next(self._words) + b"\n"]
        else:
            del lines[at : at + 1]
        self._files.write(path, b"".join(lines))

    def _rewrite(self, first: int, second: int) -> None:
        path = self._pick(first, stat.S_ISREG)
        if path is not None:
            nul = b"\0" if second % 2 else b""
            self._files.write(path, nul + next(self._words) + b"\n")

    def _remove(self, first: int, second: int) -> None:
        path = self._pick(first)
        if path is not None:
            self._files.remove(path)

    def _move(self, first: int, second: int) -> None:
        path, target = self._pick(first), self._new(second, first)
        if path is not None and target is not None and not (target + b"/").startswith(path + b"/"):
            self._files.move(path, target)

    def _move_over(self, first: int, second: int) -> None:
        path, target = self._pick(first), self._pick(second)
        if path is None or target is None or path == target:
            return
        if (target + b"/").startswith(path + b"/") or (path + b"/").startswith(target + b"/"):
            return
        if self._files.at(path).file_id != self._files.at(target).file_id:
            self._files.move(path, target)

    def _mkdir(self, first: int, second: int) -> None:
        path = self._new(first, second)
        if path is not None:
            self._files.mkdir(path)

    def _link(self, first: int, second: int) -> None:
        path, target = self._pick(first, lambda mode: not stat.S_ISDIR(mode)), self._new(second, 1)
        if path is not None and target is not None:
            self._files.link(path, target)

    def _replace(self, first: int, second: int) -> None:
        path = self._pick(first, stat.S_ISREG)
        if path is not None:
            extra = next(self._words) + b"\n" if second % 3 else b""
            self._files.replace(path, self._files.at(path).data + extra)

    def _remake(self, first: int, second: int) -> None:
        path = self._pick(first, stat.S_ISDIR)
        if path is not None:
            self._files.remake(path)

    def _chmod(self, first: int, second: int) -> None:
        path = self._pick(first, lambda mode: not stat.S_ISLNK(mode))
        if path is None:
            return
        match second % 4:
            case 0 | 1:
                self._files.chmod(path, 0o600 + second % 8)
            case 2:
                self._files.chown(path, second)
            case _:
                self._files.set_xattr(path, b"user.%d" % (second % 2), b"%d" % second)

    def _symlink(self, first: int, second: int) -> None:
        path = self._pick(first, stat.S_ISLNK) if second % 2 else self._new(first, second)
        if path is not None:
            self._files.symlink(path, next(self._words))

    def _turn(self, first: int, second: int) -> None:
        """Make a directory of a file, or the other way round."""
        path = self._pick(first)
        if path is None:
            return
        was_dir = stat.S_ISDIR(self._files.at(path).mode)
        self._files.remove(path)
        if was_dir:
            self._files.write(path, next(self._words) + b"\n")
        else:
            self._files.mkdir(path)

    def _paths(self) -> Iterator[bytes]:
        prefix = self._below + b"/" if self._below else b""
        return (path for path in self._files.paths() if path.startswith(prefix))

    def _pick(self, number: int, is_kind: Callable[[int], bool] = lambda _: True) -> bytes | None:
        paths = [path for path in self._paths() if is_kind(self._files.at(path).mode)]
        return paths[number % len(paths)] if paths else None

    def _new(self, number: int, name: int) -> bytes | None:
        """Return a path that is free."""
        directories = [self._below] + [
            path for path in self._paths() if stat.S_ISDIR(self._files.at(path).mode)
        ]
        directory = directories[number % len(directories)]
        path = (directory + b"/" if directory else b"") + NAMES[name % len(NAMES)]
        return path if self._files.find(path) is None else None


def run_forks(program: Forks) -> Three:
    """Make a base and two sides of it."""
    base = Files()
    Program(base, b"b").run(program[0])
    three = Three(base)
    Program(three.ours, b"o").run(program[1])
    Program(three.theirs, b"t").run(program[2])
    return three
