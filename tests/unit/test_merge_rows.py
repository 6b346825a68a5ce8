"""Ids, times, links and counts in the result of a merge."""

from __future__ import annotations

import pytest

from tests.unit.merge_checks import check_tree
from tests.unit.merge_files import Files, do
from tests.unit.merge_three import TIME_NS, Three
from workspacefs.objects.commits import ChangeCounts
from workspacefs.objects.entry import Entry
from workspacefs.trees.walk import resolve_path

OURS, THEIRS = "ours", "theirs"


def three_of(base: str, ours: str, theirs: str) -> Three:
    files = Files()
    do(files, base)
    three = Three(files)
    do(three.ours, ours)
    do(three.theirs, theirs)
    return three


def row_of(root: Entry, path: bytes, three: Three) -> Entry:
    return resolve_path(root, path, three.store)


def merged_row(three: Three, path: bytes) -> Entry:
    """Return a row of the result, which is the same in both directions."""
    row = row_of(three.merge().root, path, three)
    assert row_of(three.merge(swapped=True).root, path, three) == row
    return row


# What both did to f or d, and whose id it has afterwards.
IDS = {
    "edited by one": ("write f 1", "write f A", "", "base"),
    "edited by both": ("write f 1 2 3", "write f A 2 3", "write f 1 2 B", "base"),
    "replaced by one": ("write f 1", "replace f A", "", OURS),
    "replaced by the other": ("write f 1", "", "replace f A", THEIRS),
    "replaced, and edited": ("write f 1 2 3", "replace f A 2 3", "write f 1 2 B", "base"),
    "replaced, and chmod": ("write f 1", "replace f A", "chmod f 600", "base"),
    "replaced by both": ("write f 1 2 3", "replace f A 2 3", "replace f 1 2 B", OURS),
    "added by both": ("", "write f A", "write f A", OURS),
    "directory made by both": ("", "mkdir f; write f/a A", "mkdir f; write f/b B", OURS),
    "directory made afresh": ("mkdir f; write f/a A", "remake f", "", OURS),
    "made afresh, and changed": ("mkdir f; write f/a A", "remake f", "chmod f 700", "base"),
    "moved onto an equal file with two names": (
        "write d N",
        "write f N; ln f m",
        "mv d f",
        "base d",
    ),
    "the same, from the other side": ("write d N", "mv d f", "write f N; ln f m", "base d"),
    "moved onto what was made": ("mkdir d; write d/a A", "mv d f", "mkdir f", "base d"),
}


@pytest.mark.parametrize("name", IDS)
def test_id(name: str) -> None:
    """Of the side that alone changed it, else of the base, else the smaller one."""
    base, ours, theirs, owner = IDS[name]
    three = three_of(base, ours, theirs)
    whose = {
        "base": (three.base, b"f"),
        "base d": (three.base, b"d"),
        OURS: (three.ours, b"f"),
        THEIRS: (three.theirs, b"f"),
    }
    files, path = whose[owner]

    assert merged_row(three, b"f").file_id == files.at(path).file_id


# What both did, and whose times f has afterwards: a side's, the later, or that of the merge.
TIMES = {
    "edited by one": ("write f 1", "write f A", "", OURS),
    "edited by the other": ("write f 1", "", "write f A", THEIRS),
    "edited by both": ("write f 1 2 3", "write f A 2 3", "write f 1 2 B", "merge"),
    "edited by both alike": ("write f 1", "write f A", "write f A", THEIRS),
    "touched by one": ("write f 1", "touch f", "", OURS),
    "touched, and edited": ("write f 1", "touch f", "write f A", THEIRS),
    "chmod, and edited": ("write f 1", "chmod f 600", "write f A", "merge"),
    "all that the other did, and more": (
        "write f 1 2 3",
        "write f A 2 B",
        "write f A 2 3",
        OURS,
    ),
    "directory with a file added by one": ("mkdir f", "write f/a A", "", OURS),
    "directory with files added by both": ("mkdir f", "write f/a A", "write f/b B", "merge"),
    "directory with a file edited": ("mkdir f; write f/a 1", "write f/a A", "write f/b B", THEIRS),
    "directory with the same files added": ("mkdir f", "write f/a A", "write f/a A", THEIRS),
    "directory made by both alike": ("", "mkdir f; write f/a A", "mkdir f; write f/a A", THEIRS),
    "directory made by both": ("", "mkdir f; write f/a A", "mkdir f; write f/b A", "merge"),
    "directory that another came to": ("mkdir d; mkdir f", "mv d f/d", "write x X", OURS),
    "directory, chmod and added to": ("mkdir f", "chmod f 700", "write f/a A", "merge"),
}


