"""Renaming sessions: all of the work goes along, whatever happens on the way."""

from __future__ import annotations

import pytest

from tests.harness import Machine, Mount, tree_of
from workspacefs.backend.file import FileBackend
from workspacefs.errors import ExitCode, NoSpaceError
from workspacefs.statedir import StateDir
from workspacefs.testing.faulty import FaultyBackend
from workspacefs.workspace.local import LocalSession
from workspacefs.workspace.renaming import rename_session
from workspacefs.workspace.workspace import Workspace


def work(mount: Mount) -> None:
    """Commit something, and leave something uncommitted."""
    (mount.path / "a").write_text("a" * 1000)
    mount.commit("base")
    (mount.path / "b").write_bytes(b"b" * 300_000)
    (mount.path / "a").rename(mount.path / "moved")


def rows_of(machine: Machine) -> dict[str, dict[str, object]]:
    """Return what is said of each session, by name."""
    rows = machine.json("session", "list", machine.store)["sessions"]
    assert isinstance(rows, list)
    return {str(row["session"]): row for row in rows}


def rename(machine: Machine, *words: str, code: int = 0) -> None:
    """Rename a session by the command line."""
    machine.run("session", "rename", machine.store, *words, code=code)


def test_renamed_session_has_all_of_its_work(machine: Machine) -> None:
    """And its forks know it by its new name."""
    mount = machine.mount("m", session="old")
    work(mount)
    before, status = tree_of(mount.path), mount.status()
    fork = machine.fork(mount, "fork", session="fork")
    rename(machine, "old", "new/name", code=ExitCode.EXISTS_OR_BUSY)
    mount.umount()
    old = rows_of(machine)["old"]

    rename(machine, "old", "new/name")

    rows = rows_of(machine)
    assert set(rows) == {"new/name", "fork"}
    for member in ("session_id", "head", "lineage", "created", "left", "unique_bytes"):
        assert rows["new/name"][member] == old[member], member
    assert rows["fork"]["lineage"] == [{"session_id": old["session_id"], "session": "new/name"}]
    mount = machine.mount("m", session="new/name")
    assert tree_of(mount.path) == before
    assert mount.status() == status
    mount.commit("all", "--into", "main")
    mount.kill()
    assert tree_of(mount.again().path) == before
    fork.umount()
    refused = machine.start("mount", machine.store, fork.path, "--session", "old")
    assert refused.returncode == ExitCode.REFUSED
    assert b"is called new/name now" in refused.stderr


def test_layers_go_with_the_renamed_session(machine: Machine) -> None:
    """Nothing is swept away under it, and nothing stays when it is deleted."""
    mount = machine.mount("m", session="old")
    work(mount)
    before = tree_of(mount.path)
    mount.kill()  # with the lease still ours

    rename(machine, "old", "new")
    mount = machine.mount("m", session="new")
    assert tree_of(mount.path) == before
    mount.umount()
    machine.run("session", "delete", machine.store, "new", "--force")

    assert list((machine.state_dir / "layers").glob("*/*/data.mdb")) == []


def test_session_renamed_elsewhere_is_found_here(machine: Machine, other: Machine) -> None:
    """What this machine has of it goes by its id, not by its name."""
    mount = machine.mount("m", session="old")
    work(mount)
    before = tree_of(mount.path)
    rename(other, "old", "new", code=ExitCode.EXISTS_OR_BUSY)
    mount.umount()

    rename(other, "old", "middle")
    rename(other, "middle", "new")

    assert tree_of(machine.mount("m", session="new").path) == before
    assert set(rows_of(machine)) == {"new"}


@pytest.mark.parametrize("again", ["mount", "rename"])
@pytest.mark.parametrize("writes", range(6))
def test_rename_that_was_cut_off(machine: Machine, writes: int, again: str) -> None:
    """After each write to the store, and before the record has moved: one of the two names can be
    mounted, with all of the work, and the other cannot; the same command finishes it.
    """
    mount = machine.mount("m", session="old")
    work(mount)
    before = tree_of(mount.path)
    mount.umount()
    backend = FaultyBackend(FileBackend(machine.store))
    workspace, state = Workspace.open(backend), StateDir(str(machine.state_dir))

    with pytest.MonkeyPatch.context() as patch:
        if writes < 4:
            backend.full_after_writes = writes
        elif writes == 4:
            patch.setattr(LocalSession, "take_over", _fail)
        else:
            patch.setattr("workspacefs.workspace.renaming._settle", _fail)
        with pytest.raises(NoSpaceError):
            rename_session(workspace, state, "old", "new", renamed_by="me")

    name, wrong = ("old", "new") if writes < 4 else ("new", "old")
    if again == "rename":
        rename(machine, "old", "new")
        name, wrong = "new", "old"
    assert set(rows_of(machine)) == {name}
    if again == "rename" or writes >= 2:
        words = ("mount", machine.store, mount.path, "--session", wrong)
        machine.run(*words, code=ExitCode.REFUSED)
    mount = machine.mount("m", session=name)
    assert tree_of(mount.path) == before
    mount.commit("all")
    mount.umount()
    if name == "old":
        rename(machine, "old", "new")
    assert set(rows_of(machine)) == {"new"}
    assert tree_of(machine.mount("m", session="new").path) == before


def _fail(*words: object, **more: object) -> None:
    raise NoSpaceError("here it was cut off")


def test_names_that_cannot_be_given(machine: Machine) -> None:
    """Nothing is changed by asking for them."""
    for name in ("a", "b", "gone"):
        machine.mount("m", session=name).umount()
    machine.run("session", "delete", machine.store, "gone")
    before = rows_of(machine)

    rename(machine, "a", "b", code=ExitCode.EXISTS_OR_BUSY)
    rename(machine, "a", "gone", code=ExitCode.EXISTS_OR_BUSY)
    rename(machine, "a", "a", code=ExitCode.USAGE)
    rename(machine, "a", "not,a,name", code=ExitCode.USAGE)
    rename(machine, "nobody", "c", code=ExitCode.NOT_FOUND)
    rename(machine, "gone", "c", code=ExitCode.NOT_FOUND)

    assert rows_of(machine) == before
