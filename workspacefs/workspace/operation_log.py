"""The operation log: which refs moved from where to where, by whom.

An entry is written before its move (publish.py), so there may be some of moves that never were.
Reading it takes one request for each thousand entries, and one for each that is shown.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from workspacefs.errors import IntegrityError, NotFoundError, RefusedError, UsageError
from workspacefs.ids import CommitId
from workspacefs.refs import RefKind
from workspacefs.workspace.publish import OPS_PREFIX
from workspacefs.workspace.workspace import Workspace

_FORMAT: Final = 1
_ID_MIN: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One entry of the log."""

    id: str
    """Write id of the move, hex."""
    action: str
    kind: RefKind
    name: str
    old: CommitId | None
    new: CommitId | None
    time_ns: int
    by: str
    previous_id: str | None = None
    """Write id of the value that was to be replaced; None: there was none."""
    other_name: str = ""
    """Of a branch that was renamed: the name that it had, or got."""


def newest_operations(workspace: Workspace, limit: int) -> list[Operation]:
    """Return the latest operations, the newest first.

    Raises:
        IntegrityError: An entry is damaged.
    """
    keys = deque(_iter_keys(workspace), maxlen=limit)
    return [load_operation(workspace, key) for key in reversed(keys)]


def find_operation(workspace: Workspace, prefix: str) -> Operation:
    """Return the operation whose id begins with some digits.

    Raises:
        NotFoundError: There is none.
        UsageError: There are several, or the digits are fewer than four.
    """
    if len(prefix) < _ID_MIN:
        raise UsageError(f"give at least {_ID_MIN} digits of an operation's id", kind="op.short")
    keys = [key for key in _iter_keys(workspace) if key.rpartition("-")[2].startswith(prefix)]
    if not keys:
        raise NotFoundError(
            f"there is no operation {prefix}; workspacefs oplog lists them", kind="op.absent"
        )
    if len(keys) > 1:
        raise UsageError(
            f"{prefix} is the beginning of {len(keys)} operations; give more digits",
            kind="op.ambiguous",
        )
    return load_operation(workspace, keys[0])


def _iter_keys(workspace: Workspace) -> Iterator[str]:
    return (info.key for info in workspace.backend.iter_keys(OPS_PREFIX))


def load_operation(workspace: Workspace, key: str) -> Operation:
    """Return the entry under a key.

    Raises:
        IntegrityError: It is damaged.
        KeyAbsentError: It is not there: the move did not take place, and it was withdrawn.
    """
    try:
        entry: dict[str, Any] = json.loads(workspace.backend.get(key))
        if entry["format"] > _FORMAT:
            raise RefusedError(
                f"{key} is of format {entry['format']}, newer than {_FORMAT}; use a newer release",
                kind="format.newer",
            )
        return Operation(
            id=str(entry["write_id"]),
            action=str(entry["action"]),
            kind=RefKind(entry["kind"]),
            name=str(entry["name"]),
            old=_commit(entry["old"]),
            new=_commit(entry["new"]),
            time_ns=int(entry["time_ns"]),
            by=str(entry["by"]),
            previous_id=_text_or_none(entry["previous_write_id"]),
            other_name=str(entry.get("other", "")),
        )
    except (ValueError, KeyError, TypeError) as exc:
        raise IntegrityError(f"{key} is damaged", kind="op.damaged") from exc


def _commit(text: str | None) -> CommitId | None:
    return None if text is None else CommitId(bytes.fromhex(text))


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)
