"""Mounts of an S3 store and the commands for them: what they say, fetch, keep and refuse."""

from __future__ import annotations

import errno
import http.client
import json
import os
import random
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.harness import CommandFailed, Machine, Mount
from tests.servers import SECRET_KEY, Server, free_ports
from workspacefs.errors import ExitCode
from workspacefs.testing.proxy import FaultProxy

_WAIT_S = 30.0
_LARGE_BYTES = 3 << 20


class FarMachine(Machine):
    """A machine whose store is in a bucket, reached by way of a proxy."""

    def __init__(self, directory: Path, server: Server, url: str, proxy: FaultProxy) -> None:
        super().__init__(directory)
        self._environ = server.environ()
        self.proxy = proxy
        self.bare = url.partition("?")[0]
        self.url = f"{self.bare}?endpoint_url={proxy.url}"
        self.extra: dict[str, str] = {}

    def environ(self) -> dict[str, str]:
        """Return an environment that leads to the server, and to nothing else."""
        own = {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}
        return {**own, **self._environ, **self.own_environ(), **self.extra}

    def start(
        self, *words: str | Path, text: bytes | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command; what it says must not hold the secret."""
        done = super().start(*words, text=text)
        assert SECRET_KEY.encode() not in done.stdout + done.stderr
        return done

    def mount_at(self, name: str, *words: str, url: str | None = None) -> Mount:
        """Mount a session at the directory `name`, with further flags."""
        place = self.directory / name
        self._mountpoints.append(place)
        document = self.json(
            "mount", url or self.url, place, "--mkdir", "--session", name + self.directory.name,
            *words,
        )  # fmt: skip
        return Mount(self, place, document)

    def stats(self, mount: Mount) -> dict[str, Any]:
        """Return the figures of a mount."""
        return self.json("stats", mount.path)

    def error(self, *words: str | Path, code: int) -> dict[str, Any]:
        """Run a command that fails; return its error."""
        error = self.json(*words, code=code)["error"]
        assert isinstance(error, dict)
        return error

    def paths(self) -> list[str]:
        """Return what was asked of the server so far, below the store's prefix."""
        prefix = "/" + self.bare.removeprefix("s3://") + "/"
        return [info.path.removeprefix(prefix) for info in self.proxy.log]


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for something that the daemons do by themselves."""
    until = time.monotonic() + _WAIT_S
    while not is_so():
        assert time.monotonic() < until, "it does not happen"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def stored(seaweedfs: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a workspace that nobody changes main of; it has two large files and small ones."""
    directory = tmp_path_factory.mktemp("stored")
    source = directory / "src"
    (source / "d").mkdir(parents=True)
    for number in range(20):
        (source / "d" / f"f{number}").write_text(f"file {number}\n" * 100)
    for name in ("large", "other"):
        (source / name).write_bytes(random.Random(name).randbytes(_LARGE_BYTES))
    url = seaweedfs.new_store()
    parts = urlsplit(seaweedfs.url)
    with FaultProxy(parts.hostname or "", parts.port or 0) as proxy:
        machine = FarMachine(directory, seaweedfs, url, proxy)
        machine.run("init", url)
        machine.run("import", url, source, "-m", "first")
    return url


@pytest.fixture
def proxy(seaweedfs: Server) -> Iterator[FaultProxy]:
    parts = urlsplit(seaweedfs.url)
    with FaultProxy(parts.hostname or "", parts.port or 0) as proxy:
        yield proxy


@pytest.fixture
def far(seaweedfs: Server, stored: str, tmp_path: Path, proxy: FaultProxy) -> Iterator[FarMachine]:
    machine = FarMachine(tmp_path, seaweedfs, stored, proxy)
    try:
        yield machine
    finally:
        machine.close()


def test_work_goes_round(far: FarMachine) -> None:
    """Mount, change, commit, land nothing: a second mount of the session's commit has it."""
    mount = far.mount_at("m")
    (mount.path / "d" / "f1").write_text("changed")

    answer = mount.commit("why")

    assert mount.document["store_url"] == far.url
    shown = far.run("cat", f"{far.url}@{answer['commit']}", "d/f1")
    assert shown == "changed"
    assert far.run("log", mount.path, "-n", "1").startswith(f"commit {answer['commit']}")


def test_stats_of_a_far_mount(far: FarMachine) -> None:
    """What the kernel asked, what was near and far, what the store was asked, and how long."""
    mount = far.mount_at("m")
    (mount.path / "large").read_bytes()

    found = far.stats(mount)
    text = far.run("stats", mount.path)

    assert found["fuse"]["messages"]["read"] > 0
    assert sum(found["fuse"]["load_waits"]["buckets"]) > 0
    assert found["reads"]["far"] > 0
    transfer = found["transfer"]
    get = transfer["requests"]["operations"]["get"]
    assert get["requests"] >= 2
    assert get["bytes_in"] >= _LARGE_BYTES
    assert sum(get["latency"]["buckets"]) == get["requests"]
    assert 0 < get["latency"]["p50_s"] <= get["latency"]["p99_s"]
    assert transfer["store"]["state"] == "ok"
    assert transfer["fetches"]["demand_bytes"] > 0
    assert transfer["queue"].keys() >= {"queued", "under_way", "waiting"}
    assert transfer["cache"]["directory"] == str(far.state_dir / "cache")
    assert transfer["metadata"]["trees_failed"] == 0
    assert "all mounts of this store together:" in text
    assert "get " in text


def test_stats_of_a_near_mount(machine: Machine, mount: Mount) -> None:
    """A store in a directory has no transfer process."""
    (mount.path / "a").write_text("x")

    found = machine.json("stats", mount.path)

    assert found["reads"] is None
    assert found["transfer"] is None
    assert "requests of the kernel" in machine.run("stats", mount.path)


def test_cache_is_shown_and_cleared_under_a_mount(far: FarMachine) -> None:
    """Of one store or all; what was cleared is fetched again."""
    mount = far.mount_at("m", "--prefetch", "none")
    expected = (mount.path / "large").read_bytes()

    shown = far.json("cache", "stats")
    others = far.json("cache", "clear", "s3://other-bucket/p")
    cleared = far.json("cache", "clear", far.bare, "--endpoint-url", far.proxy.url)
    empty = far.json("cache", "stats")
    mount.umount()
    far.proxy.clear_log()
    again = far.mount_at("m", "--prefetch", "none")

    (row,) = shown["stores"]
    assert row["url"] == far.url
    assert shown["size_bytes"] == row["size_bytes"] >= _LARGE_BYTES
    assert shown["limit_bytes"] > _LARGE_BYTES
    assert others["freed_bytes"] == 0
    assert cleared["freed_bytes"] >= _LARGE_BYTES
    assert (empty["size_bytes"], empty["stores"]) == (0, [])
    assert (again.path / "large").read_bytes() == expected
    assert any(path.startswith("packs/") for path in far.paths())


def test_prefetch_brings_files_before_the_store_goes_away(far: FarMachine) -> None:
    """Once, whole directories too; what is not committed it names."""
    mount = far.mount_at("m", "--prefetch", "none")
    (mount.path / "new").write_text("x")

    first = far.json("prefetch", mount.path / "large", mount.path / "d", mount.path / "new")
    second = far.json("prefetch", mount.path / "large", mount.path / "d")
    os.listdir(mount.path / "d")
    far.proxy.down()

    assert (first["files"], first["uncommitted"]) == (21, ["new"])
    assert first["fetched_bytes"] >= _LARGE_BYTES
    assert (second["files"], second["fetched_bytes"]) == (21, 0)
    assert (mount.path / "d" / "f7").read_text() == "file 7\n" * 100
    assert len((mount.path / "large").read_bytes()) == _LARGE_BYTES


def test_prefetch_wants_paths_of_one_mount(far: FarMachine) -> None:
    """Of two it refuses; outside any it says so; a near store needs none."""
    one, two = far.mount_at("one"), far.mount_at("two")

    both = far.error("prefetch", one.path, two.path, code=ExitCode.USAGE)
    none = far.error("prefetch", far.directory, code=ExitCode.NOT_FOUND)

    assert both["kind"] == "usage.mounts"
    assert none["kind"] == "session.not_mounted"


def test_prefetch_of_a_near_store_fetches_nothing(machine: Machine, mount: Mount) -> None:
    """It says so, and succeeds."""
    assert machine.json("prefetch", mount.path)["fetched_bytes"] == 0
    assert "on this machine already" in machine.run("prefetch", mount.path)


@pytest.mark.parametrize(
    ("mode", "trees", "asks_for_hints"),
    [("none", 0, False), ("metadata", 1, False), ("adaptive", 1, True)],
)
def test_prefetch_modes(far: FarMachine, mode: str, trees: int, *, asks_for_hints: bool) -> None:
    """none leaves all to be asked for, metadata fetches names, adaptive looks for hints as well."""
    mount = far.mount_at("m", "--prefetch", mode)

    def trees_done() -> object:
        return far.stats(mount)["transfer"]["metadata"]["trees_done"]

    wait_until(lambda: trees_done() == trees)
    wait_until(lambda: asks_for_hints == any(path.startswith("hints/") for path in far.paths()))
    assert (mount.path / "d" / "f0").read_text() == "file 0\n" * 100


def test_unmount_leaves_hints_for_the_next_mount(far: FarMachine) -> None:
    """What was read first is stored under the commit, and fetched ahead by the next machine."""
    mount = far.mount_at("m", "--prefetch", "adaptive")
    (mount.path / "d" / "f0").read_text()
    wait_until(lambda: any(path.startswith("hints/") for path in far.paths()))

    mount.umount()

    commit = mount.document["base"]
    assert f"hints/{commit}" in far.paths()


def test_cache_limit_is_given_by_flag_or_environment(far: FarMachine) -> None:
    """A limit that is none, or too small to be of use, is refused."""
    for size in ("1M", "x", "-5G", "64", "nan"):
        error = far.error(
            "mount", far.url, far.directory / "m", f"--cache-size={size}", code=ExitCode.USAGE
        )
        assert error["kind"] == "usage.cache_size", size
    mount = far.mount_at("m", "--cache-size", "64M")
    assert far.stats(mount)["transfer"]["cache"]["limit_bytes"] == 64 << 20
    mount.umount()

    far.extra["WORKSPACEFS_CACHE_SIZE"] = "1.5GiB"
    mount = far.mount_at("m")

    assert far.stats(mount)["transfer"]["cache"]["limit_bytes"] == 3 << 29
    assert far.json("cache", "stats")["limit_bytes"] == 3 << 29


def test_reads_wait_so_long_for_a_store_that_is_away(far: FarMachine) -> None:
    """Then EIO; all else goes on; status, stats and doctor say it, and that it is back."""
    mount = far.mount_at("m", "--prefetch", "none", "--store-timeout", "1")
    (mount.path / "first").write_text("with ids for more files")
    far.proxy.down()

    began = time.monotonic()
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        (mount.path / "large").read_bytes()
    waited_s = time.monotonic() - began
    (mount.path / "new").write_text("written meanwhile")
    away = far.json("status", mount.path)
    said = far.run("status", mount.path)
    figures = far.stats(mount)
    findings = far.json("doctor", "--no-mount")["checks"]
    far.proxy.up()
    data = (mount.path / "large").read_bytes()
    back = far.json("status", mount.path)

    assert 0.9 < waited_s < 15
    store = away["store"]
    assert store["state"] == "away"
    assert store["since_s"] > 0
    assert store["retries"] >= 2
    assert "no connection" in store["reason"]
    assert sorted(row["path"] for row in away["changes"]) == ["first", "new"]
    assert "the store has not answered for" in said
    assert figures["transfer"]["store"]["state"] == "away"
    (finding,) = [row for row in findings if row["name"] == "store"]
    assert finding["level"] == "warn"
    assert "does not answer" in finding["found"]
    assert len(data) == _LARGE_BYTES
    assert back["store"]["state"] == "ok"


def test_doctor_tells_of_a_store_that_answers(far: FarMachine) -> None:
    """Each far mount of this state directory, and none of another."""
    mount = far.mount_at("m")

    own = far.json("doctor", "--no-mount")["checks"]
    other = far.json("doctor", "--no-mount", "--state-dir", far.directory / "elsewhere")["checks"]

    (finding,) = [row for row in own if row["name"] == "store"]
    assert finding["level"] == "ok"
    assert str(mount.path) in finding["found"]
    assert not [row for row in other if row["name"] == "store"]


@pytest.mark.parametrize("seconds", ["x", "nan", "inf", "-1", "0"])
def test_store_timeout_is_a_time(far: FarMachine, seconds: str) -> None:
    """Anything else is refused before anything is mounted."""
    error = far.error(
        *("mount", far.url, far.directory / "m", f"--store-timeout={seconds}"), code=ExitCode.USAGE
    )

    assert error["kind"] == "usage.arguments"


def scrape(connection: http.client.HTTPConnection, path: str = "/metrics") -> tuple[int, str]:
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def samples_of(text: str) -> dict[tuple[str, str], float]:
    """Return the value of each sample by its name and the text of its one label."""
    return {
        (sample.name, ",".join(v for k, v in sorted(sample.labels.items()) if k != "le")): float(
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_reads_figures_from_a_port(far: FarMachine) -> None:
    """Text that its parser understands; other paths are not there."""
    (port,) = free_ports(1)
    mount = far.mount_at("m", "--metrics", str(port))
    (mount.path / "large").read_bytes()

    status, text = scrape(http.client.HTTPConnection("127.0.0.1", port, timeout=10))
    missing, _ = scrape(http.client.HTTPConnection("127.0.0.1", port, timeout=10), "/other")
    found = samples_of(text)

    assert (status, missing) == (200, 404)
    assert found["workspacefs_fuse_operations_total", "read"] > 0
    assert found["workspacefs_store_up", ""] == 1
    assert found["workspacefs_store_requests_total", "get"] >= 2
    assert found["workspacefs_store_bytes_in_total", "get"] >= _LARGE_BYTES
    assert found["workspacefs_store_request_seconds_count", "get"] >= 2
    assert SECRET_KEY not in text


def test_prometheus_reads_figures_from_a_socket(far: FarMachine) -> None:
    """Which only this account can open; a relative path is one of the caller's."""
    place = far.directory / "metrics.sock"
    far.mount_at("m", "--metrics", str(place))

    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(place))
    status, text = scrape(connection)

    assert status == 200
    assert ("workspacefs_inodes", "") in samples_of(text)
    assert place.stat().st_mode & 0o777 == 0o600


def test_place_for_metrics_is_checked(far: FarMachine) -> None:
    """What is no port of this machine, or is taken, is refused, and nothing stays mounted."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for place, code in [
            ("x", ExitCode.USAGE),
            ("70000", ExitCode.USAGE),
            ("192.0.2.1:9000", ExitCode.USAGE),
            (port, ExitCode.EXISTS_OR_BUSY),
        ]:
            error = far.error(
                *("mount", far.url, far.directory / "m", "--mkdir", "--metrics", place), code=code
            )
            assert error["kind"] in ("usage.metrics", "metrics.port"), place
            assert not (far.directory / "m").exists()


def test_early_upload_can_be_left_out(far: FarMachine) -> None:
    """Both spellings mount; the effect is tested where time can be turned."""
    for number, flag in enumerate(("--no-early-upload", "--early-upload")):
        mount = far.mount_at(f"m{number}", flag)
        (mount.path / "a").write_text("x")
        assert mount.commit()["is_new"] is True


def test_mount_takes_its_endpoint_from_anywhere(far: FarMachine) -> None:
    """By flag, environment or URL; the mount's own commands need none of them again."""
    by_flag = far.mount_at("one", "--endpoint-url", far.proxy.url, url=far.bare)
    far.extra["AWS_ENDPOINT_URL"] = far.proxy.url
    by_environment = far.mount_at("two", url=far.bare)
    del far.extra["AWS_ENDPOINT_URL"]

    (by_flag.path / "a").write_text("x")

    assert by_flag.document["store_url"] == by_environment.document["store_url"] == far.url
    assert by_flag.commit()["is_new"] is True
    assert len(far.json("log", by_flag.path)["commits"]) == 2


def test_flags_for_s3_are_refused_with_a_directory(machine: Machine) -> None:
    """They would do nothing."""
    document = machine.json(
        *("mount", machine.store, machine.directory / "m", "--region", "eu-west-1"),
        code=ExitCode.USAGE,
    )

    assert document["error"]["kind"] == "usage.store_flags"  # type: ignore[index]


def test_wrong_keys_do_not_mount(far: FarMachine) -> None:
    """It says what is missing; with the right ones the next mount works, nothing in its way."""
    words = ("mount", far.url, far.directory / "m", "--mkdir")
    far.extra = {"AWS_ACCESS_KEY_ID": "AKIDWRONG"}
    wrong = far.error(*words, code=ExitCode.UNAVAILABLE)
    far.extra = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    none = far.error(*words, code=ExitCode.UNAVAILABLE)
    far.extra = {}

    mount = far.mount_at("m")

    assert wrong["kind"] == none["kind"] == "store.credentials"
    assert "AWS_ACCESS_KEY_ID" in none["message"]
    assert len(os.listdir(mount.path)) == 3


def test_mount_goes_on_with_new_keys(far: FarMachine) -> None:
    """As before keys expire; those that the store does not take are told, and can be replaced."""
    mount = far.mount_at("m", "--prefetch", "none")
    words = ("credentials", mount.path)
    far.extra = {"AWS_ACCESS_KEY_ID": "AKIDWRONG"}
    wrong = far.error(*words, code=ExitCode.UNAVAILABLE)
    refused = far.json("status", mount.path)["store"]
    far.extra = {}

    far.run(*words)

    assert wrong["kind"] == "store.credentials"
    assert refused["state"] == "away"
    assert "InvalidAccessKeyId" in refused["reason"]
    assert far.json("status", mount.path)["store"]["state"] == "ok"
    assert len((mount.path / "large").read_bytes()) == _LARGE_BYTES


def test_near_mount_takes_no_keys(machine: Machine, mount: Mount) -> None:
    """There is nothing that they would be for."""
    error = machine.json("credentials", mount.path, code=ExitCode.REFUSED)["error"]

    assert error["kind"] == "store.local"  # type: ignore[index]


def test_mount_of_what_is_not_there(far: FarMachine) -> None:
    """No bucket, no workspace in it, no such profile: each has its kind, and nothing is left."""
    place = far.directory / "m"
    endpoint = f"?endpoint_url={far.proxy.url}"
    bucket = far.error(
        *("mount", f"s3://no-such-bucket/p{endpoint}", place, "--mkdir"), code=ExitCode.NOT_FOUND
    )
    workspace = far.error(
        *("mount", f"{far.bare}-other{endpoint}", place, "--mkdir"), code=ExitCode.NOT_FOUND
    )
    profile = far.error(
        *("mount", far.url, place, "--mkdir", "--profile", "nobody"), code=ExitCode.USAGE
    )

    assert bucket["kind"] == "store.no_bucket"
    assert workspace["kind"] == "workspace.absent"
    assert profile["kind"] == "store.profile"
    assert not place.exists()


@pytest.mark.parametrize(
    "url",
    [
        f"s3://AKID:{SECRET_KEY}@bucket/prefix",
        f"s3://bucket/prefix?secret_access_key={SECRET_KEY}",
        f"s3://bucket/prefix?endpoint_url=https://AKID:{SECRET_KEY}@host",
    ],
)
@pytest.mark.parametrize("command", ["mount", "init", "cache"])
def test_secrets_in_a_url_are_refused_and_not_repeated(
    far: FarMachine, url: str, command: str
) -> None:
    """Neither in text nor in JSON; they would end up in logs and lists of processes."""
    words: dict[str, tuple[str | Path, ...]] = {
        "mount": ("mount", url, far.directory / "m"),
        "init": ("init", url),
        "cache": ("cache", "clear", url),
    }

    assert far.error(*words[command], code=ExitCode.USAGE)["kind"] == "store.url"
    assert b"credentials" in far.start(*words[command]).stderr


def test_secrets_stay_in_memory(far: FarMachine) -> None:
    """Not in the state directory, in arguments or the environment of daemons, nor in commits."""
    mount = far.mount_at("m")
    (mount.path / "a").write_text("x")
    mount.commit()
    secret = SECRET_KEY.encode()
    pids = {far.supervisor_pid(), mount.pid, int(far.stats(mount)["transfer"]["pid"])}

    said = [
        path.read_bytes()
        for path in far.state_dir.rglob("*")
        if path.is_file() and not path.is_socket()
    ]
    shown = [
        Path(f"/proc/{pid}/{file}").read_bytes() for pid in pids for file in ("cmdline", "environ")
    ]

    assert len(pids) == 3
    assert not any(secret in data for data in said + shown)


def test_mount_while_the_store_is_away(far: FarMachine) -> None:
    """An error that names the server, soon enough; nothing stays mounted; later it works."""
    far.proxy.down()
    began = time.monotonic()

    error = far.error(
        *("mount", far.url, far.directory / "m", "--mkdir", "--store-timeout", "1"),
        code=ExitCode.UNAVAILABLE,
    )

    waited_s = time.monotonic() - began
    far.proxy.up()
    assert error["kind"] in ("store.away", "transfer.silent")
    assert waited_s < 60
    assert not (far.directory / "m").exists()
    assert far.mount_at("m").status() == {}


def test_progress_goes_to_standard_error(far: FarMachine, seaweedfs: Server) -> None:
    """Of import, prefetch, commit and export, when asked for; JSON stays one document."""
    (far.directory / "src").mkdir()
    (far.directory / "src" / "a").write_text("x")
    url = seaweedfs.new_store()
    far.run("init", url)
    mount = far.mount_at("m")
    (mount.path / "a").write_text("x")

    for words in (
        ("import", url, far.directory / "src", "-m", "x"),
        ("export", url, far.directory / "out"),
        ("prefetch", mount.path),
        ("commit", mount.path, "-m", "x"),
    ):
        done = far.start(*words, "--progress", "--json")
        if done.returncode != 0:
            raise CommandFailed(done.stderr.decode())
        assert isinstance(json.loads(done.stdout), dict)
        assert done.stderr != b"", words
