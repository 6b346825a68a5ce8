"""Mounts of stores on an S3 server, by way of a proxy that goes wrong to order."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from mypy_boto3_s3.client import S3Client

from tests.harness import Machine, Mount
from tests.servers import Server
from workspacefs.testing.proxy import Action, FaultProxy, RequestInfo, Rule

SOON_S: Final = 1.5
"""For mounts whose programs shall get an error after so long."""
PATIENCE_S: Final = 20.0
Match = Callable[[RequestInfo], bool]


class S3Machine(Machine):
    """One machine of a user, and the bucket that its store is in.

    `variables` are set for its commands, besides those that give access.
    """

    def __init__(self, directory: Path, server: Server, proxy: FaultProxy, url: str) -> None:
        super().__init__(directory)
        directory.mkdir(exist_ok=True)
        self.store = url  # type: ignore[assignment]  # it is used as a word of commands only
        self.server = server
        self.proxy = proxy
        self.variables: dict[str, str] = {}
        self._beside: list[S3Machine] = []
        self._steals = False
        self._rules: list[Rule] = []
        self._client: S3Client | None = None

    def environ(self) -> dict[str, str]:
        """Return the environment of commands: keys for this store and no others."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return {**clean, **self.server.environ(), **self.own_environ(), **self.variables}

    def beside(self, name: str = "other") -> S3Machine:
        """Return another machine, with nothing on its disk, that uses the same store. It takes
        sessions over.
        """
        made = S3Machine(self.directory / name, self.server, self.proxy, str(self.store))
        made._steals = True
        self._beside.append(made)
        return made

    def mount(self, name: str = "m", *, session: str | None = "s", **flags: str | bool) -> Mount:
        """Mount as any machine does, without autosave: tests count requests."""
        ours: dict[str, str | bool] = {"autosave": "off"}
        if self._steals:
            ours["steal"] = True
        return super().mount(name, session=session, **{**ours, **flags})

    def resume(self, session: str = "s", *flags: str) -> Mount:
        """Resume as any machine does, without autosave."""
        return super().resume(session, "--autosave", "off", *flags)

    def close(self) -> None:
        """Take every mount away; every fault that was asked for must have happened."""
        self.proxy.up()
        never = self.calm()
        for machine in self._beside:
            machine.close()
        super().close()
        assert not never, f"faults that never happened: {never}"

    # -- faults ------------------------------------------------------------------------------

    def fault(
        self,
        action: Action,
        match: Match = lambda info: True,
        *,
        nth: int | set[int] | None = None,
        times: int | None = None,
    ) -> Rule:
        """Let requests go wrong; at the end each fault must have happened."""
        rule = self.proxy.add(Rule(match=match, action=action, nth=nth, times=times))
        self._rules.append(rule)
        return rule

    def calm(self) -> list[Rule]:
        """Let all go well from here on; return the faults that never happened."""
        rules, self._rules = self._rules, []
        for rule in rules:
            self.proxy.remove(rule)
        return [rule for rule in rules if rule.fired == 0]

    # -- what lies in the bucket, past everything under test -----------------------------------

    @property
    def client(self) -> S3Client:
        """A client of one's own."""
        if self._client is None:
            self._client = self.server.client()
        return self._client

    @property
    def prefix(self) -> str:
        """What all names of this store begin with."""
        return urlsplit(str(self.store)).path.strip("/") + "/"

    def stored(self, prefix: str = "") -> list[str]:
        """Return the keys of the store, in order."""
        found = self.client.list_objects_v2(Bucket=self.server.bucket, Prefix=self.prefix + prefix)
        return [one["Key"].removeprefix(self.prefix) for one in found.get("Contents", [])]

    def load(self, key: str) -> bytes:
        """Return a stored value."""
        answer = self.client.get_object(Bucket=self.server.bucket, Key=self.prefix + key)
        return answer["Body"].read()

    def save(self, key: str, value: bytes) -> None:
        """Replace a stored value."""
        self.client.put_object(Bucket=self.server.bucket, Key=self.prefix + key, Body=value)

    def remove(self, key: str) -> None:
        """Delete a stored value."""
        self.client.delete_object(Bucket=self.server.bucket, Key=self.prefix + key)

    # -- this machine --------------------------------------------------------------------------

    def transfer_pids(self) -> list[int]:
        """Return the transfer processes that serve a store."""
        return [pid for pid in _children(self.supervisor_pid()) if _name_of(pid) == "wsfs-transfer"]

    def clear_cache(self) -> None:
        """Delete all that was fetched, and what is in memory of the transfer process."""
        for path in self.state_dir.glob("cache/*/values/*"):
            path.unlink()

    def log_lines(self) -> list[dict[str, object]]:
        """Return all events that the daemons logged."""
        lines: list[dict[str, object]] = []
        for path in sorted((self.state_dir / "log").glob("workspacefsd.*")):
            lines += [json.loads(line) for line in path.read_text().splitlines() if line[:1] == "{"]
        return lines


@contextmanager
def s3_machine(directory: Path, server: Server) -> Iterator[S3Machine]:
    """Make a machine with an empty workspace behind a proxy of its own."""
    parts = urlsplit(server.url)
    assert parts.hostname is not None
    assert parts.port is not None
    with FaultProxy(parts.hostname, parts.port) as proxy:
        machine = S3Machine(directory, server, proxy, server.new_store(endpoint=proxy.url))
        try:
            machine.init()
            yield machine
        finally:
            machine.close()


def requests_to(
    *methods: str, key: str = "", conditional: bool | None = None
) -> Callable[[RequestInfo], bool]:
    """Match requests by method, what their path contains, and whether they have conditions."""

    def matches(info: RequestInfo) -> bool:
        has_condition = any(name in info.headers for name in ("if-match", "if-none-match"))
        return (
            (not methods or info.method in methods)
            and key in info.path
            and conditional in (None, has_condition)
        )

    return matches


def wait_until(is_so: Callable[[], object]) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def kill_all(pids: list[int]) -> None:
    """kill -9 processes at once."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            state, ppid = stat.rpartition(")")[2].split()[:2]
            if int(ppid) == parent and state != "Z":
                found.append(int(entry.name))
    return found


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
