"""A session module for tests of the supervisor: real process, real control socket, no FUSE.

What it does is chosen by the name of the session that is asked for.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable, Mapping

import trio

from workspacefs.errors import NotFoundError, UsageError
from workspacefs.statedir import StateDir
from workspacefs_daemon.control.server import SendProgress, serve_control
from workspacefs_daemon.spec import SessionSpec


class FakeOps:
    """Answers what tests ask."""

    def __init__(self, spec: SessionSpec, done: trio.Event) -> None:
        self._spec = spec
        self._done = done

    async def handle(
        self, op: str, args: Mapping[str, object], progress: SendProgress
    ) -> Mapping[str, object]:
        match op:
            case "ping":
                return {"pid": os.getpid()}
            case "echo":
                return dict(args)
            case "steps":
                for step in range(3):
                    await progress({"step": step})
                return {"steps": 3}
            case "rows":
                return {"changes": list(range(int(str(args["count"])))), "text": "x" * 3_000_000}
            case "bug":
                raise ZeroDivisionError("secret detail")
            case "unsendable":
                return {"value": object()}
            case "absent":
                raise NotFoundError("no such thing", kind="thing.absent", name="é\udc80")
            case "forever":
                try:
                    await trio.sleep_forever()
                finally:
                    self._done.set()
            case "umount":
                self._done.set()
                return {}
        raise UsageError(f"no operation {op}", kind="op.unknown")


def run_session(
    spec: SessionSpec,
    ready: Callable[[Mapping[str, object]], None],
    failed: Callable[[BaseException], None],
    *,
    environ: Mapping[str, str],
) -> None:
    match spec.session_name:
        case "fail":
            raise NotFoundError("no such revision", kind="rev.absent")
        case "tell":
            failed(NotFoundError("told", kind="rev.absent"))
            return
        case "bug":
            raise ZeroDivisionError("secret detail")
        case "crash":
            os.kill(os.getpid(), signal.SIGKILL)
    trio.run(_serve, spec, ready)


async def _serve(spec: SessionSpec, ready: Callable[[Mapping[str, object]], None]) -> None:
    session_id = secrets.token_hex(8)
    path = StateDir(spec.state_dir).session_socket(session_id)
    done = trio.Event()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_control, path, FakeOps(spec, done))
            if spec.session_name == "hang":
                async for _ in signals:
                    break
                os._exit(3)
            ready(
                {
                    "session": spec.session_name or "fresh",
                    "session_id": session_id,
                    "socket": path,
                    "mountpoint": spec.mountpoint,
                    "store_url": spec.store_url,
                    "branch": spec.branch,
                }
            )

            async def wait_signal() -> None:
                async for _ in signals:
                    done.set()

            nursery.start_soon(wait_signal)
            await done.wait()
            nursery.cancel_scope.cancel()
