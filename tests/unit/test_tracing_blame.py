"""Who wrote which line: against a model, through merges and renames, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.merge_files import Files, do, read
from tests.unit.traced_history import Head, History
from workspacefs.errors import NotFoundError, UsageError
from workspacefs.merge.lines import DEFAULT_LABELS, merge_lines
from workspacefs.tracing.blame import BlamedLine, Uncommitted, blame_file, iter_origins
from workspacefs.tracing.texts import Block, iter_common_lines, lines_of, normal_text
from workspacefs.workspace.listing import find_file


def who(lines: list[BlamedLine]) -> list[str | None]:
    """Return the message of each line's commit."""
    return [None if line.origin is None else line.origin.commit.message for line in lines]


def check(lines: list[BlamedLine], history: History) -> None:
    """Raise unless each line stands in its commit where it is said to."""
    assert [line.number for line in lines] == list(range(1, len(lines) + 1))
    for line in lines:
        if line.origin is None:
            continue
        entry = find_file(line.origin.commit.root, line.origin.path, history)
        there = lines_of(normal_text(read(entry, history)))
        assert there[line.origin_number - 1] == line.text


# -- single cases --------------------------------------------------------------------------


def test_each_line_has_the_commit_that_wrote_it() -> None:
    """Changed, added and kept lines; the numbers are those of that commit's file."""
    history = History()
    heads = history.line("write f a b c", "write f x a b c", "write f x a B c y")

    lines = blame_file(heads[-1], b"f", history)

    assert [line.text for line in lines] == [b"x", b"a", b"B", b"c", b"y"]
    one, two, three = (head[1].message for head in heads)
    assert who(lines) == [two, one, three, one, three]
    assert [line.origin_number for line in lines] == [1, 1, 3, 3, 5]
    assert [origin.ref for origin in iter_origins(lines)] == [heads[at][0] for at in (1, 0, 2)]


@pytest.mark.parametrize(
    "program",
    ["mv f d/g; write d/g a b c", "mv f f~; write d/g x; rm d/g; mv f~ d/g; write d/g a b c"],
)
def test_renames_are_followed(program: str) -> None:
    """To the name that the file had in the commit that wrote the line."""
    history = History()
    heads = history.line("mkdir d; write f a", "write f a b", program)

    lines = blame_file(heads[-1], b"d/g", history)

    assert who(lines) == [head[1].message for head in heads]
    assert [line.origin.path for line in lines if line.origin] == [b"f", b"f", b"d/g"]


def test_replaced_file_is_followed_by_its_path() -> None:
    """A new file under the old name has the lines that the old one had."""
    history = History()
    heads = history.line("write f a", "replace f a b", "mv f f~; write f a b c")

    assert who(blame_file(heads[-1], b"f", history)) == [head[1].message for head in heads]


def test_line_ends_are_no_lines() -> None:
    """A file that was turned to other line ends, or lost its last one, has its lines still."""
    history, files = History(), Files()
    files.write(b"f", b"a\nb\n")
    first = history.commit(files, message="one")
    files.write(b"f", b"a\r\nb\r\nc")
    second = history.commit(files, first, message="two")
    files.write(b"f", b"a\r\nb\r\nc\r\nd\r\n")
    third = history.commit(files, second, message="three")

    lines = blame_file(third, b"f", history)

    assert who(lines) == ["one", "one", "two", "three"]
    assert lines[0].text == b"a"


def test_history_that_was_binary_or_a_directory_ends_there() -> None:
    """What was no text had no lines, so whoever made it one wrote them all."""
    history = History()
    heads = history.line("binary f a", "write f a", "write f a b")
    assert who(blame_file(heads[-1], b"f", history)) == ["write f a", "write f a b"]

    heads = history.line("mkdir f; write f/a a", "rm f; write f a", "write f a b")
    assert who(blame_file(heads[-1], b"f", history)) == ["rm f; write f a", "write f a b"]

    files = Files()
    files.symlink(b"f", b"a")
    link = history.commit(files, message="link")
    files.remove(b"f")
    files.write(b"f", b"a")
    assert who(blame_file(history.commit(files, link, message="file"), b"f", history)) == ["file"]


@pytest.mark.parametrize(
    ("program", "path", "kind"),
    [
        ("binary f a", b"f", "blame.binary"),
        ("mkdir f", b"f", "path.kind"),
        ("symlink f g", b"f", "path.kind"),
        ("write f a", b"", "path.kind"),
    ],
)
def test_what_has_no_lines_is_refused(program: str, path: bytes, kind: str) -> None:
    """Plainly."""
    history = History()
    with pytest.raises(UsageError) as caught:
        blame_file(history.line(program)[0], path, history)
    assert caught.value.kind == kind


