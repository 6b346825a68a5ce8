"""The transfer processes that a supervisor has forked: one for each way to reach a store.

Two mounts share one when URL, environment and time limit are the same: keys belong to the mount
that brought them. This module must not know what a transfer process does.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from workspacefs.errors import UnavailableError, UsageError
from workspacefs.protocol.sockets import listen_unix
from workspacefs.statedir import StateDir

log = logging.getLogger(__name__)


STORE_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSpec:
    """One way to reach a far store."""

    store_url: str
    state_dir: str
    environ: Mapping[str, str] = field(repr=False)
    """Keys and tokens included."""
    store_timeout_s: float = STORE_TIMEOUT_S
    """How long what fails is tried again."""
    cache_limit_bytes: int | None = None
    """Of the cache at the start; None: its default."""


RunTransfer = Callable[[TransferSpec, socket.socket], None]
"""Serves a store on a listening socket to the end; runs in a process of its own."""

ForkTransfer = Callable[[TransferSpec, socket.socket], int]
"""Forks a process that serves a listening socket; returns its pid."""


class _Way(NamedTuple):
    """What mounts that share a process have in common."""

    store_url: str
    environ: tuple[tuple[str, str], ...]
    store_timeout_s: float


class Transfers:
    """Finds the transfer process of a store, or forks one. Used by the supervisor's one thread."""

    def __init__(self, state: StateDir, fork: ForkTransfer) -> None:
        self._state = state
        self._fork = fork
        self._running: dict[_Way, tuple[int, str]] = {}

    def ensure(
        self,
        store_url: str,
        environ: Mapping[str, str],
        *,
        store_timeout_s: float = STORE_TIMEOUT_S,
        cache_limit_bytes: int | None = None,
    ) -> str:
        """Return the socket of a transfer process that lives; it may still be starting.

        Raises:
            UnavailableError: No process can be started.
        """
        key = _Way(store_url, tuple(sorted(environ.items())), store_timeout_s)
        found = self._running.get(key)
        if found is not None:
            return found[1]
        path = self._state.transfer_socket(secrets.token_hex(4))
        spec = TransferSpec(
            store_url=store_url,
            state_dir=self._state.root,
            environ=dict(environ),
            store_timeout_s=store_timeout_s,
            cache_limit_bytes=cache_limit_bytes,
        )
        # Who connects from now on waits in the backlog until the new process has got so far.
        listener = listen_unix(path, backlog=1024)
        try:
            pid = self._fork(spec, listener)
        except OSError as exc:
            os.unlink(path)
            raise UnavailableError(
                f"no process can be started for transfers: {exc.strerror}", kind="transfer.fork"
            ) from exc
        finally:
            listener.close()
        self._running[key] = (pid, path)
        log.info("transfer.forked", extra={"transfer_pid": pid, "store_url": store_url})
        return path

    def ensure_for(self, args: Mapping[str, object]) -> str:
        """Do what a request asks for. See `ensure`.

        Raises:
            UsageError: It is malformed.
        """
        url, environ = args.get("store_url"), args.get("environ")
        timeout_s = args.get("store_timeout_s", STORE_TIMEOUT_S)
        if not isinstance(url, str) or not isinstance(environ, dict):
            raise UsageError("a transfer needs store_url and environ", kind="args.invalid")
        if not isinstance(timeout_s, int | float):
            raise UsageError("store_timeout_s must be a number", kind="args.invalid")
        known = {str(name): str(value) for name, value in environ.items()}
        return self.ensure(url, known, store_timeout_s=float(timeout_s))

    def reaped(self, pid: int) -> bool:
        """Take note that a process has ended; tell whether it was one of ours."""
        for key, (known, path) in self._running.items():
            if known == pid:
                del self._running[key]
                try:
                    os.unlink(path)
                except FileNotFoundError:
                    pass
                return True
        return False
