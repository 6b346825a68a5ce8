"""Opening stores for commands: a far one is read through the cache of this account."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from workspacefs.backend.contract import Backend
from workspacefs.backend.open import open_backend
from workspacefs.cache.backend import CachingBackend, RemoteStore
from workspacefs.cache.directory import CacheDirectory, default_limit_bytes
from workspacefs.cache.evictor import Evictor
from workspacefs.cache.fetcher import Fetcher
from workspacefs.cli.context import Context
from workspacefs.config import CACHE_SIZE_VARIABLE, load_signing_key, parse_cache_size
from workspacefs.signing.key_files import FileSigner
from workspacefs.workspace.workspace import Workspace


def open_workspace(url: str, context: Context) -> Workspace:
    """Return the workspace at a URL; what is committed to it is signed, if there is a key. See
    Workspace.open for what it raises.
    """
    key = load_signing_key(context.environ)
    signer = None if key is None else FileSigner(key)
    return Workspace.open(open_store(url, context), signer=signer)


def open_store(url: str, context: Context) -> Backend:
    """Return the store at a URL, a far one with the cache of this account before it.

    What is stored through it is not kept in the cache: it is mostly read elsewhere.
    """
    source = open_backend(url)
    if source.is_local:
        return source
    root = Path(context.state.cache_dir)
    limit_bytes = parse_cache_size(context.environ.get(CACHE_SIZE_VARIABLE))
    evictor = Evictor(root, limit_bytes or default_limit_bytes(root))
    directory = CacheDirectory(root, source.url, is_writable=True)
    far = cast("RemoteStore", source)  # every backend that is not local hands out ranges
    return CachingBackend(far, Fetcher(far, directory, evictor=evictor), keeps_writes=False)
