"""How a session process reaches its transfer process, and finds another one when that is gone."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Mapping
from typing import Final

from workspacefs.client.supervisor import ensure_supervisor
from workspacefs.errors import UnavailableError
from workspacefs.protocol.sockets import connect_unix
from workspacefs.statedir import StateDir
from workspacefs_daemon.spec import SessionSpec

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S: Final = 10.0
_GIVE_UP_S: Final = 30.0
_PAUSE_S: Final = 0.05


class TransferLink:
    """Connections to the transfer process of one store. Thread-safe; blocks, so on threads only."""

    def __init__(self, spec: SessionSpec, environ: Mapping[str, str]) -> None:
        """Reach what `spec` asks for; `environ` is what a new supervisor would be started with."""
        self._store_url = spec.store_url
        self._store_environ = spec.store_environ
        self._store_timeout_s = spec.store_timeout_s
        self._state = StateDir(spec.state_dir)
        self._environ = environ
        self._path = spec.transfer_socket
        self._lock = threading.Lock()

    def connect(self) -> socket.socket:
        """Return a connection; see transfer.client.Connect.

        Raises:
            UnavailableError: No transfer process can be had.
        """
        deadline = time.monotonic() + _GIVE_UP_S
        while True:
            path = self._path
            if path is not None:
                try:
                    return connect_unix(path, timeout_s=_CONNECT_TIMEOUT_S)
                except OSError as exc:
                    if time.monotonic() > deadline:
                        raise UnavailableError(
                            f"the transfer process cannot be reached at {path}: {exc.strerror}",
                            kind="transfer.gone",
                        ) from exc
            self._renew(path)

    @property
    def store_environ(self) -> Mapping[str, str]:
        """What leads to the store, keys and tokens included."""
        return self._store_environ

    def use(self, store_environ: Mapping[str, str]) -> None:
        """Reach the store with other keys from now on."""
        with self._lock:
            self._store_environ = dict(store_environ)
            self._path = None

    def _renew(self, failed: str | None) -> None:
        with self._lock:
            if self._path != failed:
                return  # another thread was faster
            args = {
                "store_url": self._store_url,
                "environ": dict(self._store_environ),
                "store_timeout_s": self._store_timeout_s,
            }
            with ensure_supervisor(self._state, self._environ) as supervisor:
                found = str(supervisor.call("transfer", args)["socket"])
            if found == failed:
                # It has just died, and the supervisor has not noticed yet.
                time.sleep(_PAUSE_S)
            elif failed is not None:
                log.warning("transfer.replaced")
            self._path = found
