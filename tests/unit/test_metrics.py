"""Figures for Prometheus: what is told of a mount, in text that its parser reads, to whom."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.servers import free_ports
from workspacefs.backend.stats import RequestStats, StoreHealth
from workspacefs.errors import BusyError, UsageError
from workspacefs.latency import BUCKETS_S, LatencyHistogram
from workspacefs_daemon.metrics import exposition, listen_metrics, serve_metrics


def stats_of(transfer: Mapping[str, object] | None) -> dict[str, object]:
    """Return an answer of the operation "stats", as it comes over the control socket."""
    waits = LatencyHistogram()
    waits.add(0.003)
    waits.add(100.0)
    stats = {
        "session": 'odd "name"\n',
        "fuse": {
            "messages": {"lookup": 3, "read": 2},
            "inodes": 5,
            "load_waits": waits.document(),
            "bucket_bounds_s": list(BUCKETS_S),
        },
        "reads": None if transfer is None else {"near": 7, "far": 1, "far_bytes": 10},
        "transfer": transfer,
    }
    found = json.loads(json.dumps(stats))
    assert isinstance(found, dict)
    return found


def transfer_figures(*, failures: int = 0) -> dict[str, object]:
    requests, health = RequestStats(), StoreHealth()
    requests.count("get", seconds=0.03, bytes_in=100)
    requests.count("put_if", seconds=0.05, bytes_out=20, is_error=True)
    for _ in range(failures):
        health.note_failure("no connection")
    return {
        "store": health.document(),
        "requests": requests.document(),
        "fetches": {"hits": 4, "misses": 3, "joined": 1, "demand_bytes": 100, "ahead_bytes": 50},
        "queue": {"queued": 2, "under_way": 1, "waiting": 0},
        "cache": {"directory": "/c", "limit_bytes": 1 << 30, "evicted_bytes": 0},
    }


def samples_of(text: bytes) -> dict[str, float]:
    """Return the value of each sample, by name and labels as they are written."""
    return {
        sample.name
        + "".join(f"{{{name}={value}}}" for name, value in sorted(sample.labels.items())): float(
            sample.value
        )
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_near_mount_tells_of_the_kernel_only() -> None:
    """Requests, inodes and waits."""
    found = samples_of(exposition(stats_of(None)))

    assert found["workspacefs_fuse_operations_total{op=lookup}"] == 3
    assert found["workspacefs_inodes"] == 5
    assert found["workspacefs_load_wait_seconds_count"] == 2
    assert not [name for name in found if "store" in name or "cache" in name]


def test_buckets_are_cumulative_and_end_with_all() -> None:
    """As the format wants them, however the figures come."""
    found = samples_of(exposition(stats_of(None)))

    buckets = [value for name, value in found.items() if "load_wait_seconds_bucket" in name]
    assert len(buckets) == len(BUCKETS_S) + 1
    assert buckets == sorted(buckets)
    assert found["workspacefs_load_wait_seconds_bucket{le=+Inf}"] == 2
    assert found["workspacefs_load_wait_seconds_sum"] == pytest.approx(100.003)
    assert buckets[-2] == 1


def test_far_mount_tells_of_its_store() -> None:
    """Requests by operation, cache, queue, and that the store answers."""
    found = samples_of(exposition(stats_of(transfer_figures())))

    assert found["workspacefs_store_up"] == 1
    assert found["workspacefs_store_requests_total{operation=get}"] == 1
    assert found["workspacefs_store_errors_total{operation=put_if}"] == 1
    assert found["workspacefs_store_bytes_out_total{operation=put_if}"] == 20
    assert found["workspacefs_store_request_seconds_count{operation=get}"] == 1
    assert found["workspacefs_store_request_seconds_bucket{le=+Inf}{operation=list}"] == 0
    assert found["workspacefs_reads_total{where=near}"] == 7
    assert found["workspacefs_cache_reads_total{result=misses}"] == 3
    assert found["workspacefs_fetched_bytes_total{why=ahead}"] == 50
    assert found["workspacefs_queue{state=queued}"] == 2
    assert found["workspacefs_cache_limit_bytes"] == 1 << 30


def test_store_that_is_away_is_down() -> None:
    """After two failures in a row."""
    found = samples_of(exposition(stats_of(transfer_figures(failures=2))))

    assert found["workspacefs_store_up"] == 0


def test_transfer_process_that_does_not_answer_takes_nothing_away() -> None:
    """The mount's own figures come all the same."""
    found = samples_of(exposition(stats_of({"error": "the transfer process does not answer"})))

    assert found["workspacefs_fuse_operations_total{op=read}"] == 2
    assert "workspacefs_store_up" not in found


