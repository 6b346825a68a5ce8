"""Which commit wrote each line of a file, through merges and renames.

Lines are handed from a commit to the parents that have them; what none of the parents has, the
commit wrote. A parent that has the file just as it is takes all lines unread, so commits that did
not touch the file cost no more than the way to it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from workspacefs.errors import NotFoundError, UsageError
from workspacefs.merge.lines import TEXT_MAX_BYTES, is_text
from workspacefs.objects.commits import Commit, Provenance
from workspacefs.objects.entry import Entry
from workspacefs.objects.refs import Ref
from workspacefs.tracing.texts import Block, iter_common_lines, lines_of, normal_text
from workspacefs.tracing.trails import Names, Trail, find_trail, follow_back, names_of
from workspacefs.workspace.content import read_content
from workspacefs.workspace.history import CommitSource
from workspacefs.workspace.listing import TreeStore, find_file

_TEXTS_KEPT: Final = 8
"""Versions of the file in memory; a commit is compared with its parents one after the other."""


class BlameSource(CommitSource, TreeStore, Protocol):
    """Gives commits and all that is in them."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where lines come from."""

    ref: Ref
    commit: Commit
    path: bytes
    """Of the file, as it was called in that commit."""
    writer: Provenance
    """Who made the commit."""


class BlamedLine(NamedTuple):
    """One line of a file, and who wrote it."""

    number: int
    """In the file, from 1."""
    text: bytes
    """Without its end."""
    origin: Origin | None
    """None: it is not committed yet."""
    origin_number: int
    """In the file as the commit has it, from 1; not committed: as `number`."""


class Uncommitted(NamedTuple):
    """A file as a session has it now."""

    data: bytes
    path: bytes
    """As a person knows it, for messages."""


class _Span(NamedTuple):
    """Lines that nobody has been found for yet, counted from 0."""

    final: int
    """The first one's number in the file that is asked about."""
    start: int
    """Its number in the version that is looked at."""
    lines: int


@dataclass(slots=True)
class _Suspect:
    """A version of the file that has lines which it or its parents wrote."""

    ref: Ref
    commit: Commit
    trail: Trail
    spans: list[_Span] = field(default_factory=list)


def blame_file(
    head: tuple[Ref, Commit] | None,
    path: bytes,
    source: BlameSource,
    *,
    uncommitted: Uncommitted | None = None,
    first: int = 1,
    last: int | None = None,
) -> list[BlamedLine]:
    """Return for each line of a file which commit wrote it.

    A line that a merge has from several parents is the first one's. Where a line came to stand
    twice, or was moved, the later of the two was written by who put it there.

    Args:
        head: The commit to begin from; None: nothing was committed yet.
        path: Of the file in `head`, from the root. With `uncommitted` it need not be there.
        source: Gives commits, nodes and content.
        uncommitted: The file as it is now, instead of the one in `head`; lines that `head` does not
            have are not committed.
        first: Of the lines that are asked for, from 1.
        last: The last one; None: to the end. What lies behind the end is none.

    Raises:
        NotFoundError: There is no such file in `head`.
        UsageError: It is no regular file, or no text (kind "blame.binary"); or there is no line
            `first` (kind "blame.lines").
    """
    search = _Search(source)
    if uncommitted is not None:
        text = _normal(uncommitted.data)
    elif head is not None:
        text = search.text_of(find_file(head[1].root, path, source))
    else:
        raise NotFoundError("nothing was committed yet", kind="path.absent")
    if text is None:
        raise _no_text(path if uncommitted is None else uncommitted.path)
    lines = lines_of(text)
    stop = len(lines) if last is None else min(last, len(lines))
    if first < 1 or (stop < first and (lines or first > 1)):
        raise UsageError(
            f"there are no lines {first} to {last or 'the end'}: the file has {len(lines):,}",
            kind="blame.lines",
        )
    wanted = [_Span(first - 1, first - 1, stop - first + 1)]
    if head is not None:
        search.begin(head, names_of(path), text, wanted, is_head=uncommitted is None)
    found = search.run()
    return [
        BlamedLine(at + 1, lines[at], *found.get(at, (None, at + 1)))
        for at in range(first - 1, stop)
    ]


