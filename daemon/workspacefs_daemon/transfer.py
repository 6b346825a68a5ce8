"""A transfer process: everything that one far store costs, for all sessions of this account.

It is forked from the zygote and imports the store's client by itself, which no process that serves
files does.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from workspacefs.allocator import bound_memory
from workspacefs.backend.retry import RetryPolicy
from workspacefs.backend.s3 import S3Backend
from workspacefs.backend.s3_connection import CONNECT_TIMEOUT_S, load_models
from workspacefs.backend.s3_url import parse_s3_url
from workspacefs.cache.backend import CachingBackend
from workspacefs.cache.directory import CacheDirectory, default_limit_bytes
from workspacefs.cache.evictor import Evictor
from workspacefs.cache.fetch_queue import Priority
from workspacefs.cache.fetcher import Fetcher
from workspacefs.errors import WorkspaceError
from workspacefs.statedir import StateDir
from workspacefs.transfer.figures import figures_of
from workspacefs.transfer.metadata import MetadataPrefetch
from workspacefs.transfer.server import TransferServer
from workspacefs_daemon.transfers import TransferSpec

log = logging.getLogger(__name__)

_SWITCH_INTERVAL_S: Final = 0.0005
"""Of the interpreter: who is waited for must not wait for a thread that decodes ahead."""


def _open_source(spec: TransferSpec) -> S3Backend:
    """Return the store, which tries again as long as the mount's readers wait.

    Answers may take longer: a reader does not wait for them, and a write should.
    """
    limit_s = spec.store_timeout_s
    return S3Backend(
        parse_s3_url(spec.store_url),
        retry=RetryPolicy(deadline_s=limit_s),
        connect_timeout_s=min(CONNECT_TIMEOUT_S, limit_s),
    )


def prepare() -> None:
    """Load what takes long, without opening anything or looking at any keys."""
    load_models()


def run_transfer(spec: TransferSpec, listener: socket.socket) -> None:
    """Serve a store until nobody wants it any more."""
    bound_memory()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    # Each session has some connections open, each cached value in use a descriptor.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # boto3 looks for keys, profiles and proxies in the environment of its process. What is set
    # here does not show in /proc/PID/environ, which is as it was at the start of the supervisor.
    os.environ.update(spec.environ)
    source = _open_source(spec)
    root = Path(StateDir(spec.state_dir).cache_dir)
    limit = spec.cache_limit_bytes
    evictor = Evictor(root, default_limit_bytes(root) if limit is None else limit)
    directory = CacheDirectory(root, source.url, is_writable=True)
    fetcher = Fetcher(source, directory, evictor=evictor)
    store = CachingBackend(source, fetcher, keeps_writes=True)
    ahead = CachingBackend(source, fetcher, keeps_writes=False, priority=Priority.PREFETCH)
    metadata = MetadataPrefetch(ahead)

    def configure(header: Mapping[str, object]) -> Mapping[str, object]:
        wanted = header.get("cache_limit_bytes")
        if type(wanted) is int:
            evictor.limit_bytes = wanted
            evictor.run()
        return {}

    supervisor = os.getppid()
    server = TransferServer(
        listener,
        store,
        # Sessions learn of us from the supervisor that forked us, and from nobody else.
        is_known=lambda: os.getppid() == supervisor,
        extras={
            "configure": configure,
            "figures": lambda _: figures_of(source, fetcher, evictor, metadata),
            "prefetch_tree": metadata.begin,
        },
    )
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    log.info("transfer.started", extra={"store_url": source.url})
    try:
        source.prepare()
    except WorkspaceError as exc:
        # Told to whoever asks; the store may be reached by then.
        log.warning("transfer.not_prepared", extra={"kind": exc.kind, "reason": str(exc)})
    server.serve()
    fetcher.close()
    log.info("transfer.ended")
