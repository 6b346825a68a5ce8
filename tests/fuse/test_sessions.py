"""Listing and deleting sessions: no other one notices."""

from __future__ import annotations

import pytest

from tests.harness import Machine, Mount, kill, tree_of
from workspacefs.errors import ExitCode


@pytest.fixture
def parent(machine: Machine) -> Mount:
    """A session with a commit and work on top."""
    mount = machine.mount("parent", session="parent")
    (mount.path / "a").write_text("a")
    mount.commit("base", "--into", "main")
    (mount.path / "big").write_bytes(bytes(range(256)) * 10_000)
    return mount


def rows_of(machine: Machine, action: str = "list") -> dict[str, dict[str, object]]:
    """Return what is said of each session, by name."""
    rows = machine.json("session", action, machine.store)["sessions"]
    assert isinstance(rows, list)
    return {str(row["session"]): row for row in rows}


def test_tree_says_which_came_from_which(machine: Machine, parent: Mount) -> None:
    """Also when one between them is gone."""
    child = machine.fork(parent, "child", session="child")
    machine.fork(child, "grandchild", session="grandchild")
    machine.mount("other", session="other")
    depths = {name: row["depth"] for name, row in rows_of(machine, "tree").items()}
    assert depths == {"parent": 0, "child": 1, "grandchild": 2, "other": 0}

    child.umount()
    machine.run("session", "delete", machine.store, "child", "--force")

    depths = {name: row["depth"] for name, row in rows_of(machine, "tree").items()}
    assert depths == {"parent": 0, "grandchild": 1, "other": 0}
    lineage = rows_of(machine)["grandchild"]["lineage"]
    assert [one["session"] for one in lineage] == ["parent", "child"]  # type: ignore[attr-defined]


def test_list_says_what_is_ones_own(machine: Machine, parent: Mount) -> None:
    """Layers that a fork stands on are nobody's own."""
    before = rows_of(machine)["parent"]
    assert before["unique_bytes"] >= 2_560_000  # type: ignore[operator]

    machine.fork(parent, "child", session="child")

    rows = rows_of(machine)
    assert rows["parent"]["shared_bytes"] == rows["child"]["shared_bytes"]
    assert rows["child"]["shared_bytes"] >= 2_560_000  # type: ignore[operator]
    assert rows["child"]["mountpoint"] == str(machine.directory / "child")


def test_parent_can_be_deleted_under_its_forks(machine: Machine, parent: Mount) -> None:
    """They keep what they need, and it goes with the last of them."""
    child = machine.fork(parent, "child", session="child")
    before = tree_of(child.path)
    parent.umount()

    machine.run("session", "delete", machine.store, "parent", "--force")

    assert tree_of(child.path) == before
    child.kill()
    child = child.again()
    assert tree_of(child.path) == before
    child.umount()
    machine.run("session", "delete", machine.store, "child", "--force")
    assert list((machine.state_dir / "layers").glob("*/*/data.mdb")) == []
    assert rows_of(machine) == {}


def test_deletion_takes_no_work_along_unasked(machine: Machine, parent: Mount) -> None:
    """A session that is mounted, and one that has uncommitted work, are refused as they are."""
    delete = ("session", "delete", machine.store, "parent")

    machine.run(*delete, code=ExitCode.EXISTS_OR_BUSY)
    parent.umount()
    machine.run(*delete, code=ExitCode.REFUSED)

    again = parent.again()
    assert (again.path / "big").stat().st_size == 2_560_000
    again.commit("all")
    again.umount()
    machine.run(*delete)
    machine.run(*delete, code=ExitCode.NOT_FOUND)
    machine.run("mount", machine.store, again.path, "--session", "parent", code=ExitCode.REFUSED)


def test_session_of_another_machine_is_not_deleted(parent: Mount, other: Machine) -> None:
    """As long as that has it, or was killed; then --force does."""
    kill(parent.pid)

    refused = other.start("session", "delete", other.store, "parent")
    assert refused.returncode == ExitCode.EXISTS_OR_BUSY
    assert b"--force" in refused.stderr
    other.run("session", "delete", other.store, "parent", "--force")

    assert rows_of(other) == {}


def test_absent_names_are_told(machine: Machine, parent: Mount) -> None:
    """With the command that names those that there are."""
    for action in ("show", "delete"):
        told = machine.start("session", action, machine.store, "nobody")
        assert told.returncode == ExitCode.NOT_FOUND
        assert b"session list" in told.stderr
    machine.run("session", "show", code=ExitCode.USAGE)
