"""The systems with their store behind a link: workspacefs, JuiceFS, and a local directory as floor.

Beside mounting, each can take over a local directory in the way that suits it best, and be put
on a machine that has never seen it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.failures import BenchError
from bench.machine import is_mounted
from bench.processes import attempt, find_by_arguments, run_tool
from bench.s3.link import Link
from bench.s3.packs import DataBytes
from bench.s3.site import Site
from bench.s3.traffic import Traffic, count_traffic
from bench.s3.uploads import iter_values, upload_all
from bench.synthetic import SyntheticWorkspace
from bench.systems import JuiceFs, Plain, System, WorkspaceFs, detach, end_processes
from workspacefs.backend.open import open_backend
from workspacefs.client.registry import load_sessions
from workspacefs.errors import WorkspaceError
from workspacefs.statedir import StateDir
from workspacefs.testing.proxy import RequestInfo

_PREFIX: Final = "store"
_STOP_TIMEOUT_S: Final = 60.0


class S3System(System):
    """One system whose store is in a bucket of its own, behind a link of its own."""

    def __init__(self, home: Path, site: Callable[[], Site]) -> None:
        super().__init__(home)
        self._find_site = site
        self.site: Site
        self.link: Link | None = None
        self.bucket = ""

    def create(self) -> None:
        """Make the bucket and the link; then what the system itself needs."""
        self.site = self._find_site()
        self.home.mkdir(parents=True)
        self.bucket = self.site.server.new_bucket()
        self.link = self.site.open_link(self.home)
        self.environ = self.site.server.environ
        super().create()

    @property
    def endpoint(self) -> str:
        """The store as the system sees it."""
        assert self.link is not None
        return self.link.endpoint

    def calm(self) -> None:
        """Let requests pass without delay: for all that is not timed."""
        if self.link is not None:
            self.link.calm()

    def slow_down(self, delay_ms: float) -> None:
        """Let the link be as it is to be measured."""
        if self.link is not None:
            self.link.set(delay_ms=delay_ms, bandwidth_mb=self.site.network.bandwidth_mb)

    def rest(self) -> None:
        """Let a mount finish what it still does about its cache after reading."""
        return

    def ensure_unmounted(self) -> None:
        """Unmount, if it is mounted; by force, if nothing else helps."""
        if self.is_mounted() and attempt(self.unmount) is not None:
            end_processes(self.pids())
            detach(self.mountpoint)

    @abstractmethod
    def put_directory(self, source: Path) -> None:
        """Make the content of a local directory what a mount shows; it is not mounted meanwhile."""

    @abstractmethod
    def put_synthetic(self, tree: SyntheticWorkspace) -> None:
        """Make a generated tree what a mount shows."""

    def prepare_import(self) -> None:
        """Make what an import needs, and what is not part of it."""
        return

    @abstractmethod
    def import_directory(self, source: Path, timeout_s: float) -> None:
        """Bring a local directory to the store with the system's own tool for it; is timed."""

    def traffic_mark(self) -> int:
        return 0 if self.link is None else self.link.mark()

    def traffic_since(self, mark: int) -> Traffic | None:
        if self.link is None:
            return None
        found = self.link.since(mark)
        return count_traffic(found, self.data_bytes(found))

    def data_bytes(self, requests: list[RequestInfo]) -> int | None:
        """Return how much of what was read is content of files; None: it was not told apart."""
        return None

    def stored_bytes(self) -> int:
        return self.site.server.stored_bytes(self.bucket)

    @property
    def prepare_budget_s(self) -> float:
        """How long one step of a preparation may take."""
        return self.site.network.prepare_budget_s

    def _closing_steps(self) -> list[Callable[[], object]]:
        steps: list[Callable[[], object]] = [self.calm, *super()._closing_steps()]
        if self.link is not None:
            steps += [self.link.close, lambda: self.site.server.remove_bucket(self.bucket)]
        return steps


class S3Plain(S3System, Plain):
    """A directory of the local disk: what the same work costs without any store."""

    def create(self) -> None:
        self.site = self._find_site()
        System.create(self)

    def put_directory(self, source: Path) -> None:
        self.import_directory(source, self.prepare_budget_s)

    def put_synthetic(self, tree: SyntheticWorkspace) -> None:
        raise BenchError("generated trees are for far stores")

    def import_directory(self, source: Path, timeout_s: float) -> None:
        run_tool(["cp", "-a", f"{source}/.", self.mountpoint], timeout_s=timeout_s)

    def stored_bytes(self) -> int:
        return Plain.stored_bytes(self)