def test_what_is_not_there_is_refused() -> None:
    """With near names, as by all who look into a tree."""
    history = History()
    with pytest.raises(NotFoundError, match="did you mean file"):
        blame_file(history.line("write file a")[0], b"fiel", history)
    with pytest.raises(NotFoundError):
        blame_file(None, b"f", history)


@pytest.mark.parametrize(("first", "last"), [(1, 1), (2, 3), (3, None), (2, 99)])
def test_some_lines_are_told_alike(first: int, last: int | None) -> None:
    """With the numbers that they have in the whole file."""
    history = History()
    heads = history.line("write f b d", "write f a b d", "write f a b c d")
    everything = blame_file(heads[-1], b"f", history)

    assert (
        blame_file(heads[-1], b"f", history, first=first, last=last) == everything[first - 1 : last]
    )


@pytest.mark.parametrize(("first", "last"), [(0, 1), (3, 2), (4, None), (4, 9), (-1, None)])
def test_lines_that_are_not_there_are_refused(first: int, last: int | None) -> None:
    """With how many there are."""
    history = History()
    with pytest.raises(UsageError, match="the file has 3") as caught:
        blame_file(history.line("write f a b c")[0], b"f", history, first=first, last=last)
    assert caught.value.kind == "blame.lines"


def test_empty_file_has_no_lines() -> None:
    """And that is no error."""
    history = History()

    assert blame_file(history.line("write f")[0], b"f", history) == []
    assert blame_file(None, b"f", history, uncommitted=Uncommitted(b"", b"f")) == []


def test_merge_wrote_only_what_no_parent_has() -> None:
    """All else is traced through the parent that has it; the first one where both do."""
    history, left = History(), Files()
    do(left, "write f a b c d")
    base = history.commit(left, message="base")
    right = left.fork(1000)
    do(left, "write f a L b c d")
    do(right, "write f a b c R d")
    first = history.commit(left, base, message="left")
    second = history.commit(right, base, message="right")
    do(left, "write f a L b c R M d")
    merge = history.commit(left, first, second, message="merge")

    lines = blame_file(merge, b"f", history)

    assert who(lines) == ["base", "left", "base", "base", "right", "merge", "base"]
    check(lines, history)


def test_merge_that_took_a_side_whole_is_passed_over() -> None:
    """Also if that side is the second parent, and though the first has some of its lines."""
    history, left = History(), Files()
    do(left, "write f a b")
    base = history.commit(left, message="base")
    right = left.fork(1000)
    do(left, "write f a b same")
    do(right, "write f a b same more")
    first = history.commit(left, base, message="left")
    second = history.commit(right, base, message="right")
    merge = history.commit(right, first, second, message="merge")

    assert who(blame_file(merge, b"f", history)) == ["base", "base", "right", "right"]


def test_line_that_came_twice_is_found_twice() -> None:
    """By each of two parents, in one place of the commit that both descend from."""
    history, left = History(), Files()
    do(left, "write f p x q")
    base = history.commit(left, message="base")
    right = left.fork(1000)
    do(left, "write f x l1 l2")
    do(right, "write f r1 r2 x")
    first = history.commit(left, base, message="left")
    second = history.commit(right, base, message="right")
    do(left, "write f x l1 l2 m r1 r2 x")
    merge = history.commit(left, first, second, message="merge")

    lines = blame_file(merge, b"f", history)

    assert who(lines) == ["base", "left", "left", "merge", "right", "right", "base"]
    check(lines, history)


def test_uncommitted_lines_are_told_apart() -> None:
    """The file as it is now, over a commit that may not have it, or have it by another name."""
    history = History()
    heads = history.line("write f a b", "write f a b c")
    one, two = (head[1].message for head in heads)
    now = Uncommitted(b"a\nnew\nc\n", b"g")

    assert who(blame_file(heads[-1], b"f", history, uncommitted=now)) == [one, None, two]
    assert who(blame_file(heads[-1], b"g", history, uncommitted=now)) == [None] * 3
    assert who(blame_file(None, b"g", history, uncommitted=now)) == [None] * 3
    lines = blame_file(heads[-1], b"f", history, uncommitted=now, first=2, last=3)
    assert [(line.number, line.text, line.origin_number) for line in lines] == [
        (2, b"new", 2), (3, b"c", 3),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="g is no text"):
        blame_file(heads[-1], b"f", history, uncommitted=Uncommitted(b"\0", b"g"))


