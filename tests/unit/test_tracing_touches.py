"""Which commits a log of some paths shows: renames, merges, directories, and what it costs."""

from __future__ import annotations

import argparse

import pytest

from tests.unit.merge_files import Files, do
from tests.unit.traced_history import Head, History
from workspacefs.cli.moments import moment_ns
from workspacefs.objects.commits import Commit, Provenance
from workspacefs.tracing.selection import SKEW_NS, Selection
from workspacefs.tracing.touching import iter_touches


def shown(history: History, head: Head, *paths: bytes, first_parent: bool = False) -> list[str]:
    """Return the messages of the commits that touch a path, the newest first."""
    found = iter_touches([head], paths, history, first_parent=first_parent)
    return [touch.commit.message for touch in found if touch.paths]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"a/f", ["rm a/f", "write a/f 2", "mkdir a; write a/f 1"]),
        (b"a", ["rm a/f", "write a/f 2", "mkdir a; write a/f 1"]),
        (b"/a//f/", ["rm a/f", "write a/f 2", "mkdir a; write a/f 1"]),
        (b"b", ["chmod b 600", "write b 1"]),
        (b"c/d/f", ["rm c", "mkdir c/d; write c/d/f 1"]),
        (
            b"",
            [
                "rm c",
                "mkdir c/d; write c/d/f 1",
                "rm a/f",
                "chmod b 600",
                "write a/f 2",
                "write b 1",
                "mkdir a; write a/f 1",
            ],
        ),
        (b"nothing", []),
        (b"b/below", []),
    ],
)
def test_commits_that_change_a_path(path: bytes, expected: list[str]) -> None:
    """Content, mode, coming and going count, at or below it; times do not."""
    history = History()
    heads = history.line(
        "mkdir a; write a/f 1", "write b 1", "touch b; touch a/f", "write a/f 2", "chmod b 600",
        "rm a/f", "mkdir c/d; write c/d/f 1", "rm c",
    )  # fmt: skip

    assert shown(history, heads[-1], path) == expected


def test_several_paths_are_told_apart() -> None:
    """Any of them will do, and each commit says which it changed."""
    history = History()
    heads = history.line("write a 1; write b 1; write c 1", "write a 2", "write b 2", "write c 2")

    found = iter_touches([heads[-1]], [b"a", b"b"], history)

    assert [touch.paths for touch in found] == [(), (b"b",), (b"a",), (b"a", b"b")]


@pytest.mark.parametrize(
    ("program", "path", "before"),
    [
        ("mv f g", b"g", b"f"),
        ("mv f d/g", b"d/g", b"f"),
        ("mv d e", b"e/h", b"d/h"),
        ("mv d e; mv e/h e/i", b"e/i", b"d/h"),
        ("mv d e; mv e/h h", b"h", b"d/h"),
        ("mv d e; mkdir d; mv e/h d/i; rm e", b"d/i", b"d/h"),
        ("mkdir x/y; mv d x/y/z", b"x/y/z/h", b"d/h"),
        ("mv d e", b"e", b"d"),
        ("mv d/s s", b"s/deep", b"d/s/deep"),
        ("mv d e; mv e/s e/t", b"e/t/deep", b"d/s/deep"),
        ("mv f g; write f new", b"g", b"f"),
        ("ln f g; rm f", b"g", b"f"),
        ("ln f d/g", b"d/g", b"f"),
        ("mv d/h f", b"f", b"d/h"),
        ("mv d e; mv e/h e/k; mv f e/h", b"e/h", b"f"),
    ],
)
def test_renamed_files_are_followed(program: str, path: bytes, before: bytes) -> None:
    """Under the name that the file had, wherever that was; the commit that renames is shown."""
    history = History()
    heads = history.line(
        "mkdir d/s; write f 1; write d/h 1; write d/s/deep 1", "write f 2",
        "write d/h 2", "write d/s/deep 2", program,
    )  # fmt: skip

    found = shown(history, heads[-1], path)

    changes = {b"f": ["write f 2"], b"d/h": ["write d/h 2"], b"d/s/deep": ["write d/s/deep 2"],
               b"d": ["write d/s/deep 2", "write d/h 2"]}  # fmt: skip
    assert found == [program, *changes[before], heads[0][1].message]


def test_replaced_file_is_followed_by_its_name() -> None:
    """Editors put a new file in the place of the old one; that alone is no change."""
    history = History()
    heads = history.line(
        "write f 1; write g 1", "replace f 2", "replace f 2", "mv f f~; write f 3", "write g 2"
    )

    assert shown(history, heads[-1], b"f") == [
        "mv f f~; write f 3", "replace f 2", "write f 1; write g 1",
    ]  # fmt: skip


def test_file_that_became_a_directory_is_followed() -> None:
    """By its name, across the change of kind."""
    history = History()
    heads = history.line("write f 1", "write g 1", "rm f; mkdir f; write f/x 1", "write f/x 2")

    assert shown(history, heads[-1], b"f") == [
        "write f/x 2", "rm f; mkdir f; write f/x 1", "write f 1",
    ]  # fmt: skip


def forked() -> tuple[History, Head, Head, Head, Files, Files]:
    """Return a history that has parted: base, left and right, and the files of both."""
    history, left = History(), Files()
    do(left, "mkdir d; write d/a 1; write d/b 1; write c 1")
    base = history.commit(left, message="base")
    right = left.fork(1000)
    do(left, "write d/a 2")
    do(right, "write d/b 2")
    return (
        history,
        base,
        history.commit(left, base, message="left"),
        history.commit(right, base, message="right"),
        left,
        right,
    )


