"""Bringing all names and attributes of a tree to this machine before anyone looks for them.

Metadata lies in packs of its own, so each one that the tree leads to is fetched whole, in few
requests. Behind whatever programs wait for, always.
"""

from __future__ import annotations

import logging
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Final

from workspacefs.cache.backend import CachingBackend
from workspacefs.errors import KeyAbsentError, UnavailableError, UsageError, WorkspaceError
from workspacefs.ids import ID_BYTES, PACK_ID_BYTES, PackId
from workspacefs.objects.entry import Subtree
from workspacefs.objects.nodes import Node
from workspacefs.objects.refs import Locator, Ref
from workspacefs.packs.reader import ObjectStore
from workspacefs.packs.table import pack_key
from workspacefs.trees.walk import iter_leaves

log = logging.getLogger(__name__)

_MEMORY_BYTES: Final = 8 << 20
_TRIES: Final = 20
_PAUSE_S: Final = 3.0
_TREES_MAX: Final = 64


class MetadataPrefetch:
    """Walks trees, one at a time, in a thread of its own."""

    def __init__(self, backend: CachingBackend) -> None:
        """Read through `backend`, which should have the priority of a prefetch."""
        self._backend = backend
        self._lock = threading.Lock()
        self._seen: set[bytes] = set()
        self._waiting: list[Ref] = []
        self._is_running = False
        self._packs: set[PackId] = set()
        self._nodes = self._done = self._failed = 0

    def begin(self, header: Mapping[str, object]) -> Mapping[str, object]:
        """Have the tree of a root node fetched, unless that was asked for before.

        Raises:
            UsageError: The header does not name a node by `id` and `locator`.
        """
        root = _ref_of(header)
        with self._lock:
            if root.id in self._seen or len(self._waiting) >= _TREES_MAX:
                return {"is_new": False}
            self._seen.add(root.id)
            self._waiting.append(root)
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="metadata", daemon=True).start()
        return {"is_new": True}

    def document(self) -> dict[str, object]:
        """Return how far it is."""
        with self._lock:
            return {
                "trees_waiting": len(self._waiting) + self._is_running,
                "trees_done": self._done,
                "trees_failed": self._failed,
                "nodes": self._nodes,
            }

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_running = False
                    return
                root = self._waiting.pop(0)
            began = time.monotonic()
            try:
                self._walk(root)
            except (WorkspaceError, KeyAbsentError) as exc:
                self._failed += 1
                self._seen.discard(root.id)
                log.warning("metadata.not_fetched", extra={"reason": str(exc)})
            except Exception:
                self._failed += 1
                log.exception("metadata.bug")
            else:
                self._done += 1
                log.info(
                    "metadata.fetched",
                    extra={
                        "nodes": self._nodes,
                        "duration_ms": round((time.monotonic() - began) * 1000, 3),
                    },
                )

    def _walk(self, root: Ref) -> None:
        # A store of its own for each walk: what it decodes is of no use afterwards.
        source = _Source(
            ObjectStore(
                self._backend, cache_bytes=_MEMORY_BYTES, decoded_cache_bytes=_MEMORY_BYTES
            ),
            self,
        )
        pending: list[Iterator[Subtree]] = [iter([Subtree(root)])]
        while pending:
            subtree = next(pending[-1], None)
            if subtree is None:
                pending.pop()
            else:
                pending.append(_subdirectories(subtree, source))

    def note(self, locator: Locator | None) -> None:
        """Take note that a node was read; a pack met for the first time is fetched whole."""
        self._nodes += 1
        if locator is None or locator.pack_id in self._packs:
            return
        self._packs.add(locator.pack_id)
        key = pack_key(locator.pack_id)
        total_bytes = self._backend.fetcher.total_bytes(key)
        if total_bytes:
            self._backend.fetcher.prefetch(key, 0, total_bytes)


class _Source:
    """Nodes for the walk: waits for a store that is away."""

    def __init__(self, store: ObjectStore, prefetch: MetadataPrefetch) -> None:
        self._store = store
        self._prefetch = prefetch

    def load_node(self, ref: Ref) -> Node:
        """Return a node."""
        for _ in range(_TRIES):
            try:
                node = self._store.load_node(ref)
            except UnavailableError as exc:
                problem = exc
                time.sleep(_PAUSE_S)
            else:
                self._prefetch.note(ref.locator)
                return node
        raise problem


def _subdirectories(subtree: Subtree, source: _Source) -> Iterator[Subtree]:
    for leaf, _ in iter_leaves(subtree, source):
        for index, (_, mode, _) in enumerate(leaf.kinds()):
            if stat.S_ISDIR(mode):
                content = leaf.entry(index).content
                if isinstance(content, Subtree) and content.root is not None:
                    yield content


def _ref_of(header: Mapping[str, object]) -> Ref:
    node_id, locator = header.get("id"), header.get("locator")
    if not isinstance(node_id, bytes) or len(node_id) != ID_BYTES or not isinstance(locator, list):
        raise UsageError("a tree is named by id and locator", kind="args.invalid")
    pack_id, *numbers = locator
    if (
        not isinstance(pack_id, bytes)
        or len(pack_id) != PACK_ID_BYTES
        or len(numbers) != 4
        or not all(type(number) is int for number in numbers)
    ):
        raise UsageError("a tree is named by id and locator", kind="args.invalid")
    return Ref(node_id, Locator(PackId(pack_id), *numbers))
