"""The fault proxy: passes everything on as it is, except for what was ordered."""

from __future__ import annotations

import hashlib
import http.client
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from workspacefs.testing.proxy import (
    SLOW_DOWN,
    CorruptBody,
    CutBody,
    DropAnswer,
    FaultProxy,
    RequestInfo,
    Reset,
    Rule,
    SlowBody,
    Stall,
    Status,
    WrongBody,
    read_log,
    sequential_depth,
)

_TIMEOUT_S = 20.0
_MB = 1_000_000


class _Store(ThreadingHTTPServer):
    """Keeps what is PUT, and answers it."""

    daemon_threads = True
    request_queue_size = 128  # or the kernel lets some of many clients wait for a second

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.values: dict[str, bytes] = {"/key": b"0123456789"}
        self.puts: list[str] = []
        self.first_bytes = threading.Event()
        self.connections = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Store

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_GET(self) -> None:
        value = self.server.values.get(self.path.partition("?")[0])
        if "chunked" in self.path and value is not None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for at in range(0, len(value), 7):
                piece = value[at : at + 7]
                self.wfile.write(b"%x;ext=1\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\nX-Trailer: yes\r\n\r\n")
            return
        self.send_response(404 if value is None else 200)
        self.send_header("Content-Length", str(len(value or b"")))
        self.send_header("ETag", '"tag"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(value or b"")

    do_HEAD = do_GET  # noqa: N815  # the base class looks for it by this name

    def do_PUT(self) -> None:
        if "Content-Length" in self.headers:
            data = self._read(int(self.headers["Content-Length"]))
        else:
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        self.server.values[self.path] = data
        self.server.puts.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _read(self, size: int) -> bytes:
        pieces = []
        while size:
            piece = self.rfile.read(min(size, _MB))
            self.server.first_bytes.set()
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def store() -> Iterator[_Store]:
    with _Store() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(store: _Store) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", store.server_port) as found:
        yield found


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[http.client.HTTPConnection]:
    yield from _client(proxy)


def _client(proxy: FaultProxy) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=_TIMEOUT_S)
    yield connection
    connection.close()


def _get(client: http.client.HTTPConnection, path: str = "/key") -> tuple[int, bytes]:
    client.request("GET", path)
    answer = client.getresponse()
    return answer.status, answer.read()


def _any(info: RequestInfo) -> bool:
    return True


def _gets(info: RequestInfo) -> bool:
    return info.method == "GET"


