"""Changes as text: unified patches in the manner of git, and line counts. No colour.

Text is `str` with undecodable bytes as surrogates (os.fsencode gives the bytes back).

Source: git-diff(1), "Generating patch text with -p".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final, Literal, NamedTuple

from workspacefs.objects.entry import Entry
from workspacefs.workspace.changes import ChangeKind, PathChange
from workspacefs.workspace.content import ContentSource, iter_content

TEXT_MAX_BYTES: Final = 4 * 1024 * 1024
"""Larger files are compared as wholes only."""
_BINARY_HEAD_BYTES: Final = 8000
_CONTEXT_LINES: Final = 3
_PLAIN: Final = frozenset(range(0x20, 0x7F)) - frozenset(b'"\\')
_ESCAPES: Final = {0x07: "a", 0x08: "b", 0x09: "t", 0x0A: "n", 0x0B: "v", 0x0C: "f", 0x0D: "r"}

_Opcode = tuple[Literal["replace", "delete", "insert", "equal"], int, int, int, int]


class LineCounts(NamedTuple):
    """Lines of one changed file."""

    added: int
    removed: int


def count_lines(change: PathChange, store: ContentSource) -> LineCounts | None:
    """Return how many lines a change adds and removes; None: it is binary or too large."""
    if not change.is_content_changed:
        return LineCounts(0, 0)
    old, new = _lines_of(change.old, store), _lines_of(change.new, store)
    if old is None or new is None:
        return None
    added = removed = 0
    for tag, old_low, old_high, new_low, new_high in _opcodes(old, new):
        if tag != "equal":
            removed += old_high - old_low
            added += new_high - new_low
    return LineCounts(added, removed)


def iter_patch(changes: Iterable[PathChange], store: ContentSource) -> Iterator[str]:
    """Yield the lines of a patch, each with its end; directories have no place in it."""
    for change in changes:
        if change.kind is ChangeKind.TYPE:
            # As in git, another kind of file is one file gone and another come.
            yield from _patch_of(change._replace(new=None), store)
            yield from _patch_of(change._replace(old=None), store)
        else:
            yield from _patch_of(change, store)


def iter_stat(changes: Sequence[PathChange], store: ContentSource) -> Iterator[str]:
    """Yield one line for each changed file, and a sum, in the manner of `git diff --stat`."""
    rows: list[tuple[str, LineCounts | None]] = []
    for change in changes:
        if not any(entry is not None and not entry.is_dir for entry in (change.old, change.new)):
            continue
        name = quote_path(change.path)
        if change.old_path is not None:
            name = f"{quote_path(change.old_path)} => {name}"
        rows.append((name, count_lines(change, store)))
    width = max((len(name) for name, _ in rows), default=0)
    added = removed = 0
    for name, counts in rows:
        if counts is None:
            yield f" {name:<{width}} | binary\n"
            continue
        added += counts.added
        removed += counts.removed
        bar = _bar(counts)
        yield f" {name:<{width}} | {counts.added + counts.removed:>5}{' ' if bar else ''}{bar}\n"
    yield f" {len(rows)} files changed, {added} insertions(+), {removed} deletions(-)\n"


def quote_path(path: bytes) -> str:
    """Return a path as git prints it: in quotes with escapes if it holds odd bytes."""
    try:
        text = path.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if text and text.isprintable() and '"' not in text and "\\" not in text:
        return text
    parts = []
    for byte in path:
        if byte in _PLAIN:
            parts.append(chr(byte))
        elif byte in b'"\\':
            parts.append("\\" + chr(byte))
        else:
            parts.append("\\" + _ESCAPES.get(byte, f"{byte:03o}"))
    return f'"{"".join(parts)}"'


def _patch_of(change: PathChange, store: ContentSource) -> Iterator[str]:
    old = None if change.old is None or change.old.is_dir else change.old
    new = None if change.new is None or change.new.is_dir else change.new
    if old is None and new is None:
        return
    before = quote_path(b"a/" + (change.old_path or change.path))
    after = quote_path(b"b/" + change.path)
    head = [f"diff --git {before} {after}\n", *_headers_of(change, old, new)]
    if _content(old) == _content(new):
        if len(head) > 1:  # owners, times and xattrs have no place in a patch
            yield from head
        return
    yield from head
    old_lines, new_lines = _lines_of(old, store), _lines_of(new, store)
    old_name = "/dev/null" if old is None else before
    new_name = "/dev/null" if new is None else after
    if old_lines is None or new_lines is None:
        yield f"Binary files {old_name} and {new_name} differ\n"
        return
    hunks = _hunks(old_lines, new_lines)
    first = next(hunks, None)
    if first is not None:
        yield f"--- {old_name}\n"
        yield f"+++ {new_name}\n"
        yield from first
        for hunk in hunks:
            yield from hunk


def _headers_of(change: PathChange, old: Entry | None, new: Entry | None) -> Iterator[str]:
    if old is None and new is not None:
        yield f"new file mode {new.mode:06o}\n"
    elif new is None and old is not None:
        yield f"deleted file mode {old.mode:06o}\n"
    elif old is not None and new is not None and old.mode != new.mode:
        yield f"old mode {old.mode:06o}\n"
        yield f"new mode {new.mode:06o}\n"
    if change.kind is ChangeKind.RENAMED and change.old_path is not None:
        yield f"rename from {quote_path(change.old_path)}\n"
        yield f"rename to {quote_path(change.path)}\n"


def _content(entry: Entry | None) -> object:
    return None if entry is None else (entry.size_bytes, entry.content)


def _lines_of(entry: Entry | None, store: ContentSource) -> list[str] | None:
    """Return the lines of a text file or link target; None: binary or too large."""
    if entry is None or entry.is_dir:
        return []
    if entry.size_bytes > TEXT_MAX_BYTES:
        return None
    if entry.is_regular:
        data = b"".join(iter_content(entry, store))
    else:
        data = entry.content if isinstance(entry.content, bytes) else b""
    if b"\0" in data[:_BINARY_HEAD_BYTES]:
        return None
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    ends = [line + "\n" for line in lines[:-1]]
    return [*ends, lines[-1]] if lines[-1] else ends


def _opcodes(old: list[str], new: list[str]) -> list[_Opcode]:
    """Return difflib's opcodes; equal lines at both ends are taken off first, which is most."""
    shorter = min(len(old), len(new))
    start = 0
    while start < shorter and old[start] == new[start]:
        start += 1
    end = 0
    while end < shorter - start and old[-1 - end] == new[-1 - end]:
        end += 1
    middle_old, middle_new = old[start : len(old) - end], new[start : len(new) - end]
    codes: list[_Opcode] = [("equal", 0, start, 0, start)] if start else []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, middle_old, middle_new).get_opcodes():
        codes.append((tag, i1 + start, i2 + start, j1 + start, j2 + start))
    if end:
        codes.append(("equal", len(old) - end, len(old), len(new) - end, len(new)))
    return codes


