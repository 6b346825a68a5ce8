"""Others' work comes into a session while programs use it; what cannot be decided is kept."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.harness import Machine, Mount, tree_of
from tests.watching import Watch

LINES = [f"line {number}\n" for number in range(40)]


@pytest.fixture(autouse=True)
def begun(machine: Machine) -> None:
    """Land a few files on main."""
    seed = machine.mount("seed", session="seed")
    (seed.path / "text").write_text("".join(LINES))
    (seed.path / "blob").write_bytes(b"\0base")
    (seed.path / "d").mkdir()
    for number in range(5):
        (seed.path / f"d/f{number}").write_text(f"file {number}\n")
    seed.commit("base", "--into", "main")
    seed.umount()


def other(machine: Machine, **files: str) -> Mount:
    """Land files of another session on main."""
    mount = machine.mount("other", session="other")
    for name, text in files.items():
        (mount.path / name).write_text(text)
    mount.commit("other", "--into", "main")
    return mount


def edited(number: int, text: str) -> str:
    """Return the lines with one of them changed."""
    return "".join([*LINES[:number], f"{text}\n", *LINES[number + 1 :]])


def commits(machine: Machine, rev: str) -> list[dict[str, object]]:
    """Return the history of a session or branch."""
    rows = machine.json("log", machine.store, rev)["commits"]
    assert isinstance(rows, list)
    return rows


def test_session_without_own_work_goes_forward(machine: Machine) -> None:
    """It is at the branch's commit then, and no merge is made; a second time there is nothing."""
    mine = machine.mount("mine", session="mine")
    inode = (mine.path / "text").stat().st_ino
    there = other(machine, text=edited(3, "theirs"))

    answer = machine.json("update", mine.path)

    assert answer["is_forward"] is True
    assert answer["commit"] == machine.json("log", machine.store)["commits"][0]["commit"]
    assert tree_of(mine.path) == tree_of(there.path)
    assert (mine.path / "text").stat().st_ino == inode
    assert mine.status() == {}
    assert machine.json("update", mine.path)["is_current"] is True
    mine.kill()
    assert tree_of(mine.again().path) == tree_of(there.path)


@pytest.mark.parametrize("has_own", [False, True])
def test_file_that_is_open_stays_as_it_was_for_who_has_it_open(
    machine: Machine, has_own: bool
) -> None:
    """New opens see the merged one at once; also after it was closed, and in the next mount."""
    mine = machine.mount("mine", session="mine")
    if has_own:
        (mine.path / "mine").write_text("mine")
        mine.commit("mine")
    there = other(machine, text=edited(3, "theirs"))
    with (mine.path / "text").open() as held:
        answer = machine.json("update", mine.path)

        assert held.read() == "".join(LINES)
        assert (mine.path / "text").read_text() == edited(3, "theirs")
    assert answer["kept_open"] == 1
    assert (mine.path / "text").read_text() == edited(3, "theirs")
    assert mine.status() == {}
    head = machine.json("log", machine.store)["commits"][0]["commit"]  # type: ignore[index]
    assert head in commits(machine, "mine")[0]["parents"]  # type: ignore[operator]
    mine.kill()
    mine = mine.again()
    assert (mine.path / "text").read_text() == edited(3, "theirs")
    landed = mine.commit("nothing", "--into", "main")
    assert landed["landed_on"] == "main"
    machine.json("update", there.path)
    assert (there.path / "text").read_text() == edited(3, "theirs")


def test_own_commits_and_others_become_one(machine: Machine) -> None:
    """Clean on both sides: the merge is a commit at once, and lands without another one."""
    mine = machine.mount("mine", session="mine")
    (mine.path / "text").write_text(edited(30, "mine"))
    (mine.path / "d").rename(mine.path / "e")
    mine.commit("mine")
    there = other(machine, text=edited(3, "theirs"))
    (there.path / "d/f1").write_text("theirs\n")
    there.commit("more", "--into", "main")

    answer = machine.json("merge", "--from", "main", mine.path, "--agent", "a1", "-m", "bring in")

    assert answer["conflicts"] == []
    assert (mine.path / "text").read_text() == "".join(
        [*LINES[:3], "theirs\n", *LINES[4:30], "mine\n", *LINES[31:]]
    )
    assert (mine.path / "e/f1").read_text() == "theirs\n"
    assert mine.status() == {}
    merge = commits(machine, "mine")[0]
    assert merge["commit"] == answer["commit"]
    assert merge["message"] == "bring in"
    assert merge["agent"] == "a1"
    assert len(merge["parents"]) == 2  # type: ignore[arg-type]
    landed = machine.json("merge", "--into", "main", mine.path)
    assert landed["is_merge"] is True
    assert landed["branch_commit"] == answer["commit"]
    assert machine.json("merge", "--from", "main", mine.path)["is_current"] is True