class _Search:
    def __init__(self, source: BlameSource) -> None:
        self._source = source
        self._suspects: dict[tuple[bytes, Names], _Suspect] = {}
        self._queue: list[tuple[int, int, tuple[bytes, Names]]] = []
        self._pushes = 0
        self._texts: OrderedDict[tuple[int, object], bytes | None] = OrderedDict()
        self._found: dict[int, tuple[Origin, int]] = {}

    def begin(
        self,
        head: tuple[Ref, Commit],
        names: Names,
        text: bytes,
        wanted: list[_Span],
        *,
        is_head: bool,
    ) -> None:
        """Suspect a commit of lines of a text, which is the file there or one that came of it."""
        trail = find_trail(head[1].root, names, self._source)
        if is_head:
            self._suspect(*head, trail, wanted)
            return
        old = self.text_of(trail.entry)
        if old is not None:
            handed, _ = _parted(wanted, iter_common_lines(old, text))
            self._suspect(*head, trail, handed)

    def run(self) -> dict[int, tuple[Origin, int]]:
        """Return origin and number there, from 1, by line from 0 of all that were suspected."""
        while self._queue:
            suspect = self._suspects.pop(heapq.heappop(self._queue)[2], None)
            if suspect is not None:
                self._look_at(suspect)
        return self._found

    def _look_at(self, suspect: _Suspect) -> None:
        parents = []
        for ref in suspect.commit.parents:
            commit = self._source.load_commit(ref)
            parents.append((ref, commit, follow_back(suspect.trail, commit.root, self._source)))
            if _is_same(parents[-1][2].entry, suspect.trail.entry):
                self._suspect(*parents[-1], suspect.spans)
                return
        rest = suspect.spans
        text = self.text_of(suspect.trail.entry) if parents else None
        for ref, commit, trail in parents:
            old = self.text_of(trail.entry)
            if old is None or text is None or not rest:
                continue
            handed, rest = _parted(rest, iter_common_lines(old, text))
            self._suspect(ref, commit, trail, handed)
        if rest:
            path = suspect.trail.path
            writer = suspect.commit.provenance
            origin = Origin(suspect.ref, suspect.commit, path, writer)
            for span in rest:
                for at in range(span.lines):
                    self._found[span.final + at] = origin, span.start + at + 1

    def _suspect(self, ref: Ref, commit: Commit, trail: Trail, spans: Iterable[_Span]) -> None:
        spans = list(spans)
        if not spans:
            return
        key = ref.id, trail.names
        if key not in self._suspects:
            self._suspects[key] = _Suspect(ref, commit, trail)
            self._pushes += 1
            heapq.heappush(self._queue, (-commit.time_ns, self._pushes, key))
        self._suspects[key].spans += spans

    def text_of(self, entry: Entry | None) -> bytes | None:
        """Return the lines of a file; None: it is none, or no text."""
        if entry is None or not entry.is_regular or entry.size_bytes > TEXT_MAX_BYTES:
            return None
        key = entry.size_bytes, entry.content
        if key not in self._texts:
            data = read_content(entry, self._source, 0, entry.size_bytes)
            self._texts[key] = _normal(data)
            if len(self._texts) > _TEXTS_KEPT:
                self._texts.popitem(last=False)
        self._texts.move_to_end(key)
        return self._texts[key]


def _parted(spans: Iterable[_Span], common: Iterable[Block]) -> tuple[list[_Span], list[_Span]]:
    """Return the lines of a version that an older one has, as lines of that one, and the others.

    Args:
        spans: Of the newer version, in any order; two may be of the same lines.
        common: What the older version and the newer one have in common, in order.
    """
    handed: list[_Span] = []
    rest: list[_Span] = []
    blocks = list(common)
    ends = [block.other_start + block.lines for block in blocks]
    for span in spans:
        at, end = span.start, span.start + span.lines
        index = bisect_right(ends, at)
        if index < len(blocks) and blocks[index].other_start <= at and end <= ends[index]:
            # Most spans lie in one block: no more of them is looked at than must be.
            start, other_start, _ = blocks[index]
            handed.append(_Span(span.final, start + at - other_start, span.lines))
            continue
        for block in blocks[index:]:
            low, high = max(block.other_start, at), min(block.other_start + block.lines, end)
            if low >= high:
                break
            if low > at:
                rest.append(_part(span, at, low))
            part = _part(span, low, high)
            handed.append(part._replace(start=block.start + low - block.other_start))
            at = high
        if at < end:
            rest.append(_part(span, at, end))
    return handed, rest


def _part(span: _Span, low: int, high: int) -> _Span:
    return _Span(span.final + low - span.start, low, high - low)


def _normal(data: bytes) -> bytes | None:
    return normal_text(data) if is_text(data) else None


def _is_same(old: Entry | None, new: Entry | None) -> bool:
    """Tell whether a version that is a file was just that before."""
    return (
        old is not None
        and new is not None
        and old.is_regular
        and (old.size_bytes, old.content) == (new.size_bytes, new.content)
    )


def _no_text(path: bytes) -> UsageError:
    shown = path.decode("utf-8", "backslashreplace")
    return UsageError(
        f"{shown} is no text (or longer than any that is compared by line), so it has no lines; "
        "workspacefs log --path tells which commits changed it",
        kind="blame.binary",
    )


def iter_origins(lines: Iterable[BlamedLine]) -> Iterator[Origin]:
    """Yield each commit that wrote some of these lines once, in the order of the lines."""
    seen: set[bytes] = set()
    for line in lines:
        if line.origin is not None and line.origin.ref.id not in seen:
            seen.add(line.origin.ref.id)
            yield line.origin