def test_merge_is_shown_where_it_differs_from_every_parent() -> None:
    """Of what one side alone changed it is silent; both sides' own commits are shown."""
    history, _, left, right, files, _ = forked()
    do(files, "write d/b 2")
    merge = history.commit(files, left, right, message="merge")
    do(files, "write c 2")
    head = history.commit(files, merge, message="after")

    assert shown(history, head, b"d/a") == ["left", "base"]
    assert shown(history, head, b"d/b") == ["right", "base"]
    assert shown(history, head, b"d") == ["merge", "right", "left", "base"]
    assert shown(history, head, b"c") == ["after", "base"]
    assert shown(history, head, b"d/b", first_parent=True) == ["merge", "base"]


def test_both_names_are_followed_where_one_side_renamed() -> None:
    """Under the new name on one side, under the old one on the other."""
    history, base, left, _, files, right_files = forked()
    do(files, "mv d/b d/z; write d/z 3")
    renamed = history.commit(files, left, message="renamed")
    do(right_files, "write d/b 2")
    edited = history.commit(right_files, base, message="edited")
    merge = history.commit(files, renamed, edited, message="merge")

    assert shown(history, merge, b"d/z") == ["edited", "renamed", "base"]


def test_unchanged_paths_cost_their_depth_and_each_commit_is_loaded_once() -> None:
    """In a tree of many files, most commits of which change something else."""
    history, files = History(), Files()
    for directory in range(20):
        files.mkdir(b"d%d/e" % directory)
        for number in range(20):
            files.write(b"d%d/e/f%d" % (directory, number), b"x")
    head = history.commit(files)
    for number in range(50):
        files.write(b"d7/e/f%d" % (number % 20), b"%d" % number)
        head = history.commit(files, head)
    history.nodes_read = 0

    found = [touch for touch in iter_touches([head], [b"d3/e/f3"], history) if touch.paths]

    assert len(found) == 1
    assert history.nodes_read < 51 * 4
    assert max(history.commit_loads.values()) == 1


def test_moved_directory_costs_its_depth() -> None:
    """However much is in it."""
    history, files = History(), Files()
    for number in range(400):
        files.mkdir(b"d/%d/x" % number)
    base = history.commit(files)
    do(files, "mv d e")
    head = history.commit(files, base, message="moved")
    history.nodes_read = 0

    assert shown(history, head, b"e/77/x") == ["moved", ""]
    assert history.nodes_read < 30


def test_history_is_read_only_as_far_as_it_is_asked_for() -> None:
    """Without paths the newest commit needs nothing but itself."""
    history = History()
    heads = history.line("write a 1", "write a 2", "write a 3")

    next(iter_touches([heads[-1]], [], history))
    assert not history.commit_loads
    next(iter_touches([heads[-1]], [b"a"], history))
    assert sum(history.commit_loads.values()) == 1


def made(time_ns: int = 100, message: str = "Fix the Parser", **who: str) -> Commit:
    return History().commit(Files(), message=message, time_ns=time_ns, who=Provenance(**who))[1]


@pytest.mark.parametrize(
    ("selection", "is_chosen"),
    [
        (Selection(), True),
        (Selection(agent="a", session="s", run="r", tool_call="t", author="u@h"), True),
        (Selection(author="u"), True),
        (Selection(author="u@"), False),
        (Selection(author="h"), False),
        (Selection(agent="A"), False),
        (Selection(agent="a", session="x"), False),
        (Selection(agent="a", run="x"), False),
        (Selection(agent="a", tool_call=""), False),
        (Selection(text="the parser"), True),
        (Selection(text="the  parser"), False),
        (Selection(since_ns=100), True),
        (Selection(since_ns=101), False),
        (Selection(until_ns=101), True),
        (Selection(until_ns=100), False),
    ],
)
def test_selection_asks_for_all_that_it_says(selection: Selection, is_chosen: bool) -> None:
    """Names as they are, times from and before, text in capitals or not."""
    commit = made(agent="a", session="s", run="r", tool_call="t", author="u@h")

    assert selection.has(commit) is is_chosen


def test_search_ends_a_day_before_what_is_asked_for() -> None:
    """So clocks that differ by less hide nothing."""
    selection = Selection(since_ns=10 * SKEW_NS)

    assert not selection.is_past(made(9 * SKEW_NS))
    assert selection.is_past(made(9 * SKEW_NS - 1))
    assert not Selection().is_past(made(0))


DAY_NS = 86_400 * 10**9


@pytest.mark.parametrize(
    ("text", "since", "until"),
    [
        ("1970-01-02", DAY_NS, 2 * DAY_NS),
        ("1970-01-02T00:00", DAY_NS, DAY_NS),
        ("1970-01-02T01:00:00.5+01:00", DAY_NS + 500_000_000, DAY_NS + 500_000_000),
        ("1970-01-01 12:00Z", DAY_NS // 2, DAY_NS // 2),
        ("2d", 98 * DAY_NS, 98 * DAY_NS),
        ("1w", 93 * DAY_NS, 93 * DAY_NS),
        ("1.5d", 100 * DAY_NS - DAY_NS * 3 // 2, 100 * DAY_NS - DAY_NS * 3 // 2),
        ("36h", 100 * DAY_NS - DAY_NS * 3 // 2, 100 * DAY_NS - DAY_NS * 3 // 2),
    ],
)
def test_moments(text: str, since: int, until: int) -> None:
    """Ago, or in ISO 8601; a day is all of it."""
    assert moment_ns(text, now_ns=100 * DAY_NS, is_end=False) == since
    assert moment_ns(text, now_ns=100 * DAY_NS, is_end=True) == until


@pytest.mark.parametrize("text", ["", "d", "2", "yesterday", "-2d", "1.2.3d", "2026-13-01", "²d"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    """With what would be."""
    with pytest.raises(argparse.ArgumentTypeError, match="2026-11-30"):
        moment_ns(text, now_ns=0, is_end=False)
