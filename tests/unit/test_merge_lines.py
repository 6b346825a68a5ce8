"""Three-way merge of text by line."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from workspacefs.merge.lines import LINES_MAX, TEXT_MAX_BYTES, Labels, is_text, merge_lines
from workspacefs.merge.matching import LineMatcher

LABELS = Labels(ours="branch main", theirs="session fix")

# What each side makes of a base, and what both together are. Every row holds with the sides
# swapped, too.
CLEAN = {
    "far apart": (b"1\n2\n3\n4\n", b"A\n2\n3\n4\n", b"1\n2\n3\nB\n", b"A\n2\n3\nB\n"),
    "one line between": (b"1\n2\n3\n", b"A\n2\n3\n", b"1\n2\nB\n", b"A\n2\nB\n"),
    "only one side": (b"1\n2\n", b"1\n2\n", b"1\nB\n", b"1\nB\n"),
    "the same change": (b"1\n2\n3\n", b"1\nX\n3\n", b"1\nX\n3\n", b"1\nX\n3\n"),
    "the same, and another": (b"1\n2\n3\n4\n", b"X\n2\n3\n4\n", b"X\n2\n3\nB\n", b"X\n2\n3\nB\n"),
    "added and removed": (b"1\n2\n3\n4\n", b"0\n1\n2\n3\n4\n", b"1\n2\n4\n", b"0\n1\n2\n4\n"),
    "all removed": (b"1\n2\n", b"", b"1\n2\n", b""),
    "from nothing": (b"", b"1\n", b"", b"1\n"),
    "both from nothing": (b"", b"1\n", b"1\n", b"1\n"),
    "all empty": (b"", b"", b"", b""),
    "trailing blanks are content": (b"1\n2\n3\n", b"1 \n2\n3\n", b"1\n2\n3\t\n", b"1 \n2\n3\t\n"),
    "blank lines": (b"1\n\n\n2\n3\n", b"0\n\n\n2\n3\n", b"1\n\n\n2\n4\n", b"0\n\n\n2\n4\n"),
    "other endings": (b"1\n2\n3\n", b"1\r\n2\r\n3\r\n", b"1\nB\n3\n", b"1\r\nB\r\n3\r\n"),
    "back from CRLF": (b"1\r\n2\r\n3\r\n", b"1\n2\n3\n", b"1\r\nB\r\n3\r\n", b"1\nB\n3\n"),
    "both to CRLF": (b"1\n2\n3\n", b"A\r\n2\r\n3\r\n", b"1\r\n2\r\nB\r\n", b"A\r\n2\r\nB\r\n"),
    "CRLF and one line": (b"1\r\n2\r\n", b"1", b"1\r\n2\r\n", b"1"),
    "CRLF kept": (b"1\r\n2\r\n3\r\n", b"A\r\n2\r\n3\r\n", b"1\r\n2\r\nB\r\n", b"A\r\n2\r\nB\r\n"),
    "last newline added": (b"1\n2\n3", b"1\n2\n3\n", b"A\n2\n3", b"A\n2\n3\n"),
    "last newline removed": (b"1\n2\n3\n", b"1\n2\n3", b"A\n2\n3\n", b"A\n2\n3"),
    "newline where the other adds": (b"1\n2", b"1\n2\n", b"1\n2\n3", b"1\n2\n3\n"),
    "endings and last newline": (b"1\n2", b"1\n2\n", b"1\r\n2", b"1\r\n2\r\n"),
    "mixed endings stay": (
        b"1\r\n2\n3\n4\n", b"1\r\nA\n3\n4\n", b"1\r\n2\n3\nB\r\n", b"1\r\nA\n3\nB\r\n",
    ),
    "lone returns stay": (b"1\r2\n3\n4\n", b"1\r2\n3\nA\n", b"0\r2\n3\n4\n", b"0\r2\n3\nA\n"),
    "no UTF-8": (b"\xff\n2\n3\n", b"\xff\n2\n\xfe\n", b"\xfd\n2\n3\n", b"\xfd\n2\n\xfe\n"),
}  # fmt: skip

CONFLICTS = {
    "the same line": (b"1\n2\n3\n", b"1\nA\n3\n", b"1\nB\n3\n"),
    "adjacent lines": (b"1\n2\n3\n4\n", b"1\nA\n3\n4\n", b"1\n2\nB\n4\n"),
    "two additions in one place": (b"1\n2\n", b"1\nA\n2\n", b"1\nB\n2\n"),
    "changed and removed": (b"1\n2\n3\n", b"1\nA\n3\n", b"1\n3\n"),
    "two texts from nothing": (b"", b"A\n", b"B\n"),
    "two endings of mixed text": (b"1\r\n2\n", b"1\n2\n", b"1\r\n2\r\nX\n"),
    "other endings from nothing": (b"", b"1\n2\n", b"1\r\n2\r\n"),
}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", CLEAN)
def test_clean_merge(name: str, swapped: bool) -> None:
    """Both sides' changes are there, whichever side is called ours."""
    base, ours, theirs, expected = CLEAN[name]

    merged = merge_lines(base, *((theirs, ours) if swapped else (ours, theirs)), LABELS)

    assert merged.is_clean
    assert merged.marked == merged.union == expected


