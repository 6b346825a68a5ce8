"""Finding objects by id alone, from the tables of all packs.

The slow path: for references without a locator, or with one that proved wrong.
"""

from __future__ import annotations

from workspacefs.backend.contract import Backend
from workspacefs.errors import IntegrityError
from workspacefs.ids import PackId
from workspacefs.objects.refs import Locator
from workspacefs.packs.caches import BoundedCache
from workspacefs.packs.table import PACK_PREFIX, PackTable, load_table, pack_id_of_key


class PackIndex:
    """Looks ids up in the tables of packs; thread-safe.

    A search costs about 20 µs a pack whose table is in memory, one or two reads otherwise. Tables
    are held up to `cache_bytes`.
    """

    def __init__(self, backend: Backend, *, cache_bytes: int = 64 * 1024 * 1024) -> None:
        self._backend = backend
        self._tables: BoundedCache[PackId, PackTable] = BoundedCache(cache_bytes)

    def find(self, object_id: bytes, *, avoid: frozenset[PackId] = frozenset()) -> Locator | None:
        """Return where `object_id` lies by the table of any readable pack not in `avoid`, or None.

        Lists the packs each time, so that it sees those which others wrote meanwhile.
        """
        unread = []
        for info in self._backend.iter_keys(PACK_PREFIX):
            pack_id = pack_id_of_key(info.key)
            if pack_id is None or pack_id in avoid:
                continue
            table = self._tables.find(pack_id)
            if table is None:
                unread.append(pack_id)
            elif (found := table.find(pack_id, object_id)) is not None:
                return found
        for pack_id in unread:
            try:
                table = load_table(self._backend, pack_id)
            except IntegrityError:
                continue  # the object may lie elsewhere; if not, its own pack is named as damaged
            self._tables.add(pack_id, table, table.size_bytes)
            if (found := table.find(pack_id, object_id)) is not None:
                return found
        return None
