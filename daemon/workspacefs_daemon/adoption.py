"""A session's side of being brought back: some supervisor always knows how to mount it again.

The session keeps a connection to the supervisor. When that ends, the file of its socket tells why.
It is there and nobody listens: the supervisor was killed, and is replaced. It is not there: it
stopped on purpose, and the next one is waited for. Keys of the store go over that connection and
nowhere else.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Final

import trio

from workspacefs.client.supervisor import ensure_supervisor
from workspacefs.errors import UsageError, WorkspaceError
from workspacefs.protocol.lines import LineBuffer
from workspacefs.protocol.messages import Failure, Ok, Request, decode_reply, encode_request
from workspacefs.protocol.sockets import connect_unix
from workspacefs.statedir import StateDir
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.spec import spec_document, spec_of_mounted

log = logging.getLogger(__name__)

LOOK_S: Final = 3.0
"""How often a session without a supervisor looks for one."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 60.0
_LONG_S: Final = 60.0
"""A supervisor that lived this long does not die of our asking."""
_CONNECT_TIMEOUT_S: Final = 10.0
_RECEIVE_BYTES: Final = 64 * 1024


class Adoption:
    """Tells a supervisor what is mounted, and makes sure that there is one to tell."""

    def __init__(self, mounted: Mounted, environ: Mapping[str, str]) -> None:
        """Speak for `mounted`; `environ` is what a new supervisor would be started with."""
        self._mounted = mounted
        self._environ = environ
        self._state = StateDir(mounted.spec.state_dir)
        self._renewed = trio.Event()

    def renew(self) -> None:
        """Tell it again: other keys lead to the store from now on."""
        self._renewed.set()

    async def run(self) -> None:
        """Stay adopted until cancelled; the session is registered already."""
        pause_s = _FIRST_PAUSE_S
        while True:
            began_s = time.monotonic()
            found = await self._mounted.blocking.errand(self._reach)
            if found is None:
                await trio.sleep(LOOK_S)
                continue
            with trio.socket.from_stdlib_socket(found) as connection:
                await self._stay(trio.SocketStream(connection))
            # One that dies whenever it is started must not be started all the time.
            pause_s = _FIRST_PAUSE_S if time.monotonic() - began_s > _LONG_S else 2 * pause_s
            await trio.sleep(min(pause_s, _LONGEST_PAUSE_S))

    def _reach(self) -> socket.socket | None:
        """Return a connection to a supervisor; start one if the last was killed. None: later."""
        path = self._state.supervisor_socket
        try:
            try:
                return connect_unix(path, timeout_s=_CONNECT_TIMEOUT_S)
            except ConnectionRefusedError:
                ensure_supervisor(self._state, self._environ).close()
                return connect_unix(path, timeout_s=_CONNECT_TIMEOUT_S)
        except OSError:
            return None  # it stopped on purpose, or has no time now
        except WorkspaceError as exc:
            log.warning("supervisor.not_replaced", extra={"kind": exc.kind, "reason": str(exc)})
            return None

    async def _stay(self, stream: trio.SocketStream) -> None:
        """Be adopted; return when the supervisor has ended."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._speak, stream)
                await _hear(stream)
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, UsageError, WorkspaceError) as group:
            log.info("session.let_go", extra={"reason": str(group.exceptions[0])})

    async def _speak(self, stream: trio.SocketStream) -> None:
        number = 0
        while True:
            number += 1
            self._renewed = trio.Event()
            await stream.send_all(encode_request(Request(number, "adopt", self._args())))
            await self._renewed.wait()

    def _args(self) -> dict[str, object]:
        mounted = self._mounted
        base = mounted.base
        spec = spec_of_mounted(
            mounted.spec,
            session=mounted.name,
            base_hex=None if base is None else base.id.hex(),
        )
        if mounted.far is not None:
            spec = dataclasses.replace(spec, store_environ=mounted.far.link.store_environ)
        return {
            "spec": spec_document(spec),
            "session_id": mounted.session_id,
            "mount_namespace": os.stat("/proc/self/ns/mnt").st_ino,
        }


async def _hear(stream: trio.SocketStream) -> None:
    lines = LineBuffer()
    while data := await stream.receive_some(_RECEIVE_BYTES):
        for line in lines.feed(data):
            match decode_reply(line):
                case Ok(_, ok):
                    log.info("session.adopted", extra={"supervisor_pid": ok.get("pid")})
                case Failure(_, error):
                    log.warning(
                        "session.not_adopted", extra={"kind": error.kind, "reason": str(error)}
                    )