def test_uncommitted_work_is_merged_and_stays_uncommitted(machine: Machine) -> None:
    """It is committed together with the merge later, with both parents; also after kill -9."""
    mine = machine.mount("mine", session="mine")
    (mine.path / "text").write_text(edited(30, "mine"))
    (mine.path / "new").write_text("new")
    other(machine, text=edited(3, "theirs"), there="there")
    head = machine.json("log", machine.store)["commits"][0]["commit"]  # type: ignore[index]

    answer = machine.json("update", mine.path)

    assert answer["commit"] is None
    assert answer["has_changes"] is True
    merged = "".join([*LINES[:3], "theirs\n", *LINES[4:30], "mine\n", *LINES[31:]])
    assert (mine.path / "text").read_text() == merged
    assert (mine.path / "there").read_text() == "there"
    mine.kill()
    mine = mine.again()
    assert (mine.path / "text").read_text() == merged
    done = mine.commit("mine", "--into", "main")
    assert done["branch_commit"] == done["commit"]
    assert head in commits(machine, "mine")[0]["parents"]  # type: ignore[operator]


def test_merge_is_taken_back(machine: Machine) -> None:
    """By its safety checkpoint: files, and that there was a merge at all."""
    mine = machine.mount("mine", session="mine")
    (mine.path / "text").write_text(edited(3, "mine"))
    before = tree_of(mine.path)
    other(machine, text=edited(3, "theirs"), there="there")
    answer = machine.json("update", mine.path, code=5)

    machine.run("undo", mine.path)

    assert tree_of(mine.path) == before
    assert machine.json("conflicts", mine.path)["conflicts"] == []
    mine.commit("mine")
    assert len(commits(machine, "mine")[0]["parents"]) == 1  # type: ignore[arg-type]
    assert answer["safety"]


def test_conflicts_are_kept_and_settled(machine: Machine) -> None:
    """Markers in text, both versions to be looked at; every way to settle; then it lands."""
    mine = machine.mount("mine", session="mine")
    for name in ("d/f0", "d/f1", "d/f2", "d/f3"):
        (mine.path / name).write_text("mine\n")
    (mine.path / "text").write_text(edited(3, "mine"))
    (mine.path / "blob").write_bytes(b"\0mine")
    (mine.path / "d/f4").unlink()
    mine.commit("mine")
    there = other(machine, text=edited(3, "theirs"))
    for name in ("d/f0", "d/f1", "d/f2", "d/f3", "d/f4"):
        (there.path / name).write_text("theirs\n")
    (there.path / "blob").write_bytes(b"\0theirs")
    there.commit("more", "--into", "main")
    refused = machine.json("merge", "--into", "main", mine.path, code=5)

    answer = machine.json("update", mine.path, code=5)

    rows = answer["conflicts"]
    assert isinstance(rows, list)
    kinds = {row["path"]: row["kind"] for row in rows}
    assert kinds == {row["path"]: row["kind"] for row in refused["conflicts"]}  # type: ignore[attr-defined]
    assert kinds["text"] == "content"
    assert kinds["blob"] == "binary"
    assert kinds["d/f4"] == "modify/delete"
    marked = (mine.path / "text").read_text()
    assert "<<<<<<< mine\nmine\n" in marked
    assert ">>>>>>> main\n" in marked
    numbers = {row["path"]: row["number"] for row in rows}
    hidden = mine.path / ".workspacefs/conflicts"
    assert sorted(os.listdir(hidden))[0] == "1.base"
    assert (hidden / f"{numbers['blob']}.theirs/blob").read_bytes() == b"\0theirs"
    assert (hidden / f"{numbers['blob']}.ours/blob").read_bytes() == b"\0mine"
    assert (hidden / f"{numbers['text']}.base/text").read_text() == "".join(LINES)
    assert not (hidden / f"{numbers['d/f4']}.ours").exists()
    assert len(machine.json("status", mine.path)["conflicts"]) == 7  # type: ignore[arg-type]
    assert mine.commit("too early", "--into", "main", code=5)["error"]["kind"] == "conflict.open"  # type: ignore[index]

    refused = machine.json("resolve", mine.path / "text", code=8)
    assert refused["error"]["kind"] == "conflict.markers"  # type: ignore[index]
    (mine.path / "text").write_text(edited(3, "both"))
    machine.run("resolve", mine.path / "text")
    inode = (mine.path / "d/f0").stat().st_ino
    machine.run("resolve", mine.path / "d/f0", "--theirs")
    machine.run("resolve", mine.path / "d/f1", "--ours")
    machine.run("resolve", mine.path / "d/f2", "--union")
    file = machine.directory / "file"
    file.write_text("file\n")
    machine.run("resolve", mine.path / "d/f3", file)
    mine.kill()
    mine = mine.again()
    machine.run("resolve", mine.path / "blob", "--base")
    assert len(machine.json("conflicts", mine.path)["conflicts"]) == 1  # type: ignore[arg-type]
    machine.run("resolve", "--all", mine.path, "--theirs")

    assert machine.json("conflicts", mine.path)["conflicts"] == []
    assert os.listdir(mine.path / ".workspacefs/conflicts") == []
    assert (mine.path / "d/f0").read_text() == "theirs\n"
    assert (mine.path / "d/f0").stat().st_ino == inode
    assert (mine.path / "d/f1").read_text() == "mine\n"
    assert (mine.path / "d/f2").read_text() == "mine\ntheirs\n"
    assert (mine.path / "d/f3").read_text() == "file\n"
    assert (mine.path / "d/f4").read_text() == "theirs\n"
    assert (mine.path / "blob").read_bytes() == b"\0base"
    done = mine.commit("settled", "--into", "main")
    assert done["branch_commit"] == done["commit"]
    assert machine.run("cat", f"{machine.store}@main", "text") == edited(3, "both")


