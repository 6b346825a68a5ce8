"""The proxy as a process of its own: `python -m workspacefs.testing.proxy --help`."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Final

from workspacefs.testing.proxy.server import FaultProxy

_MB: Final = 1e6
_MS: Final = 1e-3


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM or SIGINT, or, with --control, until the standard input ends."""
    options = _parser().parse_args(arguments)
    host, _, port = options.upstream.rpartition(":")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    proxy = FaultProxy(
        host,
        int(port),
        delay_s=options.delay_ms * _MS,
        connect_delay=options.connect_delay,
        continue_delay=options.continue_delay,
        bandwidth_bytes_per_s=_bandwidth(options.bandwidth_mb),
        port=options.port,
        log_path=options.log,
    )
    with proxy:
        _tell_port(options.port_file, proxy.port)
        if options.control:
            for line in sys.stdin:
                _obey(proxy, line.split())
        else:
            while True:
                signal.pause()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m workspacefs.testing.proxy",
        description="Pass HTTP on to one server, later and slower.",
    )
    parser.add_argument("--upstream", required=True, metavar="HOST:PORT")
    parser.add_argument("--port", type=int, default=0, help="to listen on; default: a free one")
    parser.add_argument("--port-file", type=Path, help="gets the port, once it listens")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="that each request waits")
    parser.add_argument(
        "--connect-delay", action="store_true", help="a new connection costs the delay too"
    )
    parser.add_argument(
        "--continue-delay", action="store_true", help='"100 Continue" costs the delay too'
    )
    parser.add_argument("--bandwidth-mb", type=float, help="MB a second, each way; 0: no limit")
    parser.add_argument("--log", type=Path, help="file for a JSON line a request")
    parser.add_argument(
        "--control",
        action="store_true",
        help="obey lines of the standard input: delay-ms N, bandwidth-mb N, down, up, cut; "
        'each is answered with "ok"; end with it',
    )
    return parser


def _obey(proxy: FaultProxy, words: list[str]) -> None:
    match words:
        case ["delay-ms", number]:
            proxy.delay_s = float(number) * _MS
        case ["bandwidth-mb", number]:
            proxy.bandwidth_bytes_per_s = _bandwidth(float(number))
        case ["down"]:
            proxy.down()
        case ["up"]:
            proxy.up()
        case ["cut"]:
            proxy.cut()
        case _:
            raise SystemExit(f"no such order: {' '.join(words)}")
    sys.stdout.write("ok\n")
    sys.stdout.flush()


def _bandwidth(megabytes: float | None) -> float | None:
    return megabytes * _MB if megabytes else None


def _tell_port(path: Path | None, port: int) -> None:
    if path is not None:
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(f"{port}\n")
        temporary.replace(path)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