def test_commits_that_did_not_touch_the_file_read_no_content() -> None:
    """They cost their nodes on the way; each version of the file is read once."""
    history, files = History(), Files()
    head: list[Head] = []
    for number in range(60):
        if number % 10 == 0:
            files.write(b"f", b"".join(b"%d line\n" % at for at in range(number + 100)))
        files.write(b"other", b"%d" % number)
        head = [history.commit(files, *head, message=str(number))]
    history.chunk_loads = 0

    lines = blame_file(head[0], b"f", history)

    assert {line.origin.commit.message for line in lines if line.origin} == {
        "0", "10", "20", "30", "40", "50",
    }  # fmt: skip
    assert history.chunk_loads == 6
    assert max(history.commit_loads.values()) == 1


# -- texts ---------------------------------------------------------------------------------


def texts(words: list[bytes]) -> st.SearchStrategy[bytes]:
    return st.lists(st.sampled_from(words), max_size=12).map(b"".join)


LONG = b"long " * 30 + b"\n"
WORDS = [b"a\n", b"b\n", b"ab\n", b"\n", b"ba\n", LONG, LONG[1:], LONG[:-2] + b"\n"]


@given(text=texts(WORDS), other=texts(WORDS))
@settings(max_examples=examples(300))
def test_common_lines_are_common(text: bytes, other: bytes) -> None:
    """In order in both, and all of what is alike at both ends."""
    blocks = list(iter_common_lines(text, other))

    ours, theirs = lines_of(text), lines_of(other)
    at = other_at = 0
    for start, other_start, lines in blocks:
        assert lines > 0
        assert start >= at
        assert other_start >= other_at
        at, other_at = start + lines, other_start + lines
        assert ours[start:at] == theirs[other_start:other_at]
    assert at <= len(ours)
    assert other_at <= len(theirs)
    head = 0
    while head < min(len(ours), len(theirs)) and ours[head] == theirs[head]:
        head += 1
    if head:
        assert blocks[0] == Block(0, 0, blocks[0].lines)
        assert blocks[0].lines == head
    elif ours and theirs and ours[-1] == theirs[-1]:
        assert (at, other_at) == (len(ours), len(theirs))
    if ours == theirs:
        assert blocks == ([Block(0, 0, len(ours))] if ours else [])


@given(data=texts([b"a", b"\n", b"\r\n", b"\r"]))
def test_normal_text_has_whole_lines(data: bytes) -> None:
    """Each with a newline alone, also the last one; and no others than there were."""
    text = normal_text(data)

    assert not text or text.endswith(b"\n")
    assert b"".join(line + b"\n" for line in lines_of(text)) == text
    assert text.rstrip(b"\n") == data.replace(b"\r\n", b"\n").rstrip(b"\n")
    assert len(lines_of(text)) == data.count(b"\n") + bool(data.rpartition(b"\n")[2])


# -- against a model -----------------------------------------------------------------------


@dataclass
class Side:
    """One session: its commit, and its file, whose lines say who wrote them."""

    head: Head
    lines: list[bytes]
    path: bytes = b"f"
    file_id: int = 500
    ancestors: set[bytes] = field(default_factory=set)