@pytest.mark.parametrize("name", CONFLICTS)
def test_conflict(name: str) -> None:
    """Both sides say so, and both sides' lines are between the markers."""
    base, ours, theirs = CONFLICTS[name]

    merged = merge_lines(base, ours, theirs, LABELS)
    swapped = merge_lines(base, theirs, ours, LABELS)

    assert not merged.is_clean
    assert not swapped.is_clean
    for line in ours.split() + theirs.split():
        assert line in merged.marked.split()
        assert line in merged.union.split()


def test_markers_show_all_three_versions() -> None:
    """With the names of the sides behind them."""
    merged = merge_lines(b"1\n2\n3\n", b"1\nA\n3\n", b"1\nB\n3\n", LABELS)

    assert merged.marked == (
        b"1\n<<<<<<< branch main\nA\n||||||| base\n2\n=======\nB\n>>>>>>> session fix\n3\n"
    )
    assert merged.union == b"1\nA\nB\n3\n"


def test_markers_end_as_the_text_does() -> None:
    """In a text with CRLF they have CRLF; a missing last newline never swallows a marker."""
    crlf = merge_lines(b"1\r\n2\r\n", b"1\r\nA\r\n", b"1\r\nB\r\n", LABELS)
    bare = merge_lines(b"1\n2", b"1\nA", b"1\nB", LABELS)
    raw = merge_lines(b"1\r\n2\n3", b"1\r\n2\nA", b"1\r\n2\nB", LABELS)

    assert crlf.marked.count(b"\n") == crlf.marked.count(b"\r\n") == 8
    assert bare.marked.endswith(b"B\n>>>>>>> session fix\n")
    assert bare.union == b"1\nA\nB"
    assert raw.marked.endswith(
        b"<<<<<<< branch main\nA\n||||||| base\n3\n=======\nB\n>>>>>>> session fix\n"
    )
    assert raw.union == b"1\r\n2\nA\nB"


def test_lines_that_both_added_alike_stand_once() -> None:
    """Of two files made apart, only what differs is between markers."""
    ours, theirs = b"import a\n\nx = 1\nend\n", b"import a\n\nx = 2\nend\n"

    merged = merge_lines(b"", ours, theirs, LABELS)

    assert merged.marked == (
        b"import a\n\n<<<<<<< branch main\nx = 1\n||||||| base\n=======\nx = 2\n"
        b">>>>>>> session fix\nend\n"
    )


def test_label_stays_on_its_line() -> None:
    """Whatever somebody called a branch."""
    merged = merge_lines(b"", b"A\n", b"B\n", Labels(ours="a\nb", theirs="\udcff"))

    assert merged.marked.startswith(b"<<<<<<< a b\n")
    assert merged.marked.endswith(b">>>>>>> \xff\n")


def test_what_is_text() -> None:
    """A NUL early on, too many bytes or too many lines make a file binary."""
    assert is_text(b"")
    assert is_text(b"x" * 8000 + b"\0")
    assert not is_text(b"x" * 7999 + b"\0")
    assert is_text(b"x" * TEXT_MAX_BYTES)
    assert not is_text(b"x" * (TEXT_MAX_BYTES + 1))
    assert not is_text(b"\n" * LINES_MAX)


lines = st.lists(st.sampled_from([b"a", b"b", b"c", b"", b"d ", b"a\r", b"b\r"]), max_size=12)
texts = st.builds(lambda parts, end: b"\n".join(parts) + end, lines, st.sampled_from([b"", b"\n"]))