@pytest.mark.parametrize(
    "place", ["", "x", "0", "65536", "-1", "192.0.2.1:80", "[::1]:80", "1:2:3"]
)
def test_place_that_is_none_is_refused(place: str) -> None:
    """Never an address that other machines reach."""
    with pytest.raises(UsageError):
        listen_metrics(place)


@pytest.mark.parametrize("form", ["{}", ":{}", "127.0.0.1:{}", "localhost:{}"])
def test_port_is_one_of_loopback(form: str) -> None:
    """However it is written."""
    (port,) = free_ports(1)

    with listen_metrics(form.format(port)) as listener:
        assert listener.getsockname() == ("127.0.0.1", port)


def test_port_that_is_taken_is_told() -> None:
    """It is somebody else's."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(BusyError):
        listen_metrics(str(taken.getsockname()[1]))


def test_socket_is_private(tmp_path: Path) -> None:
    """Mode 0600; one that a dead process left is replaced."""
    place = tmp_path / "metrics.sock"
    listen_metrics(str(place)).close()

    with listen_metrics(str(place)):
        assert place.stat().st_mode & 0o777 == 0o600


async def _asked(request: bytes) -> tuple[str, bytes]:
    """Serve once and return status line and body."""
    listener = listen_metrics(str(free_ports(1)[0]))
    port = listener.getsockname()[1]

    async def collect() -> Mapping[str, object]:
        return stats_of(None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_metrics, listener, collect)
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(request)
            answer = b"".join([data async for data in stream])
        nursery.cancel_scope.cancel()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0].decode(), body


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /metrics HTTP/1.1", 200),
        ("GET /metrics?x=1 HTTP/1.0", 200),
        ("GET / HTTP/1.1", 200),
        ("GET /other HTTP/1.1", 404),
        ("POST /metrics HTTP/1.1", 405),
        ("nonsense", 405),
    ],
)
def test_requests_get_their_status(request_line: str, status: int) -> None:
    """Only GET, only the figures."""
    line, body = trio.run(_asked, f"{request_line}\r\nHost: x\r\n\r\n".encode())

    assert line.split()[1] == str(status)
    assert (b"workspacefs_inodes" in body) == (status == 200)


def test_head_has_no_body() -> None:
    """But the length that it would have."""
    line, body = trio.run(_asked, b"HEAD /metrics HTTP/1.1\r\n\r\n")

    assert (line.split()[1], body) == ("200", b"")


def test_who_hangs_up_or_floods_harms_nobody(tmp_path: Path) -> None:
    """The next one is answered."""

    async def main() -> bytes:
        place = os.fspath(tmp_path / "s")
        listener = listen_metrics(place)

        async def collect() -> Mapping[str, object]:
            return stats_of(None)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_metrics, listener, collect)
            for rubbish in (b"", b"GET", b"x" * 200_000):
                stream = await trio.open_unix_socket(place)
                async with stream:
                    try:
                        await stream.send_all(rubbish)
                    except trio.BrokenResourceError:
                        pass
            stream = await trio.open_unix_socket(place)
            async with stream:
                await stream.send_all(b"GET /metrics HTTP/1.1\r\n\r\n")
                answer = b"".join([data async for data in stream])
            nursery.cancel_scope.cancel()
        return answer

    assert b"200 OK" in trio.run(main)