class Model:
    """Sessions that edit one file, and merge one another when that is clean."""

    def __init__(self, *, renames: bool) -> None:
        self.history = History()
        self._renames = renames
        self._made: dict[bytes, Side] = {}
        self._number = 0
        self.merges = 0
        lines = self._new_lines(6)
        first = self._commit(Side((None, None), lines), ())  # type: ignore[arg-type]
        self.sides = [self._copy(first) for _ in range(3)]

    def do(self, kind: int, which: int, at: int, more: int) -> None:
        """Do one step; what cannot be done is left out."""
        side = self.sides[which]
        if kind <= 2:
            self._edit(side, at, more)
        elif kind == 3:
            if self._renames:
                side.path = (b"f", b"g", b"d/h")[more % 3]
            else:
                side.file_id = 501 + self._number
            self._edit(side, at, 0)
        else:
            self._merge(side, self.sides[more % len(self.sides)])

    def edit(self, side: Side, at: int, more: int) -> None:
        """Put some new lines in the place of old ones; nothing is committed."""
        at %= len(side.lines) + 1
        side.lines[at : at + more % 3] = self._new_lines(more % 4)

    def _edit(self, side: Side, at: int, more: int) -> None:
        self._number += 1
        self.edit(side, at, more)
        self.edit(side, at * 7, more // 3)
        self._commit(side, (side.head,))

    def _merge(self, ours: Side, theirs: Side) -> None:
        if theirs.head[0].id in ours.ancestors or ours.head[0].id in theirs.ancestors:
            return
        common = ours.ancestors & theirs.ancestors
        base = max((self._made[one] for one in common), key=lambda one: one.head[1].time_ns)
        merged = merge_lines(*map(text_of, (base, ours, theirs)), DEFAULT_LABELS)
        paths = {side.path for side in (ours, theirs)} - {base.path}
        if not merged.is_clean or len(paths) > 1:
            return
        self.merges += 1
        self._number += 1
        ours.lines = lines_of(merged.marked)
        ours.path = next(iter(paths), base.path)
        if ours.file_id == base.file_id:
            ours.file_id = theirs.file_id
        ours.ancestors |= theirs.ancestors
        self._commit(ours, (ours.head, theirs.head))

    def _new_lines(self, count: int) -> list[bytes]:
        return [b"%d:%d" % (self._number, at) + b" ." * (at % 3) for at in range(count)]

    def _commit(self, side: Side, parents: tuple[Head, ...]) -> Side:
        files = Files()
        files.mkdir(b"d")
        file = files.write(side.path, text_of(side))
        file.file_id = side.file_id  # type: ignore[assignment]
        parent = files.at(side.path.rpartition(b"/")[0])
        name = side.path.rpartition(b"/")[2]
        del files.files[parent.names[name]]
        parent.names[name] = file.file_id
        files.files[file.file_id] = file
        side.head = self.history.commit(files, *parents, message=str(self._number))
        side.ancestors = side.ancestors | {side.head[0].id}
        self._made[side.head[0].id] = self._copy(side)
        return side

    def _copy(self, side: Side) -> Side:
        return Side(side.head, list(side.lines), side.path, side.file_id, set(side.ancestors))


def text_of(side: Side) -> bytes:
    return b"".join(line + b"\n" for line in side.lines)


def writer(line: bytes) -> str:
    """Return the message of the commit that a line says wrote it."""
    return line.partition(b":")[0].decode()


small = st.integers(0, 40)
program = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), small, small), max_size=25)


@pytest.mark.parametrize("renames", [False, True])
@given(steps=program, last=st.tuples(small, small))
@settings(max_examples=examples(120), deadline=None)
def test_every_line_has_the_one_commit_that_wrote_it(
    renames: bool, steps: list[tuple[int, int, int, int]], last: tuple[int, int]
) -> None:
    """Whatever sessions did, in whatever order they merged; and what is not committed has none."""
    model = Model(renames=renames)
    for one in steps:
        model.do(*one)

    for side in model.sides:
        lines = blame_file(side.head, side.path, model.history)

        assert [line.text for line in lines] == side.lines
        assert who(lines) == [writer(line) for line in side.lines]
        check(lines, model.history)

        side.lines = [b"uncommitted", *side.lines]
        del side.lines[last[0] % len(side.lines) : last[0] % len(side.lines) + last[1] % 3]
        now = Uncommitted(text_of(side), b"now")
        lines = blame_file(side.head, side.path, model.history, uncommitted=now)
        assert who(lines) == [
            None if line == b"uncommitted" else writer(line) for line in side.lines
        ]


@given(steps=program, alphabet=st.integers(1, 4))
@settings(max_examples=examples(60), deadline=None)
def test_lines_that_are_alike_are_each_found_somewhere(
    steps: list[tuple[int, int, int, int]], alphabet: int
) -> None:
    """Where lines do not tell who wrote them: each has one commit, and stands there."""
    history, files = History(), Files()
    lines: list[bytes] = []
    heads: list[Head] = []
    for kind, which, at, more in steps:
        at %= len(lines) + 1
        lines[at : at + which] = [b"%d" % (number % alphabet) for number in range(more % 5)]
        files.write(b"f", b"".join(line + b"\n" for line in lines))
        parents = heads[-1:] if kind < 5 else heads[-1:] + heads[at % (len(heads) + 1) :][:1]
        heads.append(history.commit(files, *parents, time_ns=(more if kind % 2 else None)))

    for head in heads[-3:]:
        found = blame_file(head, b"f", history)
        assert all(line.origin is not None for line in found)
        check(found, history)