class S3WorkspaceFs(S3System, WorkspaceFs):
    """A session of a workspace in the bucket."""

    def __init__(self, home: Path, site: Callable[[], Site]) -> None:
        super().__init__(home, site)
        self._machines = 0
        self._has_workspace = False
        self._data_bytes: DataBytes | None = None

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{_PREFIX}?endpoint_url={self.endpoint}"

    def create(self) -> None:
        # The workspace comes with what is put there: a generated one is not made by init.
        self.site = self._find_site()
        self.home.mkdir(parents=True)
        self.bucket = self.site.server.new_bucket()
        self.link = self.site.open_link(self.home)
        self.environ = self.site.server.environ
        self._data_bytes = DataBytes(self.site.server, f"{self.bucket}/{_PREFIX}")
        System.create(self)

    def empty_caches(self) -> None:
        """Forget everything local: the next mount is on a machine without supervisor and cache."""
        if Path(self.state.supervisor_lock).exists():
            attempt(self.stop_supervisor)
        end_processes(self.pids())
        # Names below the old one are of no use to anybody who still runs.
        self._machines += 1
        self.state = StateDir(str(self.home / f"state{self._machines}"))
        self.begin_session(f"machine{self._machines}")

    def pids(self) -> list[int]:
        # Of the supervisor, everything forked from it, and commands that run.
        return find_by_arguments(self.state.root)

    def prepare_import(self) -> None:
        if not self._has_workspace:
            self.command("init", self.url)
            self._has_workspace = True

    def put_directory(self, source: Path) -> None:
        self.prepare_import()
        self.import_directory(source, self.prepare_budget_s)

    def put_synthetic(self, tree: SyntheticWorkspace) -> None:
        local = self.home / "generated"
        self.command("init", str(local))
        tree.publish(local)
        values = iter_values(open_backend(str(local)), _PREFIX)
        upload_all(self.site.server, self.bucket, values, self.prepare_budget_s)
        self._has_workspace = True

    def import_directory(self, source: Path, timeout_s: float) -> None:
        self.command("import", self.url, str(source), "-m", "bench", timeout_s=timeout_s)

    def settle(self) -> None:
        # Where the sessions of other machines begin.
        words = ("-m", "bench", "--into", "main")
        self.command("commit", str(self.mountpoint), *words, timeout_s=self.prepare_budget_s)

    def data_bytes(self, requests: list[RequestInfo]) -> int | None:
        assert self._data_bytes is not None
        try:
            return self._data_bytes.count(requests)
        except (BenchError, WorkspaceError, OSError):
            return None  # a count is no reason to lose a measurement

    def _closing_steps(self) -> list[Callable[[], object]]:
        machines = [StateDir(str(path)) for path in self.home.glob("state*")]
        pids = {s.pid for state in machines for s in load_sessions(state) if s.is_alive()}
        for state in machines:
            pids.update(find_by_arguments("workspacefs_daemon.app", state.root))
        return [*super()._closing_steps(), lambda: end_processes(sorted(pids))]


class S3JuiceFs(S3System, JuiceFs):
    """JuiceFS with its objects in the bucket; the metadata stay on the local disk, at no delay."""

    def _storage(self) -> tuple[str, ...]:
        self.environ = {
            "ACCESS_KEY": self.environ["AWS_ACCESS_KEY_ID"],
            "SECRET_KEY": self.environ["AWS_SECRET_ACCESS_KEY"],
        }
        return ("--storage", "s3", "--bucket", f"{self.endpoint}/{self.bucket}")

    def put_directory(self, source: Path) -> None:
        self.mount()
        self.import_directory(source, self.prepare_budget_s)
        self.settle()
        self.unmount()

    def put_synthetic(self, tree: SyntheticWorkspace) -> None:
        local = write_synthetic(self.home / "generated", tree)
        self.put_directory(local)

    def import_directory(self, source: Path, timeout_s: float) -> None:
        is_ours = not is_mounted(self.mountpoint)
        if is_ours:
            self.mount()
        run_tool(["cp", "-a", f"{source}/.", self.mountpoint], timeout_s=timeout_s)

    def settle(self) -> None:
        run_tool(["sync", "-f", self.mountpoint], timeout_s=self.prepare_budget_s)


def write_synthetic(target: Path, tree: SyntheticWorkspace) -> Path:
    """Write a generated tree to a local directory."""
    for index in range(tree.files):
        path = target / tree.path(index)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tree.content(index))
    return target
