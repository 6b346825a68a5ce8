"""The control server: every request is answered, nothing that is asked ends it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from tests.unit.fake_session import FakeOps
from workspacefs_daemon.control.server import serve_control
from workspacefs_daemon.spec import SessionSpec

Talk = Callable[[trio.SocketStream], Awaitable[None]]
_SPEC = SessionSpec(store_url="file:///s", mountpoint="/m", state_dir="/d")


def _serve(tmp_path: Path, talk: Talk, done: trio.Event | None = None) -> None:
    async def main() -> None:
        path = str(tmp_path / "x.sock")
        ended = trio.Event() if done is None else done
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                await nursery.start(serve_control, path, FakeOps(_SPEC, ended))
                async with await trio.open_unix_socket(path) as stream:
                    await talk(stream)
                nursery.cancel_scope.cancel()

    trio.run(main)
    assert not (tmp_path / "x.sock").exists()


async def _ask(stream: trio.SocketStream, op: str, args: object = None, number: int = 1) -> None:
    request = {"v": 1, "id": number, "op": op, "args": args or {}}
    await stream.send_all(json.dumps(request).encode() + b"\n")


async def _replies(stream: trio.SocketStream) -> list[dict[str, dict[str, object]]]:
    data = b""
    while True:
        data += await stream.receive_some()
        lines = data.splitlines()
        if data.endswith(b"\n") and {"ok", "error"} & json.loads(lines[-1]).keys():
            return [json.loads(line) for line in lines]
        if not data:
            return []


def test_progress_comes_before_the_answer(tmp_path: Path) -> None:
    """All steps are told in order, with the id of the request."""

    async def talk(stream: trio.SocketStream) -> None:
        await _ask(stream, "steps", number=9)
        *steps, last = await _replies(stream)
        assert [step["progress"]["step"] for step in steps] == [0, 1, 2]
        assert last == {"id": 9, "ok": {"steps": 3}}

    _serve(tmp_path, talk)


@pytest.mark.parametrize(
    ("op", "kind", "exit_code"),
    [
        ("absent", "thing.absent", 3),
        ("nonsense", "op.unknown", 2),
        ("bug", "internal", 1),
        ("unsendable", "internal", 1),
    ],
)
def test_every_error_is_a_reply(tmp_path: Path, op: str, kind: str, exit_code: int) -> None:
    """Ours as they are, others without what they say; the connection goes on."""

    async def talk(stream: trio.SocketStream) -> None:
        await _ask(stream, op)
        (reply,) = await _replies(stream)
        assert (reply["error"]["kind"], reply["error"]["exit_code"]) == (kind, exit_code)
        assert "secret" not in json.dumps(reply)
        await _ask(stream, "echo", {"a": 1}, number=2)
        assert await _replies(stream) == [{"id": 2, "ok": {"a": 1}}]

    _serve(tmp_path, talk)


@pytest.mark.parametrize("line", [b"\n", b"nonsense\n", b"[1]\n", b'{"v":1,"id":5}\n', b"\xff\n"])
def test_nonsense_is_answered(tmp_path: Path, line: bytes) -> None:
    """A line that is no request gets an error, and the connection goes on."""

    async def talk(stream: trio.SocketStream) -> None:
        await stream.send_all(line)
        (reply,) = await _replies(stream)
        assert reply["error"]["kind"] == "protocol.malformed"
        await _ask(stream, "ping")
        assert "ok" in (await _replies(stream))[0]

    _serve(tmp_path, talk)


def test_line_without_end_ends_only_its_connection(tmp_path: Path) -> None:
    """Past the limit the asker is told and hung up on; others are served."""

    async def talk(stream: trio.SocketStream) -> None:
        async def flood() -> None:
            try:
                for _ in range(20):
                    await stream.send_all(b"x" * 1024 * 1024)
            except trio.BrokenResourceError:
                pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            (reply,) = await _replies(stream)
        assert reply["error"]["kind"] == "protocol.too_long"
        async with await trio.open_unix_socket(str(tmp_path / "x.sock")) as other:
            await _ask(other, "ping")
            assert "ok" in (await _replies(other))[0]

    _serve(tmp_path, talk)


def test_hanging_up_cancels_the_operation(tmp_path: Path) -> None:
    """An operation that nobody waits for any more is cancelled."""
    done = trio.Event()

    async def talk(stream: trio.SocketStream) -> None:
        await _ask(stream, "forever")
        await stream.aclose()
        await done.wait()

    _serve(tmp_path, talk, done)


def test_requests_sent_at_once_are_answered_in_order(tmp_path: Path) -> None:
    """A second request that comes while the first runs waits its turn."""

    async def talk(stream: trio.SocketStream) -> None:
        for number in (1, 2, 3):
            await _ask(stream, "echo", {"n": number}, number=number)
        found: list[object] = []
        data = b""
        while len(found) < 3:
            data += await stream.receive_some()
            found = [json.loads(line)["id"] for line in data.splitlines()]
        assert found == [1, 2, 3]

    _serve(tmp_path, talk)
