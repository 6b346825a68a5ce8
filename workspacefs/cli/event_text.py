"""Events of a watch as a person and as a program read them."""

from __future__ import annotations

import os
from typing import Final

from workspacefs.cli.commit_text import time_text
from workspacefs.cli.context import count_text, short_id
from workspacefs.refs import RefRecord
from workspacefs.workspace.feed import Event
from workspacefs.workspace.refusals import RefusedLanding

_SHOWN_MAX: Final = 5


def event_document(event: Event, position: str) -> dict[str, object]:
    """Return what --json says of an event, and the position behind it."""
    operation, record = event.operation, event.record
    return {
        "event": event.action,
        "kind": event.kind.value,
        "name": event.name,
        "old": None if event.old is None else event.old.hex(),
        "new": None if event.new is None else event.new.hex(),
        "operation": None if operation is None else operation.id,
        "by": event.by or None,
        "time": None if event.time_ns is None else time_text(event.time_ns),
        "time_ns": event.time_ns,
        "commit": _commit_facts(record),
        "state": None if record is None or record.session is None else record.session.state,
        "refused": None if event.refused is None else _refused_document(event.refused),
        "position": position,
    }


def event_line(event: Event) -> str:
    """Return the line that tells a person of an event."""
    when = " " * 20 if event.time_ns is None else time_text(event.time_ns)
    told = f"{when}  {event.action:<8} {event.kind.value} {event.name} "
    if event.refused is not None:
        return told + _refused_text(event.refused)
    if event.action == "state" and event.record is not None and event.record.session is not None:
        told += f"is {event.record.session.state} now"
    elif event.action in ("begin", "remove"):
        told += f"at {short_id(_hex(event.new or event.old))}"
    else:
        told += f"{short_id(_hex(event.old))} -> {short_id(_hex(event.new))}"
    if event.by:
        told += f", by {event.by}"
    facts = _commit_facts(event.record)
    if facts is not None and event.old != event.new:
        agent = f" ({facts['agent']})" if facts["agent"] else ""
        told += f"{agent}: {str(facts['message']).partition(chr(10))[0]}"
    return told


def _hex(commit_id: bytes | None) -> str | None:
    return None if commit_id is None else commit_id.hex()


def _commit_facts(record: RefRecord | None) -> dict[str, object] | None:
    """Return what the ref itself has of its commit: asking for others would take requests."""
    if record is None or record.commit_id is None:
        return None
    commit = record.commit()
    who = commit.provenance
    return {
        "message": commit.message,
        "author": who.author,
        "agent": who.agent,
        "session": who.session,
        "run": who.run,
        "parents": [parent.id.hex() for parent in commit.parents],
    }


def _refused_document(refused: RefusedLanding) -> dict[str, object]:
    return {
        "commit": refused.commit.hex(),
        "from": refused.name,
        "agent": refused.agent or None,
        "conflicts": [
            {"kind": kind, "path": os.fsdecode(path)} for kind, path in refused.conflicts
        ],
        "count": refused.count,
    }


def _refused_text(refused: RefusedLanding) -> str:
    paths = ", ".join(os.fsdecode(path) for _, path in refused.conflicts[:_SHOWN_MAX])
    more = f" and {refused.count - _SHOWN_MAX:,} more" if refused.count > _SHOWN_MAX else ""
    return (
        f"at {short_id(refused.tip.hex())} did not take {short_id(refused.commit.hex())} of "
        f"{refused.name}, by {refused.by or 'someone'}: "
        f"{count_text(refused.count, 'conflict')}: {paths}{more}"
    )