def test_requests_share_a_connection(
    store: _Store, proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    """Keep-alive holds on both sides: one connection of the client is one of the store."""
    answers = [_get(client) for _ in range(5)]

    assert answers == [(200, b"0123456789")] * 5
    assert store.connections == 1


def test_requests_are_noted(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    """Method, path, query, status, times and sizes stand in the log when the answer is there."""
    client.request("PUT", "/new%20key", b"abc", {"Authorization": "secret", "X-Other": "1"})
    client.getresponse().read()
    _get(client, "/absent?list-type=2&prefix=")

    put, get = proxy.log
    assert (put.method, put.path, put.status, put.received_bytes) == ("PUT", "/new key", 200, 3)
    assert put.headers["x-other"] == "1"
    assert "authorization" not in put.headers
    assert (get.path, get.query, get.status) == ("/absent", {"list-type": "2", "prefix": ""}, 404)
    assert put.end_s is not None
    assert put.begin_s <= put.end_s <= get.begin_s


def test_head_has_no_body(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    """The length that HEAD tells is not waited for."""
    client.request("HEAD", "/key")
    answer = client.getresponse()

    assert (answer.getheader("Content-Length"), answer.read()) == ("10", b"")
    assert _get(client)[0] == 200


def test_chunked_bodies_pass(
    store: _Store, proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    """Chunks pass both ways, trailers included, and the connection can be used again."""
    data = bytes(range(256)) * 100

    client.request("PUT", "/chunks", iter([data[:1000], data[1000:]]), encode_chunked=True)
    assert client.getresponse().read() == b""

    assert store.values["/chunks"] == data
    assert _get(client, "/chunks?chunked") == (200, data)
    assert _get(client)[1] == b"0123456789"
    assert proxy.log[1].sent_bytes == len(data)


def test_large_bodies_are_streamed(
    store: _Store, proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    """The store has the first bytes of 50 MB before the client has sent the last ones."""
    data = hashlib.shake_256(b"seed").digest(50 * _MB)

    def pieces() -> Iterator[bytes]:
        yield data[: 10 * _MB]
        assert store.first_bytes.wait(_TIMEOUT_S)
        yield data[10 * _MB :]

    client.request("PUT", "/big", pieces(), {"Content-Length": str(len(data))})
    client.getresponse().read()

    assert store.values["/big"] == data
    assert _get(client, "/big") == (200, data)


def test_expect_continue_is_answered(store: _Store, proxy: FaultProxy) -> None:
    """A client that waits for "100 Continue" gets it once, and its body arrives."""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=_TIMEOUT_S) as sock:
        head = b"PUT /e HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n"
        sock.sendall(head + b"Connection: close\r\n\r\n")
        assert sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"abc")
        with sock.makefile("rb") as file:
            answer = file.read()

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert store.values["/e"] == b"abc"


def test_reset_keeps_the_request_from_the_store(
    store: _Store, proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    """Reset: the client gets a reset, the store nothing."""
    rule = proxy.add(Rule(match=_any, action=Reset(), times=1))

    with pytest.raises(ConnectionResetError):
        client.request("PUT", "/lost", b"abc")
        client.getresponse()

    assert (rule.fired, store.puts) == (1, [])
    client.close()
    assert _get(client)[0] == 200


def test_drop_answer_lets_the_store_act(
    store: _Store, proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    """DropAnswer: the store has the value, the client hears nothing."""
    rule = proxy.add(Rule(match=_any, action=DropAnswer(), times=1))

    client.request("PUT", "/kept", b"abc")
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        client.getresponse()

    assert (rule.fired, store.values["/kept"]) == (1, b"abc")
    assert proxy.log[0].status is None


@pytest.mark.parametrize("after", [0, 4])
def test_cut_body_ends_early(
    proxy: FaultProxy, client: http.client.HTTPConnection, after: int
) -> None:
    """CutBody: headers and so many bytes arrive, then the connection ends."""
    rule = proxy.add(Rule(match=_any, action=CutBody(after)))

    client.request("GET", "/key")
    answer = client.getresponse()
    with pytest.raises(http.client.IncompleteRead) as caught:
        answer.read()

    assert caught.value.partial == b"0123456789"[:after]
    assert (rule.fired, proxy.log[0].sent_bytes) == (1, after)


@pytest.mark.parametrize(("at", "seen"), [(0, b"1123456789"), (-2, b"0123456799")])
def test_corrupt_body_flips_a_bit(
    proxy: FaultProxy, client: http.client.HTTPConnection, at: int, seen: bytes
) -> None:
    """CorruptBody: one byte differs, the length does not."""
    rule = proxy.add(Rule(match=_any, action=CorruptBody(at)))

    assert _get(client) == (200, seen)
    assert rule.fired == 1


def test_wrong_body_keeps_headers(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    """WrongBody: another body under the store's status and headers, with a fitting length."""
    rule = proxy.add(Rule(match=_any, action=WrongBody(SLOW_DOWN)))

    client.request("GET", "/key")
    answer = client.getresponse()

    assert (answer.status, answer.getheader("ETag"), answer.read()) == (200, '"tag"', SLOW_DOWN)
    assert rule.fired == 1
    proxy.remove(rule)
    assert _get(client)[1] == b"0123456789"


def test_status_answers_instead_of_the_store(
    store: _Store, proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    """Status: SlowDown without asking the store; the connection stays in step."""
    rule = proxy.add(Rule(match=_any, action=Status(503, headers={"Retry-After": "1"}), times=1))

    client.request("PUT", "/refused", b"x" * 100_000)
    answer = client.getresponse()

    assert (answer.status, answer.getheader("Retry-After"), answer.read()) == (503, "1", SLOW_DOWN)
    assert (rule.fired, store.puts) == (1, [])
    assert _get(client)[0] == 200


def test_status_may_hide_what_was_done(
    store: _Store, proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    """Status with forwards: the store has the value, the client hears of a failure."""
    proxy.add(Rule(match=_any, action=Status(500, b"", forwards=True), times=1))

    client.request("PUT", "/kept", b"abc")
    answer = client.getresponse()

    assert (answer.status, answer.read()) == (500, b"")
    assert store.values["/kept"] == b"abc"


@pytest.mark.parametrize("after", [None, 0, 4])
def test_stall_ends_with_its_event(
    proxy: FaultProxy, client: http.client.HTTPConnection, after: int | None
) -> None:
    """Stall: nothing more arrives until the event is set, then all does."""
    go = threading.Event()
    rule = proxy.add(Rule(match=_any, action=Stall(go, after_bytes=after)))
    answers: list[tuple[int, bytes]] = []
    reader = threading.Thread(target=lambda: answers.append(_get(client)))

    reader.start()
    reader.join(0.1)
    assert answers == []
    go.set()
    reader.join(_TIMEOUT_S)

    assert answers == [(200, b"0123456789")]
    assert rule.fired == 1


def test_stall_ends_with_the_proxy(store: _Store) -> None:
    """Leaving the proxy does not wait for what stalls."""
    with FaultProxy("127.0.0.1", store.server_port) as proxy:
        proxy.add(Rule(match=_any, action=Stall(3600.0)))
        client = next(_client(proxy))
        client.request("GET", "/key")
        while not proxy.log:
            time.sleep(0.001)

    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        client.getresponse()
    client.close()


def test_slow_body_has_its_rate(
    store: _Store, proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    """SlowBody: 20 kB at 100 kB/s take 0.2 s; other requests do not."""
    store.values["/slow"] = bytes(20_000)
    rule = proxy.add(Rule(match=lambda info: info.path == "/slow", action=SlowBody(100_000.0)))

    begin = time.monotonic()
    assert _get(client, "/slow") == (200, bytes(20_000))
    elapsed_s = time.monotonic() - begin

    assert 0.18 < elapsed_s < 5
    assert rule.fired == 1


def test_rules_choose_requests(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    """nth and times count matching requests; the first rule that acts wins."""
    second = proxy.add(Rule(match=_gets, action=Status(500, b""), nth=2))
    some = proxy.add(Rule(match=_gets, action=Status(501, b""), nth={1, 2, 3, 4}, times=2))
    never = proxy.add(Rule(match=lambda info: info.method == "PUT", action=Reset()))

    statuses = [_get(client)[0] for _ in range(5)]

    # The second rule does not see what the first one took.
    assert statuses == [501, 500, 501, 200, 200]
    assert (second.fired, some.fired, never.fired) == (1, 2, 0)
    assert [info.fault for info in proxy.log] == ["Status"] * 3 + [None] * 2


def test_down_refuses_and_up_serves_again(
    proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    """Down: open connections end, new ones are refused; up: the same port answers again."""
    assert _get(client)[0] == 200

    proxy.down()

    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)):
        _get(client)
    client.close()
    with pytest.raises(ConnectionRefusedError):
        client.connect()
    proxy.up()
    assert _get(client)[0] == 200


def test_an_absent_store_resets(store: _Store) -> None:
    """No store behind the proxy: the connection is reset, never answered."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with FaultProxy("127.0.0.1", unused.getsockname()[1]) as proxy:
            client = next(_client(proxy))
            with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
                _get(client)
            client.close()
            assert proxy.log[0].status is None


def test_delay_holds_for_each_request_at_once(store: _Store) -> None:
    """32 requests in flight wait 0.2 s each, and together hardly longer."""
    with FaultProxy("127.0.0.1", store.server_port, delay_s=0.2) as proxy:
        clients = [next(_client(proxy)) for _ in range(32)]
        for client in clients:
            client.connect()
        begin = time.monotonic()
        for client in clients:
            client.request("GET", "/key")
        for client in clients:
            assert client.getresponse().read() == b"0123456789"
            client.close()
        elapsed_s = time.monotonic() - begin
        requests = proxy.log

    assert all(info.end_s is not None and info.end_s - info.begin_s >= 0.2 for info in requests)
    assert elapsed_s < 32 * 0.2 / 4
    assert sequential_depth(requests) < 4


def test_connections_cost_the_delay_if_wanted(store: _Store) -> None:
    """With connect_delay the first request waits twice, the next one once."""
    port = store.server_port
    with FaultProxy("127.0.0.1", port, delay_s=0.1, connect_delay=True) as proxy:
        client = next(_client(proxy))
        begin = time.monotonic()
        _get(client)
        first_s = time.monotonic() - begin
        client.close()
        first = proxy.log[0]

    assert first_s >= 0.2
    assert first.end_s is not None
    assert first.end_s - first.begin_s < first_s - 0.05


def test_connections_share_the_bandwidth(store: _Store) -> None:
    """Two readers of 1 MB each at 5 MB/s need 0.4 s together."""
    store.values["/mb"] = bytes(_MB)
    port = store.server_port
    with FaultProxy("127.0.0.1", port, bandwidth_bytes_per_s=5 * _MB) as proxy:
        clients = [next(_client(proxy)) for _ in range(2)]
        begin = time.monotonic()
        for client in clients:
            client.request("GET", "/mb")
        sizes = []
        readers = [
            threading.Thread(target=lambda c=client: sizes.append(len(c.getresponse().read())))
            for client in clients
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(_TIMEOUT_S)
        elapsed_s = time.monotonic() - begin
        for client in clients:
            client.close()

    assert sizes == [_MB] * 2
    assert 0.36 < elapsed_s < 5


def _span(begin_s: float, end_s: float | None) -> RequestInfo:
    return RequestInfo("GET", "/", begin_s=begin_s, end_s=end_s)


@pytest.mark.parametrize(
    ("spans", "depth"),
    [
        ([], 0),
        ([(0.0, 1.0)], 1),
        ([(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)], 3),
        ([(0.0, 3.0), (0.5, 2.5), (1.0, 2.0)], 1),
        # A long one beside two short ones: the short ones are the longest chain.
        ([(0.0, 10.0), (0.0, 1.0), (2.0, 3.0)], 2),
        ([(5.0, 6.0), (0.0, 5.5), (0.0, 1.0), (6.0, None)], 2),
    ],
)
def test_sequential_depth(spans: list[tuple[float, float | None]], depth: int) -> None:
    """The depth is the longest chain in which none begins before the one before it ended."""
    assert sequential_depth(_span(*span) for span in spans) == depth


def test_it_runs_as_a_process(store: _Store, tmp_path: Path) -> None:
    """The module serves, takes orders, writes a log that can be read back, and ends with them."""
    port_file, log = tmp_path / "port", tmp_path / "log"
    module = [sys.executable, "-m", "workspacefs.testing.proxy"]
    upstream = f"127.0.0.1:{store.server_port}"
    process = subprocess.Popen(
        [*module, "--upstream", upstream, "--control", "--port-file", port_file, "--log", log],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("delay-ms 0\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ok\n"
        port = int(port_file.read_text())
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
        assert [_get(client)[0], _get(client, "/absent")[0]] == [200, 404]
        client.close()
        process.stdin.close()
        assert process.wait(_TIMEOUT_S) == 0

    requests, offset = read_log(log)
    assert [info.status for info in requests] == [200, 404]
    assert read_log(log, offset=offset) == ([], offset)
