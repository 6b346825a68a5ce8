"""Merges into a mounted session of a bucket: answers get lost, stores go away, machines end."""

from __future__ import annotations

import pytest

from tests.faults.test_s3_landing import LINES, begin
from tests.harness import tree_of
from tests.s3_machine import S3Machine, requests_to
from workspacefs.errors import ExitCode
from workspacefs.testing.proxy import Action, DropAnswer, Reset, Status

SESSION_WRITES = requests_to("PUT", key="/refs/sessions/s")
MERGED = "".join(["theirs\n", *LINES[1:-1], "ours\n"])


@pytest.mark.parametrize("action", [DropAnswer(), Reset(), Status(503)])
@pytest.mark.parametrize("is_dirty", [False, True])
def test_lost_answer_to_the_move(s3: S3Machine, action: Action, is_dirty: bool) -> None:
    """It is merged once, whichever way the write of the session's ref goes wrong."""
    mount, _, _ = begin(s3)
    if not is_dirty:
        mount.commit("ours")
    s3.fault(action, SESSION_WRITES, nth=1)

    answer = s3.json("update", mount.path)

    assert not s3.calm()
    assert answer["conflicts"] == []
    assert (mount.path / "text").read_text() == MERGED
    assert (mount.path / "e/new").read_text() == "new\n"
    if is_dirty:
        mount.commit("ours")
    assert s3.json("update", mount.path)["is_current"] is True
    rows = s3.json("log", s3.store, "s")["commits"]
    assert isinstance(rows, list)
    assert len(rows[0]["parents"]) == 2
    landed = s3.json("merge", "--into", "main", mount.path)
    assert landed["branch_commit"] == rows[0]["commit"]


def test_nothing_is_merged_while_the_store_is_away(s3: S3Machine) -> None:
    """The command says so, the mount is as it was, and later the same command does it."""
    mount, _, _ = begin(s3)
    before = tree_of(mount.path)
    s3.proxy.down()

    done = s3.start("update", mount.path)

    assert done.returncode == ExitCode.UNAVAILABLE
    s3.proxy.up()
    assert tree_of(mount.path) == before
    s3.json("update", mount.path)
    assert (mount.path / "text").read_text() == MERGED


def test_conflicts_go_with_the_session_to_another_machine(s3: S3Machine) -> None:
    """Pause here, resume there: files, what is to be settled, and what was merged."""
    mount, other, theirs = begin(s3)
    (mount.path / "text").write_text("".join(["ours\n", *LINES[1:]]))
    s3.json("update", mount.path, code=5)
    expected = tree_of(mount.path)
    s3.run("pause", mount.path)

    resumed = other.resume("s")

    assert tree_of(resumed.path) == expected
    rows = other.json("conflicts", resumed.path)["conflicts"]
    assert isinstance(rows, list)
    assert [row["path"] for row in rows] == ["text"]
    hidden = resumed.path / ".workspacefs/conflicts" / f"{rows[0]['number']}.theirs/text"
    assert hidden.read_text() == (theirs.path / "text").read_text()
    other.run("resolve", resumed.path / "text", "--union")
    answer = resumed.commit("both", "--into", "main")
    assert answer["branch_commit"] == answer["commit"]
    assert (resumed.path / "text").read_text() == "".join(["ours\n", "theirs\n", *LINES[1:]])


def test_commit_is_taken_back_in_a_bucket(s3: S3Machine) -> None:
    """Of another session that landed, beside own work; what it changed is gone from the branch."""
    mount, _, _ = begin(s3)
    mount.commit("ours", "--into", "main")
    s3.json("update", mount.path)

    answer = s3.json("revert", "--session", "o", mount.path)

    assert answer["conflicts"] == []
    assert (mount.path / "text").read_text() == "".join([*LINES[:-1], "ours\n"])
    assert (mount.path / "d/new").read_text() == "new\n"
    landed = s3.json("merge", "--into", "main", mount.path)
    assert landed["branch_commit"] == answer["commit"]
