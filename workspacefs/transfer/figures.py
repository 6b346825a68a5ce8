"""What a transfer process tells of itself, as plain values; docs/protocol.md describes them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Protocol

from workspacefs.cache.evictor import Evictor
from workspacefs.cache.fetcher import Fetcher


class Documented(Protocol):
    """Something that can tell its figures."""

    def document(self) -> dict[str, object]:
        """Return them."""
        ...


class CountedStore(Protocol):
    """A far store that counts its requests."""

    @property
    def stats(self) -> Documented:
        """Counts of requests."""
        ...

    @property
    def health(self) -> Documented:
        """Whether it answers."""
        ...


def figures_of(
    store: CountedStore, fetcher: Fetcher, evictor: Evictor, metadata: Documented
) -> Mapping[str, object]:
    """Return all figures of a transfer process."""
    return {
        "pid": os.getpid(),
        "store": store.health.document(),
        "requests": store.stats.document(),
        "fetches": {**dataclasses.asdict(fetcher.counts), "uncached": fetcher.uncached},
        "queue": fetcher.queue_document(),
        "cache": {
            "directory": str(evictor.root),
            "limit_bytes": evictor.limit_bytes,
            "evicted_bytes": evictor.evicted_bytes,
        },
        "metadata": metadata.document(),
    }
