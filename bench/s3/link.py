"""The way of one system to the store: a proxy of its own, so that requests are told apart."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from bench.failures import BenchError
from workspacefs.testing.proxy import RequestInfo, read_log

_START_TIMEOUT_S: Final = 20.0
_END_TIMEOUT_S: Final = 20.0
_NOTE_S: Final = 0.02
"""After an answer has left, until it stands in the log."""


class Link:
    """Begins without delay and limit: everything but timed stretches goes over a calm link."""

    def __init__(self, home: Path, upstream_port: int) -> None:
        self._log = home / "requests.jsonl"
        port_file = home / "proxy-port"
        # The log is there before the first mark.
        self._log.touch()
        with open(home / "proxy-errors", "wb") as errors:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "workspacefs.testing.proxy", "--control",
                    "--connect-delay", "--continue-delay",
                    "--upstream", f"127.0.0.1:{upstream_port}",
                    "--port-file", port_file, "--log", self._log,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )  # fmt: skip
        self.endpoint = f"http://127.0.0.1:{self._wait_for_port(port_file)}"

    def set(self, *, delay_ms: float, bandwidth_mb: float) -> None:
        """Let the link be as slow as this from now on; 0: no limit."""
        self._order(f"delay-ms {delay_ms}")
        self._order(f"bandwidth-mb {bandwidth_mb}")

    def calm(self) -> None:
        """Take delay and limit away."""
        self.set(delay_ms=0, bandwidth_mb=0)

    def mark(self) -> int:
        """Return where the notes stand now, for `since`."""
        return self._log.stat().st_size

    def since(self, mark: int) -> list[RequestInfo]:
        """Return the requests that ended since then."""
        time.sleep(_NOTE_S)
        return read_log(self._log, offset=mark)[0]

    def close(self) -> None:
        """End the proxy."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _order(self, line: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "ok\n":
            raise BenchError(f"the proxy does not obey {line!r}")

    def _wait_for_port(self, path: Path) -> int:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not path.exists():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise BenchError(f"the proxy does not start; see {path.with_name('proxy-errors')}")
            time.sleep(0.01)
        return int(path.read_text())
