"""What the sessions of a workspace take on the disk of this machine."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import NamedTuple

from workspacefs.errors import IntegrityError, RefusedError
from workspacefs.statedir import StateDir
from workspacefs.workspace.local import iter_record_paths, open_pool, sessions_dir
from workspacefs.workspace.local_record import LocalRecord, load_record


class LocalSizes(NamedTuple):
    """What a session takes on the disk of this machine."""

    layers: int
    unique_bytes: int
    """In layers that no other session needs."""
    shared_bytes: int


def local_sizes(state: StateDir, workspace_id: str) -> dict[str, LocalSizes]:
    """Return what each session that has work here takes, by session id; what cannot be read is
    left out.
    """
    pool = open_pool(state, workspace_id)
    records = []
    for path in iter_record_paths(sessions_dir(state, workspace_id)):
        with suppress(IntegrityError, RefusedError):  # to mount it says so
            if (record := load_record(path)) is not None:
                records.append(record)
    users = Counter(name for record in records for name in _names_in(record))
    bytes_by_name = {name: pool.size_bytes(name) for name in users}

    def total(record: LocalRecord, *, is_shared: bool) -> int:
        return sum(
            bytes_by_name[name] for name in _names_in(record) if (users[name] > 1) == is_shared
        )

    return {
        record.session_id: LocalSizes(
            len(record.layers), total(record, is_shared=False), total(record, is_shared=True)
        )
        for record in records
    }


def _names_in(record: LocalRecord) -> set[str]:
    return {place.name for place in record.all_places()}
