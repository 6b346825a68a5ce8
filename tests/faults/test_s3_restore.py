"""Going back with a bucket: what a restore fetches, and what becomes of it with the store away."""

from __future__ import annotations

import os
import shutil

from tests.harness import Mount, tree_of
from tests.s3_machine import S3Machine, requests_to
from workspacefs.errors import ExitCode
from workspacefs.testing.proxy import DropAnswer, Status


def begin(s3: S3Machine, **options: str) -> Mount:
    """Commit twice, and change more."""
    mount = s3.mount("m", **options)
    (mount.path / "d").mkdir()
    for number in range(20):
        (mount.path / f"d/f{number}").write_bytes(os.urandom(3000))
    (mount.path / "large").write_bytes(os.urandom(3_000_000))
    mount.commit("first", "--into", "main")
    (mount.path / "d/f1").write_text("second")
    (mount.path / "d/f2").unlink()
    mount.commit("second", "--into", "main")
    (mount.path / "d/f3").rename(mount.path / "moved")
    (mount.path / "new").write_bytes(os.urandom(500_000))
    return mount


def test_commit_is_restored_where_nothing_of_it_is_at_hand(s3: S3Machine) -> None:
    """On another machine: the receipt fetches all that differs, and holds it against its ids."""
    mount = begin(s3)
    work = tree_of(mount.path)
    s3.run("pause", mount.path)
    other = s3.beside()
    resumed = other.mount("m")
    assert tree_of(resumed.path) == work

    answer = other.json("restore", resumed.path, "HEAD~1")

    receipt = answer["receipt"]
    assert isinstance(receipt, dict)
    assert receipt["files"] >= 3
    names = sorted(os.listdir(resumed.path / "d"))
    assert names == sorted(f"f{number}" for number in range(20))
    assert not (resumed.path / "new").exists()
    other.run("undo", resumed.path)
    assert tree_of(resumed.path) == work
    resumed.commit("third", "--into", "main")
    assert tree_of(resumed.path) == work


def test_nothing_is_restored_while_the_store_is_away(s3: S3Machine) -> None:
    """A checkpoint of this machine is; a commit that is not at hand is refused, and all stays."""
    mount = begin(s3)
    s3.run("checkpoint", mount.path, "--name", "early")
    early = tree_of(mount.path)
    shutil.rmtree(mount.path / "d")
    wrecked = tree_of(mount.path)
    s3.proxy.down()

    done = s3.start("restore", mount.path, "main~1")

    assert done.returncode in (ExitCode.UNAVAILABLE, ExitCode.NOT_FOUND)
    assert tree_of(mount.path) == wrecked
    s3.proxy.up()
    s3.run("restore", mount.path, "early")
    assert tree_of(mount.path) == early


def test_missing_content_is_told(s3: S3Machine) -> None:
    """Restored from a store that has lost something, the receipt says what; undo goes back."""
    mount = begin(s3)
    work = tree_of(mount.path)
    s3.run("pause", mount.path)
    packs = [key for key in s3.stored("packs/") if len(s3.load(key)) > 2_000_000]
    kept = {key: s3.load(key) for key in packs}
    other = s3.beside()
    resumed = other.mount("m", prefetch="none")
    (resumed.path / "large").unlink()
    for key in packs:
        s3.remove(key)
    other.clear_cache()

    done = other.start("restore", resumed.path, "HEAD")

    assert done.returncode == ExitCode.DAMAGED, done
    assert b"large" in done.stderr
    for key, value in kept.items():
        s3.save(key, value)
    assert set(tree_of(resumed.path)) == set(work) - {"moved", "new"} | {"d/f3"}


def test_lost_answer_to_a_durable_checkpoint(s3: S3Machine) -> None:
    """It is there once, whatever was heard of it."""
    mount = begin(s3)
    early = tree_of(mount.path)
    s3.fault(DropAnswer(), requests_to("PUT", key="/refs/sessions/"), nth=1)

    s3.run("checkpoint", mount.path, "--name", "kept", "--durable")

    assert not s3.calm()
    s3.run("pause", mount.path)
    other = s3.beside()
    resumed = other.mount("m")
    shutil.rmtree(resumed.path / "d")
    other.run("restore", resumed.path, "kept")
    assert tree_of(resumed.path) == early


def test_moves_of_refs_are_listed_and_undone(s3: S3Machine) -> None:
    """The oplog of a bucket, and a landing that is taken back."""
    mount = begin(s3)
    rows = s3.json("oplog", s3.store)["operations"]
    assert isinstance(rows, list)
    assert [row["action"] for row in rows] == ["land", "commit", "land", "commit"]
    first = rows[2]["new"]

    assert s3.json("undo", s3.store, "--op", str(rows[0]["operation"]))["head"] == first
    assert s3.json("show", s3.store, "main")["commit"] == first
    s3.run("fork", mount.path, s3.directory / "fork")
    s3.keep(s3.directory / "fork")
    mount.umount()
    s3.run("fork", s3.store, "s", s3.directory / "again")
    s3.keep(s3.directory / "again")
    assert tree_of(s3.directory / "again") == tree_of(s3.directory / "fork")


def test_restore_is_seen_though_the_store_takes_no_note(s3: S3Machine) -> None:
    """A checkpoint from before a commit is stored first; that no ref names it changes nothing."""
    mount = begin(s3)
    s3.run("checkpoint", mount.path, "--name", "early")
    early = tree_of(mount.path)
    mount.commit("third")
    shutil.rmtree(mount.path / "d")
    (mount.path / "moved").write_text("otherwise")
    os.listdir(mount.path)
    denied = s3.fault(Status(403), requests_to("PUT", key="/refs/sessions/"))

    s3.run("restore", mount.path, "early")

    assert tree_of(mount.path) == early
    assert denied.fired
    assert s3.json("status", mount.path)["is_stored"] is False
    s3.calm()
    mount.commit("as it was early")
    assert tree_of(mount.path) == early


def test_durable_checkpoint_with_the_store_away_is_told(s3: S3Machine) -> None:
    """It was made here, and the message says that it is here alone."""
    mount = begin(s3, store_timeout="2")
    early = tree_of(mount.path)
    s3.proxy.down()

    done = s3.start("checkpoint", mount.path, "--name", "kept", "--durable")

    s3.proxy.up()
    assert done.returncode == ExitCode.UNAVAILABLE
    assert b"on this machine alone" in done.stderr
    rows = s3.json("checkpoint", "list", mount.path)["checkpoints"]
    assert isinstance(rows, list)
    assert [(row["checkpoint"], row["is_durable"]) for row in rows] == [("kept", False)]
    shutil.rmtree(mount.path / "d")
    s3.run("restore", mount.path, "kept")
    assert tree_of(mount.path) == early
