"""Landing on a branch of a bucket that others land on too: answers get lost, writers race."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.harness import Mount, tree_of
from tests.s3_machine import S3Machine, requests_to
from workspacefs.errors import ExitCode
from workspacefs.testing.proxy import Action, DropAnswer, Reset, Status

LINES = [f"line {number}\n" for number in range(30)]
BRANCH_WRITES = requests_to("PUT", key="/refs/branches/main")


def begin(s3: S3Machine) -> tuple[Mount, S3Machine, Mount]:
    """Return sessions of two machines that began from one commit, where the second one landed."""
    mount = s3.mount()
    (mount.path / "text").write_text("".join(LINES))
    (mount.path / "d").mkdir()
    (mount.path / "d/f").write_text("file\n")
    mount.commit("base", "--into", "main")
    other = s3.beside()
    theirs = other.mount("o", session="o")
    (theirs.path / "text").write_text("".join(["theirs\n", *LINES[1:]]))
    (theirs.path / "d").rename(theirs.path / "e")
    theirs.commit("theirs", "--into", "main")
    (mount.path / "text").write_text("".join([*LINES[:-1], "ours\n"]))
    (mount.path / "d/new").write_text("new\n")
    return mount, other, theirs


def check_main(s3: S3Machine, directory: Path) -> None:
    """Raise unless main has what both did, once."""
    view = s3.mount(str(directory), session=None, at="main", read_only=True)
    text = "".join(["theirs\n", *LINES[1:-1], "ours\n"])
    assert (view.path / "text").read_text() == text
    assert sorted(path.name for path in (view.path / "e").iterdir()) == ["f", "new"]
    assert not (view.path / "d").exists()
    commits = s3.json("log", s3.store)["commits"]
    assert isinstance(commits, list)
    messages = [row["message"] for row in commits]
    assert sorted(messages[1:]) == ["base", "ours", "theirs"]
    assert messages[0].startswith("merge s into main")


def test_two_machines_land_on_one_branch(s3: S3Machine) -> None:
    """The second one's landing is a merge; both see it."""
    mount, other, _ = begin(s3)

    answer = mount.commit("ours", "--into", "main")

    assert answer["is_merge"] is True
    check_main(s3, Path("here"))
    check_main(other, Path("there"))


@pytest.mark.parametrize("action", [DropAnswer(), Reset(), Status(503)])
@pytest.mark.parametrize("nth", [1, 2])
def test_lost_answer_to_the_landing(s3: S3Machine, action: Action, nth: int) -> None:
    """It lands once, whichever write of the branch goes wrong."""
    mount, _, _ = begin(s3)
    if nth == 2:
        mount.commit("ours")
        s3.fault(action, BRANCH_WRITES, nth=1)
        s3.json("merge", "--into", "main", mount.path)
    else:
        s3.fault(action, BRANCH_WRITES, nth=1)
        mount.commit("ours", "--into", "main")

    assert not s3.calm()
    check_main(s3, Path("here"))
    again = s3.json("merge", "--into", "main", mount.path)
    assert (again["landed_on"], again["is_moved"]) == ("main", False)


def test_store_that_is_away_keeps_the_commit(s3: S3Machine) -> None:
    """Nothing lands by halves; when the store is back, the same command does it."""
    mount, _, _ = begin(s3)
    mount.commit("ours")
    before = tree_of(mount.path)
    s3.proxy.down()

    done = s3.start("merge", "--into", "main", mount.path)

    assert done.returncode == ExitCode.UNAVAILABLE
    s3.proxy.up()
    s3.json("merge", "--into", "main", mount.path)
    check_main(s3, Path("here"))
    assert tree_of(mount.path) == before


def test_machines_that_race_all_land(s3: S3Machine) -> None:
    """Several machines at once, each with lines of its own in one file."""
    mount = s3.mount()
    (mount.path / "text").write_text("".join(LINES))
    mount.commit("base", "--into", "main")
    machines = [s3.beside(f"m{number}") for number in range(3)]
    mounts = [one.mount("m", session=f"a{at}") for at, one in enumerate(machines)]
    rounds = 3

    def run(number: int) -> None:
        for at in range(rounds):
            text = (mounts[number].path / "text").read_text().splitlines(keepends=True)
            text[10 * number + 2 * at] = f"{number} {at}\n"
            (mounts[number].path / "text").write_text("".join(text))
            assert mounts[number].commit(f"{number} {at}", "--into", "main")["landed_on"]

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(run, range(3)))

    wanted = list(LINES)
    for number in range(3):
        for at in range(rounds):
            wanted[10 * number + 2 * at] = f"{number} {at}\n"
    assert s3.run("cat", f"{s3.store}@main", "text") == "".join(wanted)
    commits = s3.json("log", s3.store)["commits"]
    assert isinstance(commits, list)
    landed = {f"{number} {at}" for number in range(3) for at in range(rounds)}
    assert landed < {row["message"] for row in commits}
