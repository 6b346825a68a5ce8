"""Real mounts of a store on a real S3 server, while everything between them goes wrong.

Each fault that a test asks for must have happened: S3Machine.close looks after that.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness import kill
from tests.s3_machine import (
    PATIENCE_S,
    SOON_S,
    S3Machine,
    kill_all,
    requests_to,
    wait_until,
)
from tests.servers import SECRET_KEY, Server
from workspacefs.refs.record import decode_ref
from workspacefs.testing.proxy import (
    Action,
    CorruptBody,
    CutBody,
    DropAnswer,
    RequestInfo,
    Reset,
    SlowBody,
    Stall,
    Status,
    WrongBody,
    sequential_depth,
)

Tree = dict[str, bytes]

EXPIRED = Status(
    403,
    b'<?xml version="1.0"?><Error><Code>ExpiredToken</Code>'
    b"<Message>The provided token has expired.</Message></Error>",
)
SOON = {"store_timeout": str(SOON_S)}
PACK_READS = requests_to("GET", key="/packs/")
PACK_WRITES = requests_to("PUT", "POST", key="/packs/")
WRITES = requests_to("PUT", conditional=True)


def make_tree(root: Path, *, seed: int = 1, small: int = 60, large: int = 3) -> Tree:
    """Write files of several sizes; return what was written."""
    rng = random.Random(seed)
    tree: Tree = {}
    for number in range(small):
        tree[f"d{number % 4}/f{number}"] = rng.randbytes(rng.choice((10, 3000, 40_000)))
    for number in range(large):
        tree[f"large{number}"] = rng.randbytes(3_000_000)
    for path, data in tree.items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_bytes(data)
    return tree


def read_tree(root: Path, paths: Tree) -> Tree:
    """Return what these files hold."""
    return {path: (root / path).read_bytes() for path in paths}


def wrong_in(root: Path, tree: Tree) -> list[str]:
    """Return the files that hold something else than they should; errors are not wrong."""
    wrong = []
    for path, data in tree.items():
        try:
            if (root / path).read_bytes() != data:
                wrong.append(path)
        except OSError as exc:
            assert exc.errno == errno.EIO, path
    return wrong


def history(machine: S3Machine, ref: str = "main") -> list[str]:
    """Return the ids of all commits of a branch, the newest first."""
    document = machine.json("log", f"{machine.store}@{ref}")
    commits = document["commits"]
    assert isinstance(commits, list)
    return [str(commit["commit"]) for commit in commits]


def stored_head(machine: S3Machine, key: str = "refs/branches/main") -> str:
    """Return the commit that a stored ref names."""
    head = decode_ref(machine.load(key), key=key).commit_id
    assert head is not None
    return head.hex()


def forget_everything(machine: S3Machine) -> None:
    """Leave nothing of the store on this machine, nor in memory of its transfer processes."""
    kill_all(machine.transfer_pids())
    machine.clear_cache()


@contextmanager
def later(work: Callable[[], object]) -> Iterator[Future[object]]:
    """Do something on a thread while the body runs; it ends in time."""
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(work)
        yield future
        future.exception(timeout=PATIENCE_S)


# -- lost answers --------------------------------------------------------------------------------


@pytest.mark.parametrize("action", [DropAnswer(), Reset()], ids=["answer", "request"])
def test_commit_whose_nth_write_gets_lost(s3: S3Machine, action: Action) -> None:
    """Whichever conditional write of a commit gets no answer, or is never heard: the commit is in
    the history once, the branch is there, and the command says so.
    """
    mount = s3.mount()
    tree = make_tree(mount.path, large=0)
    s3.proxy.clear_log()
    ids = [str(mount.commit("c0", "--into", "main")["commit"])]
    writes = sum(map(WRITES, s3.proxy.log))
    assert writes >= 4  # pack, operation log, session, branch

    for number in range(1, writes + 1):
        tree["changed"] = b"%d" % number
        (mount.path / "changed").write_bytes(tree["changed"])
        fault = s3.fault(action, WRITES, nth=number)
        ids.append(str(mount.commit(f"c{number}", "--into", "main")["commit"]))
        assert s3.calm() == []
        assert fault.fired == 1
        assert stored_head(s3) == stored_head(s3, "refs/sessions/s") == ids[-1]

    assert history(s3) == ids[::-1]
    other = s3.beside().mount()
    assert other.document["base"] == ids[-1]
    assert read_tree(other.path, tree) == tree
    assert mount.status() == {}


def test_commit_all_of_whose_answers_get_lost_once(s3: S3Machine) -> None:
    """The first answer about every single key is lost, those of reads too."""
    mount = s3.mount()
    tree = make_tree(mount.path)
    seen: set[tuple[str, str]] = set()

    def is_first(info: RequestInfo) -> bool:
        is_new = (info.method, info.path) not in seen
        seen.add((info.method, info.path))
        return is_new

    fault = s3.fault(DropAnswer(), is_first)
    commit = str(mount.commit("c", "--into", "main")["commit"])
    s3.calm()

    assert fault.fired >= 5
    assert history(s3) == [commit]
    assert read_tree(s3.beside().mount().path, tree) == tree


def test_two_writers_while_answers_get_lost(s3: S3Machine) -> None:
    """Of two sessions that land on one branch each commit that was claimed is there once."""
    first, second = s3.mount(), s3.mount("m2", session="s2")
    s3.fault(DropAnswer(), requests_to("PUT", key="refs/branches/main"), nth={1, 2, 4})
    claimed: list[str] = []
    for number in range(3):
        for mount in (first, second):
            (mount.path / f"{mount.path.name}-{number}").write_bytes(b"x")
            done = s3.start("commit", mount.path, "-m", "c", "--into", "main", "--json")
            if done.returncode == 0:
                claimed.append(stored_head(s3))
            else:
                assert done.returncode == 5, done  # the other one was faster

    assert claimed
    found = history(s3)
    assert len(set(found)) == len(found)
    assert set(claimed) <= set(found)


# -- a store that is away ------------------------------------------------------------------------


def test_work_goes_on_while_the_store_is_away(s3: S3Machine) -> None:
    """What is on this machine is read and written; what is not waits, then EIO; a commit fails
    and says why; all is well when the store is back, without another mount.
    """
    first = s3.mount()
    tree = make_tree(first.path)
    first.commit("base", "--into", "main")
    here = s3.beside()
    mount = here.mount(prefetch="none", session="here", **SOON)
    os.listdir(mount.path)
    warm = {path: data for path, data in tree.items() if path.startswith("d")}
    assert read_tree(mount.path, warm) == warm
    stats = [os.stat(mount.path / path) for path in tree]
    s3.proxy.down()

    began = time.monotonic()
    with later((mount.path / "large2").read_bytes) as miss:
        while not miss.done():
            assert [os.stat(mount.path / path) for path in tree] == stats
            assert read_tree(mount.path, warm) == warm
            (mount.path / "new").write_bytes(b"written while it is away")
            os.replace(mount.path / "new", mount.path / "renamed")
            (mount.path / "dir").mkdir(exist_ok=True)
        error = miss.exception()
    waited_s = time.monotonic() - began
    failed = here.start("commit", mount.path, "-m", "away", "--into", "main")

    assert isinstance(error, OSError)
    assert error.errno == errno.EIO
    assert waited_s < PATIENCE_S  # without the limit it is two minutes: the kernel asks twice
    assert failed.returncode == 7
    assert s3.proxy.url in failed.stderr.decode()
    assert mount.status() == {"renamed": "added", "dir": "added"}
    s3.proxy.up()
    assert (mount.path / "large2").read_bytes() == tree["large2"]
    mount.commit("back", "--into", "main")
    again = s3.beside("third").mount(session="third")
    assert (again.path / "renamed").read_bytes() == b"written while it is away"
    assert read_tree(again.path, tree) == tree


def test_mount_of_a_store_that_is_away_fails_in_time(s3: S3Machine) -> None:
    """It says which store does not answer, leaves no mount, and the next one works."""
    s3.proxy.down()
    began = time.monotonic()
    mountpoint = s3.directory / "m"
    mountpoint.mkdir()
    limit = ("--store-timeout", "1")

    failed = s3.start("mount", str(s3.store), mountpoint, *limit)

    assert time.monotonic() - began < PATIENCE_S
    assert failed.returncode == 7
    assert s3.proxy.url in failed.stderr.decode()
    assert not os.path.ismount(mountpoint)
    s3.proxy.up()
    (s3.mount().path / "f").write_bytes(b"works")


@pytest.mark.parametrize("key", ["/packs/", "/refs/sessions/", "/refs/branches/"])
def test_store_that_goes_away_within_a_commit(s3: S3Machine, key: str) -> None:
    """From whichever write on it is away: the commit fails or is whole, the next one is right."""
    mount = s3.mount(**SOON)
    tree = make_tree(mount.path, small=20, large=0)
    mount.commit("base", "--into", "main")
    tree["changed"] = b"changed"
    (mount.path / "changed").write_bytes(b"changed")
    gone = threading.Event()
    fault = s3.fault(Stall(gone), requests_to("PUT", key=key), times=1)

    with later(lambda: s3.start("commit", mount.path, "-m", "c", "--into", "main")) as commit:
        wait_until(lambda: fault.fired)
        s3.proxy.down()
        gone.set()
        result = commit.result(timeout=PATIENCE_S)

    assert isinstance(result, subprocess.CompletedProcess)
    assert result.returncode == 7
    s3.proxy.up()
    mount.commit("again", "--into", "main")
    assert len(history(s3)) in (2, 3)  # the first one may have reached the session's ref
    assert mount.status() == {}
    assert read_tree(s3.beside().mount().path, tree) == tree


def test_store_that_goes_away_with_the_answer_about_the_ref(s3: S3Machine) -> None:
    """A commit that took effect, and whose answer is lost with the store, is found when the store
    is back: it succeeds, once.
    """
    mount = s3.mount()
    tree = make_tree(mount.path, small=20, large=0)
    fault = s3.fault(DropAnswer(), requests_to("PUT", key="/refs/sessions/"), times=1)

    with later(lambda: mount.commit("c", "--into", "main")) as commit:
        # Not before the store has all of it: SeaweedFS keeps half a request as an empty value.
        wait_until(lambda: any(info.fault and info.end_s for info in s3.proxy.log))
        assert fault.fired
        s3.proxy.down()
        time.sleep(0.5)  # so that it asks in vain
        s3.proxy.up()
        document = commit.result(timeout=PATIENCE_S)

    assert isinstance(document, dict)
    assert history(s3) == [document["commit"]]
    assert read_tree(s3.beside().mount().path, tree) == tree


# -- bad ways ------------------------------------------------------------------------------------


def test_reads_over_bad_ways_are_right(s3: S3Machine) -> None:
    """Slow, stalled, cut, wrong and refused answers cost time, and neither bytes nor errors."""
    first = s3.mount()
    tree = make_tree(first.path, small=30, large=1)
    first.commit("base", "--into", "main")
    # Of each row the first pack request meets the first fault, the second one the second …
    rows: dict[str, list[Action]] = {
        "breaks": [CutBody(0, resets=True), CutBody(100_000), Reset(), CutBody(70_000)],
        "waits": [Stall(0.1), Stall(0.2, after_bytes=70_000), SlowBody(10e6)],
        "lies": [CorruptBody(0), CorruptBody(-1), WrongBody(bytes(5000)), CorruptBody(500)],
        "pages": [WrongBody(b"<html>all is well</html>", status=200)] * 2,
        "refusals": [Status(503), Status(429, b""), Status(500, b""), Status(503), Status(503)],
    }

    for name, actions in rows.items():
        forget_everything(s3)
        for action in actions:
            s3.fault(action, PACK_READS, nth=1)
        mount = s3.mount(f"m-{name}", session=name)
        assert read_tree(mount.path, tree) == tree, name
        assert s3.calm() == [], name
        mount.umount()


def test_reads_over_a_way_that_stays_bad_fail_in_time(s3: S3Machine) -> None:
    """Wrong bytes are never handed out; when the way is well again, the same mount reads."""
    first = s3.mount()
    tree = make_tree(first.path, small=10, large=2)
    first.commit("base", "--into", "main")
    for number, action in enumerate((CorruptBody(3_000, 0x40), Stall(60.0, after_bytes=1))):
        forget_everything(s3)
        mount = s3.mount(f"m{number}", session=f"s{number}", prefetch="none", **SOON)
        os.listdir(mount.path)
        forget_everything(s3)
        fault = s3.fault(action, PACK_READS)
        paths = {path: tree[path] for path in ("large0", "large1", "d0/f0")}

        began = time.monotonic()
        with ThreadPoolExecutor(3) as readers:
            wrong = list(
                readers.map(lambda path, root=mount.path: wrong_in(root, {path: tree[path]}), paths)
            )
        waited_s = time.monotonic() - began

        assert wrong == [[], [], []]
        assert fault.fired
        assert waited_s < PATIENCE_S
        s3.calm()
        s3.proxy.cut()
        assert read_tree(mount.path, paths) == paths
        mount.umount()


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_commits_through_a_storm_of_refusals(s3: S3Machine, share: float) -> None:
    """When a tenth or half of all requests are refused, no write is lost and none is doubled."""
    rng = random.Random(f"{share}")
    mount = s3.mount()
    s3.fault(Status(503), lambda info: rng.random() < share)
    tree: Tree = {}
    ids = []
    for number in range(3):
        tree |= make_tree(mount.path, seed=number, small=20, large=number % 2)
        ids.append(str(mount.commit(f"c{number}", "--into", "main")["commit"]))
    s3.calm()

    assert history(s3) == ids[::-1]
    assert read_tree(s3.beside().mount().path, tree) == tree


# -- damage in the bucket and on disk ------------------------------------------------------------


def test_damaged_value_in_the_bucket_is_one_files_error(s3: S3Machine) -> None:
    """A pack that is missing, flipped or cut short is EIO for what lies in it, with its key and
    kind in the log; all else works, and so does the file when the pack is back.
    """
    first = s3.mount()
    tree = make_tree(first.path, large=0)
    first.commit("small", "--into", "main")
    before = set(s3.stored("packs/"))
    victim = random.Random(5).randbytes(9_000_000)
    (first.path / "victim").write_bytes(victim)
    first.commit("victim", "--into", "main")
    packs = {key: s3.load(key) for key in set(s3.stored("packs/")) - before}
    key, value = max(packs.items(), key=lambda item: len(item[1]))
    assert len(value) > 4_000_000  # of data only
    here = s3.beside()
    flipped = bytes(b ^ 0x10 if at % 1000 == 500 else b for at, b in enumerate(value))
    damages: dict[str, tuple[bytes | None, str]] = {
        "missing": (None, "pack.missing"),
        "flipped": (flipped, "frame.damaged"),
        "cut": (value[:1000], "store.short"),
    }

    for name, (damaged, kind) in damages.items():
        if damaged is None:
            s3.remove(key)
        else:
            s3.save(key, damaged)
        logged = len(here.log_lines())
        mount = here.mount(f"m-{name}", session=name)
        with pytest.raises(OSError) as caught:
            (mount.path / "victim").read_bytes()
        assert caught.value.errno == errno.EIO
        assert read_tree(mount.path, tree) == tree
        (mount.path / "more").write_bytes(b"work goes on")
        mount.commit("more")
        failed = [line for line in here.log_lines()[logged:] if line["level"] == "error"]
        assert {(line["pack"], line["kind"]) for line in failed} == {(key, kind)}
        s3.save(key, value)
        assert (mount.path / "victim").read_bytes() == victim
        mount.umount()
        forget_everything(here)


def test_damaged_cache_is_noticed_and_mended(s3: S3Machine) -> None:
    """Files of the cache that are flipped, cut, deleted or gone altogether, while mounted, cost
    requests; no program hears of it.
    """
    first = s3.mount()
    tree = make_tree(first.path, large=1)
    first.commit("base", "--into", "main")
    here = s3.beside()
    cache = here.state_dir / "cache"

    def flip(path: Path) -> None:
        with path.open("r+b") as file:
            for at in range(16_384, path.stat().st_size, 20_000):
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 0x20]))

    damages: dict[str, Callable[[Path], object]] = {
        "none": lambda path: None,
        "flipped": flip,
        "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
        "emptied": lambda path: os.truncate(path, 0),
        "foreign": lambda path: path.write_bytes(b"foreign" * 1000),
        "deleted": os.unlink,
    }
    for name, damage in damages.items():
        mount = here.mount(f"m-{name}", session=name)
        values = list(cache.glob("*/values/*"))
        assert values or name == "none"
        for path in values:
            damage(path)
        assert read_tree(mount.path, tree) == tree, name
        mount.umount()
    mount = here.mount()
    shutil.rmtree(cache)

    assert read_tree(mount.path, tree) == tree
    assert any(line.get("event") == "cache.wrong_bytes" for line in here.log_lines())


# -- processes that die --------------------------------------------------------------------------


def test_transfer_process_that_dies_is_replaced(s3: S3Machine) -> None:
    """kill -9 while files are read and while a commit uploads: the mount goes on by itself."""
    first = s3.mount()
    tree = make_tree(first.path)
    first.commit("base", "--into", "main")
    here = s3.beside()
    mount = here.mount(prefetch="none")
    s3.proxy.delay_s = 0.02
    with later(lambda: read_tree(mount.path, tree)) as reading:
        killed: set[int] = set()
        while not reading.done() and len(killed) < 3:
            for pid in set(here.transfer_pids()) - killed:
                kill(pid)
                killed.add(pid)
        found = reading.result(timeout=PATIENCE_S)
    s3.proxy.delay_s = 0.0
    assert found == tree
    assert killed

    for key in ("/packs/", "/refs/sessions/", "/refs/branches/"):
        tree[f"new{len(tree)}"] = os.urandom(5000)
        (mount.path / f"new{len(tree) - 1}").write_bytes(tree[f"new{len(tree) - 1}"])
        go_on = threading.Event()
        fault = s3.fault(Stall(go_on), requests_to("PUT", key=key), times=1)
        with later(lambda: mount.commit("c", "--into", "main")) as commit:
            wait_until(lambda fault=fault: fault.fired)
            kill_all(here.transfer_pids())
            go_on.set()
            document = commit.result(timeout=PATIENCE_S)
        assert isinstance(document, dict)
        assert stored_head(s3) == document["commit"]
    assert len(history(s3)) == 4
    assert read_tree(s3.beside("third").mount().path, tree) == tree


def test_supervisor_that_dies_with_the_transfer_process_is_replaced(s3: S3Machine) -> None:
    """A mount whose helpers are all dead reads and commits, with the keys it was given."""
    first = s3.mount()
    tree = make_tree(first.path)
    first.commit("base", "--into", "main")
    here = s3.beside()
    mount = here.mount(prefetch="none")
    victims = [here.supervisor_pid(), *here.transfer_pids()]

    for pid in victims:
        kill(pid)

    assert read_tree(mount.path, tree) == tree
    (mount.path / "new").write_bytes(b"new")
    mount.commit("c", "--into", "main")
    assert here.supervisor_pid() not in victims
    assert len(history(s3)) == 2


def test_session_that_dies_within_a_commit(s3: S3Machine) -> None:
    """At whichever of its writes it is killed: all files are there again, the ref is old or new."""
    mount = s3.mount()
    tree = make_tree(mount.path, large=0)
    s3.proxy.clear_log()
    heads = [str(mount.commit("c0")["commit"])]
    writes = sum(map(WRITES, s3.proxy.log))
    outcomes = set()
    for number in range(1, writes + 2):
        tree["changed"] = b"%d" % number
        (mount.path / "changed").write_bytes(tree["changed"])
        go_on = threading.Event()
        # After the last write: killed when the command is about to be answered.
        fault = s3.fault(Stall(go_on), WRITES, nth=number) if number <= writes else None
        command = [sys.executable, "-m", "workspacefs.cli", "commit", str(mount.path), "-m", "c"]
        commit = subprocess.Popen(
            command, env=s3.environ(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        if fault is not None:
            wait_until(lambda fault=fault: fault.fired)
        else:
            wait_until(lambda: stored_head(s3, "refs/sessions/s") != heads[-1])
        mount.kill()
        go_on.set()
        commit.wait(timeout=PATIENCE_S)
        s3.calm()

        mount = mount.again()

        assert read_tree(mount.path, tree) == tree
        head = stored_head(s3, "refs/sessions/s")
        outcomes.add("old" if head == heads[-1] else "new")
        heads.append(str(mount.commit("again")["commit"]))
        assert mount.status() == {}
    mount.commit("the end", "--into", "main")

    assert outcomes == {"old", "new"}
    assert read_tree(s3.beside().mount().path, tree) == tree


def test_write_that_comes_after_the_session_was_mounted_again(s3: S3Machine) -> None:
    """The ref that a killed session was writing may reach the store late, when the session is
    mounted again: it is refused then, and the session goes on.
    """
    mount = s3.mount()
    tree = make_tree(mount.path, small=10, large=0)
    first = str(mount.commit("c0")["commit"])
    tree["changed"] = b"changed"
    (mount.path / "changed").write_bytes(b"changed")
    go_on = threading.Event()
    fault = s3.fault(Stall(go_on), requests_to("PUT", key="/refs/sessions/"), times=1)
    command = [sys.executable, "-m", "workspacefs.cli", "commit", str(mount.path), "-m", "late"]
    commit = subprocess.Popen(
        command, env=s3.environ(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_until(lambda: fault.fired)
    mount.kill()
    commit.wait(timeout=PATIENCE_S)

    mount = mount.again()
    go_on.set()
    (late,) = [info for info in s3.proxy.log if info.fault == "Stall"]
    wait_until(lambda: late.status)

    assert late.status == 412
    assert stored_head(s3, "refs/sessions/s") == first
    assert read_tree(mount.path, tree) == tree
    assert mount.status() == {"changed": "added"}
    mount.commit("next", "--into", "main")
    assert len(history(s3)) == 2
    assert read_tree(s3.beside().mount().path, tree) == tree


# -- servers and keys that are no good -----------------------------------------------------------


def test_server_that_ignores_conditions_is_refused(
    s3: S3Machine, rclone_s3: Server, tmp_path: Path
) -> None:
    """Neither a new workspace nor a mount where writers could overwrite each other unnoticed."""
    liar = S3Machine(tmp_path / "liar", rclone_s3, s3.proxy, rclone_s3.new_store())
    failed = liar.start("init", str(liar.store), "--json")
    for key in s3.stored():
        liar.save(key, s3.load(key))  # as if it had been copied there
    (tmp_path / "m").mkdir()

    refused = liar.start("mount", str(liar.store), tmp_path / "m", "--json")

    liar.start("supervisor", "stop")
    for done in (failed, refused):
        assert done.returncode == 8, done
        assert b'"store.no_conditions"' in done.stdout + done.stderr
    assert not os.path.ismount(tmp_path / "m")


def test_keys_that_expire_and_come_back(s3: S3Machine) -> None:
    """While keys are refused, errors say so; afterwards the same mount goes on."""
    first = s3.mount()
    tree = make_tree(first.path)
    first.commit("base", "--into", "main")
    here = s3.beside()
    mount = here.mount(prefetch="none", **SOON)
    os.listdir(mount.path)
    (mount.path / "new").write_bytes(b"new")
    s3.fault(EXPIRED)

    with pytest.raises(OSError) as caught:
        (mount.path / "large1").read_bytes()
    failed = here.start("commit", mount.path, "-m", "c")
    other = s3.beside("third")
    (other.directory / "m").mkdir()
    refused = other.start("mount", str(s3.store), other.directory / "m", "--store-timeout", "1")

    assert caught.value.errno == errno.EIO
    for done in (failed, refused):
        assert done.returncode == 7
        assert b"credential" in done.stderr or b"key" in done.stderr, done.stderr
    assert s3.calm() == []
    assert read_tree(mount.path, tree) == tree
    mount.commit("c", "--into", "main")
    assert len(history(s3)) == 2


def test_secrets_stay_in_memory(s3: S3Machine) -> None:
    """No secret of the caller's environment is in a file, an argument, an environment or an
    attribute, whether all goes well or not, at the most talkative level of logging.
    """
    token = "canary-token-9876543210"
    s3.variables = {"WORKSPACEFS_LOG_LEVEL": "debug", "AWS_SESSION_TOKEN_UNUSED": token}
    mount = s3.mount()
    make_tree(mount.path, small=5, large=0)
    mount.commit("c", "--into", "main")
    s3.fault(EXPIRED, times=2)
    (mount.path / "x").write_bytes(b"x")
    outputs = [s3.start("commit", mount.path, "-m", "c")]
    s3.calm()
    kill_all(s3.transfer_pids())
    mount.commit("c2", "--into", "main")
    outputs += [
        s3.start("sessions", "--json"),
        s3.start("supervisor", "status", "--json"),
        s3.start("doctor"),
        s3.start("log", str(s3.store)),
    ]
    pids = [s3.supervisor_pid(), mount.pid, *s3.transfer_pids()]
    assert len(pids) == 3

    seen: dict[str, bytes] = {}
    for pid in pids:
        for name in ("cmdline", "environ"):
            seen[f"{pid}/{name}"] = Path(f"/proc/{pid}/{name}").read_bytes()
    for path in s3.state_dir.rglob("*"):
        if path.is_file():
            seen[str(path)] = path.read_bytes()
    for name in os.listxattr(mount.path):
        seen[name] = os.getxattr(mount.path, name)
    for number, done in enumerate(outputs):
        seen[f"output {number}"] = done.stdout + done.stderr

    assert any("log" in name and text for name, text in seen.items())
    assert [name for name, text in seen.items() if SECRET_KEY.encode() in text] == []
    assert [name for name, text in seen.items() if token.encode() in text] == []


# -- what it costs -------------------------------------------------------------------------------


def test_mount_waits_for_two_requests_until_it_lists(s3: S3Machine) -> None:
    """On a machine that has nothing, `ls` needs the refs and then the root, one after the other;
    the session is made beside the root. Whatever else is asked for, nobody waits for it.
    """
    first = s3.mount()
    make_tree(first.path)
    first.commit("base", "--into", "main")
    needed = ("workspace.json", "refs/", "probe/", "packs/")
    go_on = threading.Event()
    s3.fault(Stall(go_on), lambda info: not any(part in info.path for part in needed))
    s3.proxy.clear_log()
    s3.proxy.delay_s = 0.2  # so that what is asked at once overlaps

    other = s3.beside().mount(session="fresh")
    names = os.listdir(other.path)
    waited_for = [info for info in s3.proxy.log if any(part in info.path for part in needed)]
    go_on.set()

    assert len(names) == 7
    refs = [info for info in waited_for if info.method == "GET" and "packs/" not in info.path]
    assert sequential_depth(refs) == 1
    first_pack = min(info.begin_s for info in waited_for if "packs/" in info.path)
    assert max(info.begin_s for info in refs) <= first_pack
    assert sequential_depth(waited_for) == 2


def test_commit_of_many_files_takes_two_rounds_of_writes(s3: S3Machine) -> None:
    """First all data and the log, then the ref; landing on a branch takes one more."""
    mount = s3.mount()
    make_tree(mount.path, small=100, large=0)
    mount.commit("base")
    s3.proxy.delay_s = 0.03  # so that rounds do not overlap by chance

    make_tree(mount.path, seed=2, small=100, large=0)
    s3.proxy.clear_log()
    mount.commit("c1")
    alone = [info for info in s3.proxy.log if info.method in ("PUT", "POST")]
    make_tree(mount.path, seed=3, small=100, large=0)
    s3.proxy.clear_log()
    mount.commit("c2", "--into", "main")
    landed = [info for info in s3.proxy.log if info.method in ("PUT", "POST")]

    assert sequential_depth(alone) == 2
    assert sequential_depth(landed) == 3


def test_git_status_on_a_fresh_mount_fetches_no_content(s3: S3Machine) -> None:
    """git compares what it remembers of each file with its attributes, and reads none of them."""
    first = s3.mount()
    work = first.path / "work"
    work.mkdir()

    def git(root: Path, *words: str) -> str:
        setting = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "gc.auto=0")
        done = subprocess.run(
            ["git", *setting, *words], cwd=root, capture_output=True, timeout=60, check=True
        )
        return done.stdout.decode()

    rng = random.Random(8)
    for number in range(300):
        (work / f"d{number % 10}").mkdir(exist_ok=True)
        (work / f"d{number % 10}" / f"f{number}").write_bytes(rng.randbytes(80_000))
    git(work, "init", "-q")
    git(work, "add", ".")
    git(work, "commit", "-q", "-m", "all")
    first.commit("repository", "--into", "main")
    content_bytes = sum(len(s3.load(key)) for key in s3.stored("packs/"))
    s3.proxy.clear_log()

    mount = s3.beside().mount()
    status = git(mount.path / "work", "status", "--porcelain")

    fetched_bytes = sum(info.sent_bytes for info in s3.proxy.log if "/packs/" in info.path)
    assert status == ""
    assert content_bytes > 40_000_000  # work tree and .git/objects
    assert fetched_bytes < content_bytes / 10