@given(base=texts, ours=texts, theirs=texts)
@settings(deadline=None, max_examples=examples(200))
def test_any_three_texts(base: bytes, ours: bytes, theirs: bytes) -> None:
    """Symmetrical; a side without changes changes nothing; what both have is the merge."""
    merged, swapped = (
        merge_lines(base, ours, theirs, LABELS),
        merge_lines(base, theirs, ours, LABELS),
    )

    assert merged.is_clean == swapped.is_clean
    if merged.is_clean:
        assert merged.marked == merged.union == swapped.marked
    assert merge_lines(base, base, theirs, LABELS).marked == theirs
    assert merge_lines(base, ours, base, LABELS).marked == ours
    assert merge_lines(base, ours, ours, LABELS).marked == ours


@given(
    kept=st.integers(1, 30),
    left=st.lists(st.tuples(st.integers(0, 29), st.integers(0, 2)), max_size=6),
    right=st.lists(st.tuples(st.integers(0, 29), st.integers(0, 2)), max_size=6),
)
@settings(deadline=None, max_examples=examples(200))
def test_every_new_line_survives(
    kept: int, left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    """In the merge, in its marked form and in the union; nothing comes from nowhere."""
    base = [b"%d\n" % number for number in range(kept)]
    sides = []
    for word, edits in ((b"l", left), (b"r", right)):
        side = list(base)
        for number, (at, what) in enumerate(edits):
            new = [] if what == 0 else [b"%s%d\n" % (word, number)]
            side[at : at + (what != 2)] = new
        sides.append(side)

    merged = merge_lines(b"".join(base), *map(b"".join, sides), LABELS)

    new = {line for side in sides for line in side} - set(base)
    kept_by_both = set(sides[0]) & set(sides[1])
    for text in (merged.marked, merged.union):
        assert new | kept_by_both <= set(text.splitlines(keepends=True))
    assert set(merged.union.splitlines(keepends=True)) <= new | set(base)


@given(a=lines, b=lines)
@settings(deadline=None, max_examples=examples(200))
def test_matched_lines_are_equal_and_in_order(a: list[bytes], b: list[bytes]) -> None:
    """What a matcher promises; of two equal texts it matches all."""
    at = other_at = 0
    for start, other_start, length in LineMatcher(a, b).get_matching_blocks():
        assert at <= start
        assert other_at <= other_start
        assert a[start : start + length] == b[other_start : other_start + length]
        at, other_at = start + length, other_start + length
    assert (at, other_at) == (len(a), len(b))
    assert LineMatcher(a, a).get_matching_blocks() in (
        [(0, 0, len(a)), (len(a), len(a), 0)],
        [(0, 0, 0)],
    )


def edited(base: list[bytes], seed: int, edits: int) -> list[bytes]:
    """Replace, add and remove lines all over; never two edits within 20 lines."""
    rng = random.Random(seed)
    result = list(base)
    for number, slot in enumerate(sorted(rng.sample(range(len(base) // 40), edits), reverse=True)):
        at = slot * 40 + seed * 20
        new = [b"side %d edit %d\n" % (seed, number)]
        result[at : at + rng.randrange(2)] = new if rng.random() < 0.7 else []
    return result


@pytest.mark.parametrize("distinct", [100_000, 20_000, 10])
def test_hundred_thousand_lines(distinct: int) -> None:
    """Edits all over a long text merge, also where lines are all alike."""
    rng = random.Random(3)
    base = [b"line %d\n" % rng.randrange(distinct) for _ in range(100_000)]
    edits = 20 if distinct == 10 else 1000
    ours, theirs = edited(base, 0, edits), edited(base, 1, edits)

    merged = merge_lines(*map(b"".join, (base, ours, theirs)), LABELS)

    assert merged.is_clean
    found = merged.marked.splitlines(keepends=True)
    assert sum(line.startswith(b"side 0") for line in found) == sum(
        line.startswith(b"side 0") for line in ours
    )
    assert len(found) == len(ours) + len(theirs) - len(base)


class Counted(bytes):
    """A line that counts how often lines were compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return super().__eq__(other)

    __hash__ = bytes.__hash__


def test_hopeless_texts_take_bounded_work() -> None:
    """Long texts of a few different lines, all in another order, are given up in time."""
    rng = random.Random(4)
    base, ours = ([Counted(b"%d\n" % rng.randrange(3)) for _ in range(100_000)] for _ in range(2))

    LineMatcher(base, ours).get_matching_blocks()

    assert Counted.compared < 10_000_000