def test_conflicts_are_committed_and_settled_by_somebody_else(machine: Machine) -> None:
    """They are data of the commit: whoever mounts it has them; they land nowhere."""
    mine = machine.mount("mine", session="mine")
    (mine.path / "text").write_text(edited(3, "mine"))
    mine.commit("mine")
    other(machine, text=edited(3, "theirs"))
    machine.json("update", mine.path, code=5)

    mine.commit("with a conflict")

    assert len(machine.json("conflicts", mine.path)["conflicts"]) == 1  # type: ignore[arg-type]
    refused = machine.json("merge", "--into", "main", mine.path, code=5)
    assert refused["error"]["kind"] == "conflict.open"  # type: ignore[index]
    judge = machine.mount("judge", session="judge")
    answer = machine.json("merge", "--from", "mine", judge.path)
    assert answer["is_forward"] is True
    rows = machine.json("conflicts", judge.path)["conflicts"]
    assert [row["path"] for row in rows] == ["text"]  # type: ignore[attr-defined]
    (judge.path / "elsewhere").write_text("x")
    judge.commit("still there")
    assert len(machine.json("conflicts", judge.path)["conflicts"]) == 1  # type: ignore[arg-type]
    machine.run("resolve", judge.path / "text", "--ours")
    assert judge.status() == {"text": "modified"}
    judge.commit("judged", "--into", "main")
    assert machine.json("conflicts", judge.path)["conflicts"] == []
    assert machine.run("cat", f"{machine.store}@main", "text") == edited(3, "mine")

    back = machine.json("merge", "--from", "main", mine.path)

    assert back["is_forward"] is True
    assert machine.json("conflicts", mine.path)["conflicts"] == []


def test_fork_checkpoint_and_resume_keep_what_is_merged(machine: Machine) -> None:
    """A merge that is not committed goes with the work, wherever that goes."""
    mine = machine.mount("mine", session="mine")
    (mine.path / "text").write_text(edited(3, "mine"))
    other(machine, text=edited(3, "theirs"))
    machine.json("update", mine.path, code=5)
    machine.run("checkpoint", mine.path, "--name", "here", "--durable")
    expected = tree_of(mine.path)

    fork = machine.fork(mine, "fork", session="fork")
    machine.run("resolve", mine.path / "text", "--ours")
    mine.commit("mine")
    machine.run("pause", fork.path)
    fork = machine.resume("fork")

    assert tree_of(fork.path) == expected
    assert len(machine.json("conflicts", fork.path)["conflicts"]) == 1  # type: ignore[arg-type]
    machine.run("resolve", "--all", fork.path, "--theirs")
    fork.commit("theirs")
    assert len(commits(machine, "fork")[0]["parents"]) == 2  # type: ignore[arg-type]
    machine.run("restore", mine.path, "HEAD~1")
    assert machine.json("conflicts", mine.path)["conflicts"] == []
    machine.run("restore", mine.path, "here")
    assert tree_of(mine.path) == expected


