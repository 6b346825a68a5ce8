"""Checkpoints: moments of a session that one can go on from, whatever happens after them."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.faults.power import cut_power, sync
from tests.harness import Machine, Mount, tree_of
from workspacefs.errors import ExitCode


@pytest.fixture
def mount(machine: Machine) -> Mount:
    """A session with a base commit and changes on top."""
    mount = machine.mount()
    (mount.path / "d").mkdir()
    for name in ("d/kept", "d/changed", "d/removed"):
        (mount.path / name).write_text(f"base of {name}\n")
    (mount.path / "large").write_bytes(os.urandom(1_000_000))
    mount.commit("base")
    (mount.path / "d/changed").write_text("changed\n")
    (mount.path / "new").write_text("new\n")
    with (mount.path / "large").open("r+b") as file:
        file.write(b"begin")
    return mount


def names_of(machine: Machine, mount: Mount) -> list[str]:
    """Return the names of all checkpoints, in order."""
    rows = machine.json("checkpoint", "list", mount.path)["checkpoints"]
    assert isinstance(rows, list)
    return [str(row["checkpoint"]) for row in rows]


def back_to(machine: Machine, mount: Mount, name: str) -> Mount:
    """Fork a session as it was at a checkpoint."""
    place = machine.directory / f"at-{name}"
    (document,) = machine.json("fork", mount.path, place, "--at", name)["sessions"]  # type: ignore[misc]
    machine.keep(place)
    return Mount(machine, place, document)


def test_one_can_go_on_from_a_checkpoint(machine: Machine, mount: Mount) -> None:
    """Whatever was written, deleted or committed since, the fork stands where it was."""
    before, status = tree_of(mount.path), mount.status()
    machine.run("checkpoint", mount.path, "--name", "early", "-m", "before all")
    (mount.path / "new").write_text("later\n")
    shutil.rmtree(mount.path / "d")
    middle = tree_of(mount.path)
    machine.run("checkpoint", mount.path)
    mount.commit("later", "--into", "main")
    (mount.path / "after").write_text("after")

    early = back_to(machine, mount, "early")

    assert names_of(machine, mount) == ["early", "cp1"]
    assert tree_of(early.path) == before
    assert early.status() == status
    assert tree_of(back_to(machine, mount, "cp1").path) == middle
    early.commit("from there")
    assert tree_of(early.path) == before


def test_checkpoint_of_what_has_not_changed_costs_no_layer(machine: Machine, mount: Mount) -> None:
    """Two in a row are the same moment."""
    machine.run("checkpoint", mount.path)
    layers = machine.json("session", "show", mount.path, "s")["layers"]

    machine.run("checkpoint", mount.path)

    assert machine.json("session", "show", mount.path, "s")["layers"] == layers
    assert tree_of(back_to(machine, mount, "cp2").path) == tree_of(mount.path)


def test_many_checkpoints_stay_good_while_layers_are_flattened(
    machine: Machine, mount: Mount
) -> None:
    """More than a chain may be deep; each still shows its own moment."""
    wanted = {}
    for number in range(40):
        (mount.path / f"f{number % 5}").write_text(f"round {number}")
        with (mount.path / "large").open("r+b") as file:
            file.seek(number * 20_000)
            file.write(b"%03d" % number)
        machine.run("checkpoint", mount.path, "--name", f"n{number}")
        wanted[f"n{number}"] = tree_of(mount.path)

    for name in ("n0", "n13", "n39"):
        assert tree_of(back_to(machine, mount, name).path) == wanted[name]


def test_deleted_checkpoint_gives_its_space_back(machine: Machine, mount: Mount) -> None:
    """But for what the session and other checkpoints need."""
    (mount.path / "big").write_bytes(os.urandom(5_000_000))
    machine.run("checkpoint", mount.path, "--name", "one")
    mount.commit("all")
    pool = next((machine.state_dir / "layers").iterdir())
    held = sum(path.stat().st_size for path in pool.rglob("files/*"))
    before = tree_of(mount.path)

    machine.run("checkpoint", "delete", "one", "--path", mount.path)

    assert held >= 5_000_000
    assert sum(path.stat().st_size for path in pool.rglob("files/*")) == 0
    assert names_of(machine, mount) == []
    assert tree_of(mount.path) == before


def test_checkpoints_survive_kill_and_power_loss(machine: Machine, mount: Mount) -> None:
    """As much is in them as was synced."""
    sync(mount.path)
    before = tree_of(mount.path)
    machine.run("checkpoint", mount.path, "--name", "one")
    (mount.path / "later").write_text("later")
    mount.kill()
    mount = mount.again()
    assert names_of(machine, mount) == ["one"]
    sync(mount.path)

    cut_power(mount)
    mount = mount.again()

    assert (mount.path / "later").read_text() == "later"
    assert tree_of(back_to(machine, mount, "one").path) == before


def test_work_in_checkpoints_is_not_lost_by_the_way(machine: Machine, mount: Mount) -> None:
    """Pausing or deleting a session says that it would take them along."""
    machine.run("checkpoint", mount.path, "--name", "one")
    mount.commit("all")

    machine.run("pause", mount.path, code=ExitCode.REFUSED)
    mount.umount()
    machine.run("session", "delete", machine.store, "s", code=ExitCode.REFUSED)

    mount = mount.again()
    assert names_of(machine, mount) == ["one"]
    machine.run("pause", mount.path, "--drop-checkpoints")


def test_wrong_names_are_told(machine: Machine, mount: Mount) -> None:
    """One that is taken, and one that is not there."""
    machine.run("checkpoint", mount.path, "--name", "one")

    taken, absent = ExitCode.EXISTS_OR_BUSY, ExitCode.NOT_FOUND
    machine.run("checkpoint", mount.path, "--name", "one", code=taken)
    machine.run("checkpoint", "delete", "two", "--path", mount.path, code=absent)
    machine.run("fork", mount.path, machine.directory / "f", "--at", "two", code=absent)


def test_what_has_changed_since_is_shown(machine: Machine, mount: Mount) -> None:
    """Against the checkpoint, not the base; also when the session has committed since."""
    machine.run("checkpoint", mount.path, "--name", "early")
    assert machine.json("checkpoint", "show", "early", "--path", mount.path)["changes"] == []
    (mount.path / "d/changed").write_text("changed again\n")
    (mount.path / "d/removed").rename(mount.path / "moved")
    (mount.path / "new").unlink()
    (mount.path / "newer").write_text("newer\n")
    expected = {
        "d/changed": "modified", "moved": "renamed", "new": "removed", "newer": "added",
    }  # fmt: skip

    for _ in range(2):
        answer = machine.json("checkpoint", "diff", "early", "--path", mount.path)

        rows = answer["changes"]
        assert isinstance(rows, list)
        assert {row["path"]: row["kind"] for row in rows} == expected
        patch = str(answer["patch"])
        assert "-changed\n+changed again\n" in patch
        assert "rename from d/removed\nrename to moved\n" in patch
        assert "+newer\n" in patch
        mount.commit("meanwhile")
