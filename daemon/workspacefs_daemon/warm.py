"""A process that is made ready before anyone says what it shall serve.

To fork, to leave the parent and to copy the pages that are touched first takes a session 10 ms; to
load a store's client takes a transfer process as long as the supervisor needs for all of its own.
Both can be done before they are waited for.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

log = logging.getLogger(__name__)

_ORDER_MAX_BYTES: Final = 1 << 20
_FDS_MAX: Final = 2

Serve = Callable[[Mapping[str, Any], list[int]], NoReturn]


class WarmProcess:
    """One such process; it is handed one order."""

    def __init__(self, pid: int, orders: socket.socket) -> None:
        self._pid = pid
        self._orders: socket.socket | None = orders

    def hand_over(self, order: Mapping[str, object], fds: Sequence[int]) -> int | None:
        """Have it serve, with its own copies of `fds`; return its pid, or None: it is in use, or
        gone.
        """
        orders, self._orders = self._orders, None
        if orders is None:
            return None
        with orders:
            try:
                data = json.dumps(order).encode("ascii")
                sent = socket.send_fds(orders, [data], fds)
                orders.sendall(data[sent:])
            except OSError as exc:
                log.warning("process.warm_lost", extra={"errno": exc.errno})
                return None
        return self._pid

    def release(self) -> None:
        """Let go of it: it ends. A process that was forked from ours calls this as well, and then
        it stays as it is.
        """
        if self._orders is not None:
            self._orders.close()


def fork_warm(
    prepare: Callable[[], None], serve: Serve, release: Callable[[], None]
) -> WarmProcess | None:
    """Fork a process that prepares, waits for its order, and serves; None: there is no room.

    Args:
        prepare: Loads what it will need.
        serve: Serves as the order says, with the files that came along; ends the process.
        release: Called in the new process: closes what belongs to the parent alone.
    """
    ours, its = socket.socketpair()
    try:
        pid = os.fork()
    except OSError as exc:
        ours.close()
        its.close()
        log.warning("process.not_warmed", extra={"errno": exc.errno})
        return None
    if pid == 0:
        ours.close()
        _wait(its, prepare, serve, release)
    its.close()
    return WarmProcess(pid, ours)


def _wait(
    orders: socket.socket,
    prepare: Callable[[], None],
    serve: Serve,
    release: Callable[[], None],
) -> NoReturn:
    try:
        release()
        prepare()
        order, fds, _, _ = socket.recv_fds(orders, _ORDER_MAX_BYTES, _FDS_MAX)
        while order and (more := orders.recv(_ORDER_MAX_BYTES)):
            order += more
        orders.close()
        if not order:
            os._exit(0)  # the supervisor has ended without needing us
        serve(json.loads(order), fds)
    except BaseException:
        log.exception("process.warm_crashed")
        os._exit(1)