def test_writers_go_on_and_lose_nothing(machine: Machine) -> None:
    """Threads append all the time, to files that are merged and to others."""
    mine = machine.mount("mine", session="mine")
    stop = threading.Event()
    written = [0] * 3

    def write(number: int) -> None:
        with (mine.path / f"log{number}").open("ab", buffering=0) as file:
            while not stop.is_set():
                file.write(b"%06d\n" % written[number])
                written[number] += 1
                Path(mine.path / f"n{number}-{written[number] % 50}").write_text("x")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        there = machine.mount("other", session="other")
        for number in range(4):
            (there.path / f"there{number}").write_text("there")
            (there.path / "text").write_text(edited(3, f"theirs {number}"))
            there.commit(f"other {number}", "--into", "main")
            machine.json("update", mine.path)
    finally:
        stop.set()
        for thread in threads:
            thread.join()

    for number in range(3):
        lines = (mine.path / f"log{number}").read_bytes().split()
        assert lines == [b"%06d" % line for line in range(written[number])]
    for number in range(4):
        assert (mine.path / f"there{number}").read_text() == "there"
    assert (mine.path / "text").read_text() == edited(3, "theirs 3")
    machine.json("update", mine.path)
    done = mine.commit("mine", "--into", "main")
    assert done["branch_commit"] == done["commit"]


def test_one_commit_is_taken_back(machine: Machine) -> None:
    """What came after it stays; renamed files too; a second time there is nothing to do."""
    mine = machine.mount("mine", session="mine")
    (mine.path / "text").write_text(edited(3, "wrong"))
    (mine.path / "extra").write_text("extra")
    (mine.path / "d/f0").unlink()
    wrong = mine.commit("wrong")["commit"]
    (mine.path / "text").write_text(
        "".join([*LINES[:3], "wrong\n", *LINES[4:30], "right\n", *LINES[31:]])
    )
    (mine.path / "text").rename(mine.path / "d/text")
    mine.commit("right")

    answer = machine.json("revert", mine.path, str(wrong))

    assert (mine.path / "d/text").read_text() == edited(30, "right")
    assert not (mine.path / "extra").exists()
    assert (mine.path / "d/f0").read_text() == "file 0\n"
    assert mine.status() == {}
    newest = commits(machine, "mine")[0]
    assert newest["commit"] == answer["commit"]
    assert newest["message"] == f'revert "wrong" ({str(wrong)[:12]})'
    assert machine.json("revert", mine.path, str(wrong))["is_current"] is True


def test_run_is_taken_out_of_a_branch(machine: Machine) -> None:
    """Its commits stand between others; theirs stay; in conflict with what builds on it, that is
    kept to be settled.
    """
    good, bad = machine.mount("good", session="good"), machine.mount("bad", session="bad")
    for number in range(3):
        (bad.path / f"bad{number}").write_text("bad")
        (bad.path / "text").write_text(edited(5, f"bad {number}"))
        bad.commit(f"bad {number}", "--into", "main", "--run", "r-bad")
        (good.path / f"good{number}").write_text("good")
        good.commit(f"good {number}", "--into", "main", "--run", "r-good")
    judge = machine.mount("judge", session="judge")
    (judge.path / "mine").write_text("not committed")

    answer = machine.json("revert", judge.path, "--run", "r-bad")

    names = sorted(os.listdir(judge.path))
    assert names == ["blob", "d", "good0", "good1", "good2", "mine", "text"]
    assert (judge.path / "text").read_text() == "".join(LINES)
    assert answer["commit"] is None
    judge.commit("without r-bad", "--into", "main")
    assert "bad0" not in machine.run("ls", f"{machine.store}@main").split()
    refused = machine.json("revert", judge.path, "--run", "r-none", code=3)
    assert refused["error"]["kind"] == "revert.absent"  # type: ignore[index]
    (judge.path / "good0").write_text("built on it")
    judge.commit("more")
    machine.json("revert", judge.path, "--session", "good", code=5)
    rows = machine.json("conflicts", judge.path)["conflicts"]
    assert [(row["path"], row["kind"]) for row in rows] == [("good0", "modify/delete")]  # type: ignore[attr-defined]
    assert (judge.path / "good0").read_text() == "built on it"


def test_watchers_hear_of_what_changed(machine: Machine) -> None:
    """inotify of a directory names the files that came, changed, or whose directory lost some; no
    file is changed by telling.
    """
    mine = machine.mount("mine", session="mine")
    (mine.path / "own").write_text("not committed")
    there = other(machine, text=edited(3, "theirs"), new="new")
    (there.path / "d/f0").unlink()
    there.commit("gone", "--into", "main")
    with Watch(mine.path, mine.path / "d") as watch:
        machine.json("update", mine.path)

        events = watch.read()

    assert {"text", "new"} <= {name for place, name in events if place == mine.path}
    assert "" in {name for place, name in events if place == mine.path / "d"}
    assert "own" not in {name for _, name in events}
    merged = {"own": "added", "new": "added", "text": "modified", "d/f0": "deleted"}
    assert mine.status() == merged
    mine.commit("mine")
    assert mine.status() == {}
