"""Landings that were refused because of conflicts: a log beside the refs, for whoever watches.

A refused landing moves nothing, so no ref tells of it. The log is numbered without gaps: a writer
takes the number after the last one, if nobody has it yet. So whoever has read up to a number has
read all there is below it, whatever anybody's clock says. Keys count down, so that the first one of
a listing is the latest.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from workspacefs.errors import IntegrityError, RefusedError, WorkspaceError
from workspacefs.ids import CommitId
from workspacefs.workspace.workspace import Workspace

log = logging.getLogger(__name__)

REFUSALS_PREFIX: Final = "conflicts/"
_FORMAT: Final = 1
_TOP: Final = 10**12
_ATTEMPTS: Final = 8
_NAMED_MAX: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedLanding:
    """A landing that did not take place. Nothing else in the store tells of it."""

    branch: str
    tip: CommitId
    """What the branch was at."""
    commit: CommitId
    """What was to land."""
    name: str
    """Of the session or proposal that it was to land from."""
    by: str
    agent: str
    time_ns: int
    """Wall time where it was refused, for people."""
    conflicts: tuple[tuple[str, bytes], ...]
    """Kind and path of each, in order of path; of many only the first ones."""
    count: int
    """How many there were."""
    number: int = 0
    """From 1, without gaps; given when it is noted."""


def note_refusal(workspace: Workspace, refused: RefusedLanding) -> None:
    """Note a refused landing, if the store takes it: whoever wanted to land is told in any case."""
    try:
        for _ in range(_ATTEMPTS):
            number = newest_number(workspace) + 1
            if workspace.backend.put_if_absent(_key_of(number), _line_of(refused, number)):
                return
        reason = "others note refusals all the time"
    except WorkspaceError as exc:
        reason = str(exc)
    log.warning("landing.refusal_not_noted", extra={"branch": refused.branch, "reason": reason})


def newest_number(workspace: Workspace) -> int:
    """Return the number of the latest refusal; 0: there was none."""
    first = next(iter(workspace.backend.iter_keys(REFUSALS_PREFIX)), None)
    return 0 if first is None else _number_of(first.key)


def list_refusals(workspace: Workspace, *, after: int) -> list[RefusedLanding]:
    """Return the refusals with greater numbers than `after`, in the order of their numbers.

    Raises:
        IntegrityError: One is damaged.
    """
    return [_load(workspace, number) for number in reversed(list(_iter_numbers(workspace, after)))]


def _iter_numbers(workspace: Workspace, after: int) -> Iterator[int]:
    for info in workspace.backend.iter_keys(REFUSALS_PREFIX):
        number = _number_of(info.key)
        if number <= after:
            return
        yield number


def _key_of(number: int) -> str:
    return f"{REFUSALS_PREFIX}{_TOP - number:012d}"


def _number_of(key: str) -> int:
    text = key.removeprefix(REFUSALS_PREFIX)
    if not text.isdecimal() or key != _key_of(_TOP - int(text)):
        raise IntegrityError(f"{key} is no key of a refused landing", kind="refusal.damaged")
    return _TOP - int(text)


def _line_of(refused: RefusedLanding, number: int) -> bytes:
    document = {
        "format": _FORMAT,
        "number": number,
        "branch": refused.branch,
        "tip": refused.tip.hex(),
        "commit": refused.commit.hex(),
        "name": refused.name,
        "by": refused.by,
        "agent": refused.agent,
        "time_ns": refused.time_ns,
        "conflicts": [
            {"kind": kind, "path": os.fsdecode(path)}
            for kind, path in refused.conflicts[:_NAMED_MAX]
        ],
        "count": refused.count,
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii") + b"\n"


def _load(workspace: Workspace, number: int) -> RefusedLanding:
    key = _key_of(number)
    try:
        document = json.loads(workspace.backend.get(key))
        if document["format"] > _FORMAT:
            raise RefusedError(
                f"{key} is of format {document['format']}, newer than {_FORMAT}; use a newer "
                "release",
                kind="format.newer",
            )
        return RefusedLanding(
            branch=str(document["branch"]),
            tip=CommitId(bytes.fromhex(document["tip"])),
            commit=CommitId(bytes.fromhex(document["commit"])),
            name=str(document["name"]),
            by=str(document["by"]),
            agent=str(document["agent"]),
            time_ns=int(document["time_ns"]),
            conflicts=_conflicts_of(document["conflicts"]),
            count=int(document["count"]),
            number=number,
        )
    except (ValueError, KeyError, TypeError) as exc:
        raise IntegrityError(f"{key} is damaged", kind="refusal.damaged") from exc


def _conflicts_of(rows: Sequence[dict[str, str]]) -> tuple[tuple[str, bytes], ...]:
    return tuple((str(row["kind"]), os.fsencode(row["path"])) for row in rows)