class _Matched(SequenceMatcher[str]):
    """Lends difflib's grouping to opcodes that are known already."""

    def __init__(self, opcodes: list[_Opcode]) -> None:
        super().__init__(None, "", "")
        self._known = opcodes

    def get_opcodes(self) -> list[_Opcode]:
        """Return them."""
        return self._known


def _hunks(old: list[str], new: list[str]) -> Iterator[list[str]]:
    for group in _Matched(_opcodes(old, new)).get_grouped_opcodes(_CONTEXT_LINES):
        old_low, old_high = group[0][1], group[-1][2]
        new_low, new_high = group[0][3], group[-1][4]
        lines = [f"@@ -{_range(old_low, old_high)} +{_range(new_low, new_high)} @@\n"]
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                lines += _marked(" ", old[i1:i2])
            else:
                lines += _marked("-", old[i1:i2])
                lines += _marked("+", new[j1:j2])
        yield lines


def _marked(mark: str, lines: list[str]) -> Iterator[str]:
    for line in lines:
        if line.endswith("\n"):
            yield mark + line
        else:
            yield f"{mark}{line}\n"
            yield "\\ No newline at end of file\n"


def _range(low: int, high: int) -> str:
    length = high - low
    if length == 1:
        return str(low + 1)
    return f"{low + 1 if length else low},{length}"


def _bar(counts: LineCounts, *, width: int = 40) -> str:
    total = counts.added + counts.removed
    if total <= width:
        return "+" * counts.added + "-" * counts.removed
    plus = round(counts.added * width / total)
    return "+" * plus + "-" * (width - plus)
