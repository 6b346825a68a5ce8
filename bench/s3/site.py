"""Everything that is far away: the server, the links to it, and what has been prepared for it."""

from __future__ import annotations

import statistics
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from bench.machine import remove_tree
from bench.processes import attempt
from bench.s3.link import Link
from bench.s3.network import Network
from bench.s3.server import SeaweedFs, exchange

_PROBES: Final = 10
_PROBE_BYTES: Final = 32_000_000


class Site:
    """The server of a run and the links to it."""

    def __init__(self, home: Path, network: Network) -> None:
        self.network = network
        self.server = SeaweedFs(home / "server")
        self._home = home

    def start(self) -> None:
        """Start the server."""
        self._home.mkdir(parents=True)
        self.server.start()

    def close(self) -> None:
        """End the server and remove its files."""
        attempt(self.server.close)
        remove_tree(self._home)

    def open_link(self, home: Path) -> Link:
        """Start a link for one system, with its files in `home`."""
        return Link(home, self.server.port)

    def describe(self) -> dict[str, object]:
        """Return what the link really is like: measured with one connection and nothing else."""
        bucket = self.server.new_bucket()
        self.server.request("PUT", f"/{bucket}/small", b"x")
        self.server.request("PUT", f"/{bucket}/large", bytes(_PROBE_BYTES))
        home = self._home / "probe"
        home.mkdir()
        link = self.open_link(home)
        try:
            link.set(delay_ms=self.network.delay_ms, bandwidth_mb=self.network.bandwidth_mb)
            host, port = urlsplit(link.endpoint).hostname, urlsplit(link.endpoint).port
            connection = HTTPConnection(host or "", port)
            times = [_time_of(connection, f"/{bucket}/small") for _ in range(_PROBES)]
            large_s = _time_of(connection, f"/{bucket}/large")
            connection.close()
        finally:
            link.close()
            self.server.remove_bucket(bucket)
        return {
            "server": f"SeaweedFS {self.server.version()}",
            "delay_ms": self.network.delay_ms,
            "bandwidth_mb": self.network.bandwidth_mb,
            "row_budget_s": self.network.row_budget_s,
            "get_ms": round(statistics.median(times[1:]) * 1000, 2),
            "get_mb_s": round(_PROBE_BYTES / 1e6 / large_s, 1),
        }


def _time_of(connection: HTTPConnection, path: str) -> float:
    begin = time.perf_counter()
    exchange(connection, "GET", path)
    return time.perf_counter() - begin
