"""Figures of a mount for Prometheus, in its text format, on a loopback port or a Unix socket.

Only started when a mount asks for it; prometheus_client is imported no sooner.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

import trio

from workspacefs.errors import BusyError, UsageError
from workspacefs.protocol.sockets import listen_unix

log = logging.getLogger(__name__)

Collect = Callable[[], Awaitable[Mapping[str, object]]]

_REQUEST_MAX_BYTES: Final = 64 * 1024
_TIMEOUT_S: Final = 10.0
_CONNECTIONS_MAX: Final = 16


def listen_metrics(where: str) -> socket.socket:
    """Return the listener for `where`: a port of 127.0.0.1, or the path of a socket.

    Raises:
        UsageError: It is neither.
        BusyError: Somebody else listens there.
    """
    if "/" in where:
        return listen_unix(os.path.abspath(where))
    try:
        port = int(where.rpartition(":")[2])
        if not 0 < port < 1 << 16 or where.rpartition(":")[0] not in ("", "127.0.0.1", "localhost"):
            raise ValueError
    except ValueError as exc:
        raise UsageError(
            f"--metrics takes a port of this machine or the path of a socket, not {where!r}",
            kind="usage.metrics",
        ) from exc
    try:
        return socket.create_server(("127.0.0.1", port), reuse_port=False)
    except OSError as exc:
        raise BusyError(
            f"port {port} for --metrics cannot be used: {exc.strerror}", kind="metrics.port"
        ) from exc


async def serve_metrics(listener: socket.socket, collect: Collect) -> None:
    """Answer GET /metrics until cancelled."""
    slots = trio.Semaphore(_CONNECTIONS_MAX)
    with trio.socket.from_stdlib_socket(listener) as accepting:
        async with trio.open_nursery() as nursery:
            while True:
                await slots.acquire()
                connection, _ = await accepting.accept()
                nursery.start_soon(_answer, connection, collect, slots)


async def _answer(
    connection: trio.socket.SocketType, collect: Collect, slots: trio.Semaphore
) -> None:
    try:
        async with trio.SocketStream(connection) as stream:
            with trio.move_on_after(_TIMEOUT_S):
                asked = b""
                while b"\r\n\r\n" not in asked and len(asked) < _REQUEST_MAX_BYTES:
                    data = await stream.receive_some(4096)
                    if not data:
                        return
                    asked += data
                await stream.send_all(await _response(asked, collect))
    except trio.BrokenResourceError:
        log.info("metrics.hung_up")
    except Exception:  # the root of a connection: its end must not be the mount's
        log.exception("metrics.bug")
    finally:
        slots.release()


async def _response(asked: bytes, collect: Collect) -> bytes:
    words = asked.split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3 or words[0] not in (b"GET", b"HEAD"):
        return _http("405 Method Not Allowed", b"only GET\n", is_body=True)
    if words[1].split(b"?")[0] not in (b"/metrics", b"/"):
        return _http("404 Not Found", b"see /metrics\n", is_body=True)
    body = exposition(await collect())
    return _http("200 OK", body, is_body=words[0] == b"GET")


def _http(status: str, body: bytes, *, is_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + (body if is_body else b"")


def exposition(stats: Mapping[str, object]) -> bytes:
    """Return the answer of the control operation "stats" in Prometheus' text format.

    Source: Prometheus documentation, "Exposition formats", text-based format 0.0.4.
    """
    client = importlib.import_module("prometheus_client")
    core = importlib.import_module("prometheus_client.core")
    registry = client.CollectorRegistry(auto_describe=False)

    class Collector:
        def collect(self) -> Iterator[object]:
            yield from _families(stats, core)

    registry.register(Collector())
    text: bytes = client.generate_latest(registry)
    return text


def _families(stats: Mapping[str, object], core: Any) -> Iterator[object]:
    fuse = _map(stats.get("fuse"))
    operations = core.CounterMetricFamily(
        "workspacefs_fuse_operations", "Requests of the kernel", labels=["op"]
    )
    for op, count in _map(fuse.get("messages")).items():
        operations.add_metric([op], count)
    yield operations
    yield core.GaugeMetricFamily(
        "workspacefs_inodes", "Inodes that the kernel holds", value=fuse.get("inodes")
    )
    waits = core.HistogramMetricFamily(
        "workspacefs_load_wait_seconds", "Waits of file operations for a store or disk", labels=[]
    )
    _add_histogram(waits, [], _map(fuse.get("load_waits")), fuse.get("bucket_bounds_s"))
    yield waits
    reads = _map(stats.get("reads"))
    if reads:
        found = core.CounterMetricFamily(
            "workspacefs_reads", "Ranges of the store that were read", labels=["where"]
        )
        found.add_metric(["near"], reads.get("near"))
        found.add_metric(["far"], reads.get("far"))
        yield found
    transfer = _map(stats.get("transfer"))
    if "requests" in transfer:
        yield from _transfer_families(transfer, core)


def _transfer_families(transfer: Mapping[str, Any], core: Any) -> Iterator[object]:
    requests = _map(transfer.get("requests"))
    counters = {
        member: core.CounterMetricFamily(f"workspacefs_store_{member}", text, labels=["operation"])
        for member, text in (
            ("requests", "Requests to the store"),
            ("errors", "Requests to the store that failed"),
            ("retries", "Requests to the store that were sent again"),
            ("bytes_in", "Bytes of values received from the store"),
            ("bytes_out", "Bytes of values sent to the store"),
        )
    }
    seconds = core.HistogramMetricFamily(
        "workspacefs_store_request_seconds", "Time until the store answered", labels=["operation"]
    )
    for operation, counts in _map(requests.get("operations")).items():
        for member, family in counters.items():
            family.add_metric([operation], counts[member])
        _add_histogram(seconds, [operation], counts["latency"], requests.get("bucket_bounds_s"))
    yield from counters.values()
    yield seconds
    is_up = _map(transfer.get("store")).get("state") == "ok"
    yield core.GaugeMetricFamily("workspacefs_store_up", "Whether it answers", value=int(is_up))
    fetches = _map(transfer.get("fetches"))
    results = core.CounterMetricFamily(
        "workspacefs_cache_reads", "Reads through the transfer process", labels=["result"]
    )
    for member in ("hits", "misses", "joined"):
        results.add_metric([member], fetches.get(member, 0))
    yield results
    fetched = core.CounterMetricFamily(
        "workspacefs_fetched_bytes", "Bytes fetched into the cache", labels=["why"]
    )
    fetched.add_metric(["demand"], fetches.get("demand_bytes", 0))
    fetched.add_metric(["ahead"], fetches.get("ahead_bytes", 0))
    yield fetched
    queue = core.GaugeMetricFamily("workspacefs_queue", "Ranges to be fetched", labels=["state"])
    for state, count in _map(transfer.get("queue")).items():
        queue.add_metric([state], count)
    yield queue
    cache = _map(transfer.get("cache"))
    yield core.GaugeMetricFamily(
        "workspacefs_cache_limit_bytes", "How large it may grow", value=cache.get("limit_bytes")
    )
    yield core.CounterMetricFamily(
        "workspacefs_cache_evicted_bytes", "Evicted so far", value=cache.get("evicted_bytes")
    )


def _add_histogram(family: Any, labels: list[str], found: Mapping[str, Any], bounds: Any) -> None:
    total, buckets = 0, []
    for bound, count in zip([*bounds, float("inf")], found["buckets"], strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), total))
    family.add_metric(labels, buckets=buckets, sum_value=found["sum_s"])


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