@pytest.mark.parametrize("name", TIMES)
def test_times(name: str) -> None:
    """Those of the side that has it so; of both the later; of what neither has, the merge's."""
    base, ours, theirs, owner = TIMES[name]
    three = three_of(base, ours, theirs)

    row = merged_row(three, b"f")

    if owner == "merge":
        assert (row.mtime_ns, row.ctime_ns) == (TIME_NS, TIME_NS)
    else:
        file = (three.ours if owner == OURS else three.theirs).at(b"f")
        assert (row.mtime_ns, row.ctime_ns) == (file.mtime_ns, file.ctime_ns)


def test_root_has_the_time_of_the_side_that_has_its_names() -> None:
    """The root is a directory like others."""
    one = three_of("write f 1", "write a A", "write f B")
    both = three_of("write f 1", "write a A", "write b B")

    assert one.merge().root.mtime_ns == one.ours.at(b"").mtime_ns
    assert both.merge().root.mtime_ns == TIME_NS


def test_links_of_all_names_are_counted_and_equal() -> None:
    """Each side gave a file another name: it has three, and each row says so."""
    three = three_of("write f 1; mkdir d", "ln f d/e", "ln f h")

    merged = three.merge()

    rows = [row_of(merged.root, path, three) for path in (b"f", b"h", b"d/e")]
    assert {row._replace(name=b"") for row in rows} == {rows[0]._replace(name=b"")}
    assert rows[0].nlink == 3
    check_tree(merged.root, three.store)


def test_names_that_no_row_tells_of_are_found() -> None:
    """One name of a file was moved without a trace in the other's row, on both sides."""
    three = three_of("mkdir a/b; write a/b/f 1; ln a/b/f g; write h 1", "mv g x", "mv g y")
    for files in (three.ours, three.theirs):
        files.at(b"a/b/f").ctime_ns = three.base.at(b"a/b/f").ctime_ns

    merged = three.merge()

    assert row_of(merged.root, b"a/b/f", three).nlink == 3
    check_tree(merged.root, three.store)


def test_file_with_a_name_that_no_row_tells_of_is_not_taken_for_removed() -> None:
    """It lost a name, and its link count is wrong: what the other side wrote is kept."""
    three = three_of("mkdir a; write a/f 1; ln a/f g", "rm g", "write a/f B")
    links = three.ours.at(b"a/f")
    links.ctime_ns = three.base.at(b"a/f").ctime_ns
    three.ours.links[links.file_id] = 2

    merged = three.merge()

    assert merged.conflicts == ()
    assert row_of(merged.root, b"a/f", three).content == b"B\n"
    assert row_of(merged.root, b"a/f", three).nlink == 1


def test_directory_links_count_what_both_added() -> None:
    """2, and one for each directory in it."""
    three = three_of("mkdir d/a; mkdir d/b", "mkdir d/c; rm d/a", "mkdir d/e; mv d/b b")

    assert merged_row(three, b"d").nlink == 4
    assert three.merge().root.nlink == 4


COUNTS = {
    "nothing": ("write f 1", "write f A", "", (0, 0, 0)),
    "forward": ("write f 1; write g 1", "", "write f A; write h H; rm g", (1, 1, 1)),
    "edited and added": ("write f 1", "write x X", "write f A; write h H", (1, 1, 0)),
    "removed": ("mkdir d; write d/a A", "write x X", "rm d", (0, 0, 2)),
    "moved": ("mkdir d; write d/a A", "write x X", "mv d e", (1, 0, 1)),
    "linked": ("write f 1", "write x X", "ln f g", (1, 1, 0)),
    "conflict": ("write f 1", "write f A", "write f B", (0, 1, 0)),
    "both alike": ("write f 1", "write f A; write x X", "write f A", (0, 1, 0)),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_say_how_the_result_differs_from_ours(name: str) -> None:
    """In names; a later time is a change, too."""
    base, ours, theirs, (added, modified, removed) = COUNTS[name]

    merged = three_of(base, ours, theirs).merge()

    assert merged.counts == ChangeCounts(added=added, modified=modified, removed=removed)
