"""Which moves led a ref to what it holds, one after the other, as the operation log has them.

Entries are written before their moves, by clocks that are not ours, and some tell of moves that
never were; so neither their order nor their being there says anything. What a ref holds names its
write, the entry of that write names the one before it, and so on: all of these took place, in
this order. A write that is not in the log (a lease, saved work, a policy) ends the chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from workspacefs.errors import KeyAbsentError
from workspacefs.refs import RefKind, RefRecord
from workspacefs.workspace.operation_log import Operation, load_operation
from workspacefs.workspace.publish import OPS_PREFIX
from workspacefs.workspace.workspace import Workspace

_WINDOW_NS: Final = 600 * 1_000_000_000
"""An entry and its move have times of one clock; between them, packs are finished."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The latest moves of a ref."""

    operations: tuple[Operation, ...]
    """The oldest first; the last one led to what the ref holds."""
    is_whole: bool
    """Whether they begin where they were to begin, or with the ref itself."""


class Chains:
    """Follows refs back through the log; remembers what it has listed until `forget`.

    Costs for each chain a listing of the entries around its end, a request for each of its moves,
    and, when machines whose clocks are apart moved the ref, once a listing of all entries.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._keys: dict[str, str] = {}
        self._has_all = False

    def forget(self) -> None:
        """Forget what was listed: there are new entries."""
        self._keys.clear()
        self._has_all = False

    def follow(self, kind: RefKind, record: RefRecord, is_begin: Callable[[str], bool]) -> Chain:
        """Return the moves that led to what a ref holds, since one whose write id `is_begin`."""
        found: list[Operation] = []
        # Of sessions most writes are in no log, so it is not searched through for them.
        searches_all = kind is not RefKind.SESSION
        write_id: str | None = record.write_id
        near_ns = record.moved_at_ns
        while write_id is not None and not is_begin(write_id):
            operation = self._find(write_id, near_ns, searches_all=searches_all)
            if operation is None:
                return Chain(tuple(reversed(found)), is_whole=False)
            found.append(operation)
            write_id, near_ns = operation.previous_id, operation.time_ns
        return Chain(tuple(reversed(found)), is_whole=True)

    def _find(self, write_id: str, near_ns: int, *, searches_all: bool) -> Operation | None:
        if write_id not in self._keys and not self._has_all:
            self._list(near_ns - _WINDOW_NS, near_ns + _WINDOW_NS)
        if write_id not in self._keys and not self._has_all and searches_all:
            self._list(0, None)
            self._has_all = True
        key = self._keys.get(write_id)
        if key is None:
            return None
        try:
            return load_operation(self._workspace, key)
        except KeyAbsentError:
            return None

    def _list(self, from_ns: int, to_ns: int | None) -> None:
        for time_ns, key in self._iter_keys(max(0, from_ns)):
            if to_ns is not None and time_ns > to_ns:
                break
            self._keys[key.rpartition("-")[2]] = key

    def _iter_keys(self, from_ns: int) -> Iterator[tuple[int, str]]:
        start = f"{OPS_PREFIX}{from_ns:020d}"
        for info in self._workspace.backend.iter_keys(OPS_PREFIX, start_after=start):
            time_text = info.key.removeprefix(OPS_PREFIX).partition("-")[0]
            yield int(time_text) if time_text.isdecimal() else 0, info.key
